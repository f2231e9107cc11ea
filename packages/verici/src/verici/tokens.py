"""Reduce a file to its numeric constants: line, context words, number among equal contexts, value.

The context of a number is, in this order: the flag or name directly before it (`--nodes=4`, `torch==2.1`) if the line
is a command or has several numbers; else the words of its line. In indented and sectioned formats the parent key or
section stands before it. A line without words (`- 2.7.1`) takes the nearest name above.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from verici.model import Constant

#: Larger files are skipped: 2 MiB holds the lock files of large projects.
MOST_BYTES = 2 << 20
#: Longer lines are cut: minified files say nothing by line.
MOST_CHARACTERS = 2_000
#: Constants of one file that are kept.
MOST_CONSTANTS = 20_000

#: Shapes that are no constants, removed in this order before numbers are read.
EXCLUDED = re.compile(
    r"""
      \b[a-z][a-z0-9+.-]*://[^\s"'<>)\]]+                           # addresses of pages and repositories
    | \b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b      # UUID
    | \bsha(?:1|256|384|512)[-:=][A-Za-z0-9+/=]{16,}                # digests
    | (?<![\w.-])\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d)?\S*)?     # dates, unless glued to a name (nightly-2019-02-22)
    | (?<![\d.])(?:127|10|0|255|192\.168|172\.(?:1[6-9]|2\d|3[01]))(?:\.\d{1,3}){2,3}(?![\d.])(?:/\d+)?  # IP addresses
    | \b(?=[a-f0-9]*[a-f])(?=[a-f0-9]*\d)[a-f0-9]{7,128}\b          # commit ids and other hexadecimal hashes
    """,
    re.VERBOSE,
)
#: Names in which a digit is no version.
_NAMES = re.compile(
    r"\b(?:x86[_-]64|x86|i[36]86|amd64|arm64|aarch64|win(?:32|64)|utf-?8|latin-?1|sha\d+|md5|base64|i18n|l10n|k8s|"
    r"ipv[46]|s3|ec2|oauth2|sqlite3|b2b|p2p|h264)\b",
    re.IGNORECASE,
)
_TOKEN = re.compile(r"[A-Za-z0-9_][\w.+-]*")
_SUFFIX = r"(?:[-._+]?(?:rc|dev|alpha|beta|pre|post|snapshot|final|a|b|p|u|x)\.?\d*)*"
_PURE = re.compile(r"v?(\d+(?:\.\d+)*" + _SUFFIX + r"|\d+(?:\.\d+)?e[+-]?\d+|\d+(?:_\d{3})+)", re.IGNORECASE)
_NUMBER = re.compile(r"\d{4}-\d\d-\d\d|\d+(?:\.\d+)*(?:u\d+|[-.](?:dev|alpha|beta|rc)\.?\d*)?")
_FLAG = re.compile(r"(--?[A-Za-z][\w-]*)[ =]+[\"']?$")
_NAME_BEFORE = re.compile(r"([A-Za-z_][\w.\[\]-]*)[\"']?\s*(?:[=~<>!^]=?=?|:)\s*[\"'^~]?$")
_PINNED = re.compile(r"[0-9a-f]{40}[\"']?\s*#\s*(?:[\w./-]*@)?v?(\d+(?:\.\d+)*)\s*$")
_KEY = re.compile(r"^\s*(?:-\s+)?[\"']?([A-Za-z_.$@][\w.$/@ -]*)[\"']?\s*[:=]")
_NAMED = re.compile(r"(?:^|[<\s\"'-])(?:name|artifactId|uses|repository)[\"']?\s*[:=>]\s*[\"']?([\w.@/-]+)")
_SECTION = re.compile(r"^\s*\[+([^\]]+)\]+\s*$")
_CLOSING_TAG = re.compile(r"</[\w.:-]+>")

_SLASHES = (
    "js", "ts", "mjs", "gradle", "kts", "java", "go", "mod", "rs", "c", "h", "cc", "cpp", "hpp", "swift", "json5",
)  # fmt: skip
_INDENTED = ("yml", "yaml", "json", "json5", "xml", "pom", "gradle", "kts", "html", "cff")
_SECTIONED = ("toml", "ini", "cfg", "conf", "lock")
#: A line that holds only these words is named by the nearest name above it: lock files and pom.xml.
_GENERIC = frozenset({"version", "rev", "tag", "ref", "revision"})

_COMMENT_HASH = re.compile(r"(?:^|(?<=\s))#(?!\{|SBATCH|PBS|BSUB).*$")
_COMMENT_SLASHES = re.compile(r"(?<!:)//.*$")
_COMMENT_ANGLE = re.compile(r"<!--.*?(?:-->|$)")


def decode(data: bytes) -> str | None:
    """Return a file's text, or None for a binary or an oversized one; bytes that are not UTF-8 are replaced."""
    if len(data) > MOST_BYTES or b"\0" in data[:8192]:
        return None
    return data.decode("utf-8", errors="replace")


def suffix_of(path: str) -> str:
    """Return what decides how a file is read: the end of its name, or the name itself."""
    return path.rpartition("/")[2].rpartition(".")[2].lower()


def constants_of(path: str, text: str) -> tuple[Constant, ...]:
    """Return the numeric constants of a file, with versions joined from MAJOR, MINOR and PATCH at the end."""
    counts: Counter[str] = Counter()
    found: list[Constant] = []
    for line, name, value in _numbers(path, text):
        found.append(Constant(line, name, counts[name], value))
        counts[name] += 1
        if len(found) == MOST_CONSTANTS:
            break
    return (*found, *join_versions(found))


#: Names of a version's parts, each with what follows the file's own prefix.
_VERSION_PARTS = (("MAJOR",), ("MINOR",), ("PATCH", "TINY", "MICRO", "BUILD", "REVISION"))
JOINED = "version joined from its parts"


def join_versions(constants: list[Constant]) -> list[Constant]:
    """Return the version that a file states as separate MAJOR, MINOR and PATCH constants; none if one stands twice."""
    parts: list[Constant] = []
    for names in _VERSION_PARTS:
        own = [one for one in constants if one.name.upper().replace("VERSION", "").strip(" _=") in names]
        parts += own
        if not own:
            break
    if len(parts) < 2 or len({part.name for part in parts}) < len(parts):
        return []
    return [Constant(parts[-1].line, JOINED, 0, ".".join(part.value for part in parts))]


def _numbers(path: str, text: str) -> Iterator[tuple[int, str, str]]:
    """Yield line, context and value of each number."""
    suffix = suffix_of(path)
    surroundings = _Surroundings(suffix)
    comment = _COMMENT_SLASHES if suffix in _SLASHES else _COMMENT_HASH
    for line_number, whole in enumerate(text.splitlines(), 1):
        raw = whole[:MOST_CHARACTERS]
        pinned = _PINNED.search(raw) if "#" in raw else None
        line = comment.sub("", raw) if "#" in raw or "//" in raw else raw
        if "<" in line:
            line = _CLOSING_TAG.sub(" ", _COMMENT_ANGLE.sub(" ", line))
        if not line.strip():
            continue
        if any(map(str.isdigit, line)):
            yield from _of_line(line_number, line, pinned, surroundings)
        surroundings.follow(line)


def _of_line(
    line_number: int, raw: str, pinned: re.Match[str] | None, surroundings: _Surroundings
) -> Iterator[tuple[int, str, str]]:
    line = EXCLUDED.sub(" ", raw)
    words: list[str] = []
    numbers: list[tuple[str, str]] = []  # text before the number on its line, value
    names = _NAMES.search(line) is not None
    for token in _TOKEN.finditer(line):
        text = token.group().rstrip(".-+")
        if not any(map(str.isdigit, text)) or (names and _NAMES.fullmatch(text)):
            words.append(text)
            continue
        pure = _PURE.fullmatch(text)
        if pure:
            numbers.append((line[: token.start()], pure.group(1).replace("_", "")))
            continue
        words += [part for part in re.split(r"[-_.+]+", _NUMBER.sub("-", text)) if part]
        glued = _NUMBER.findall(text)
        numbers += [("", found.replace("-", ".") if found.count("-") == 2 else found) for found in glued]
    if pinned:
        numbers.append(("", pinned.group(1)))
    own = " ".join(words)
    for before, value in numbers:
        near = before and (_FLAG.search(before) or (len(numbers) > 1 and _NAME_BEFORE.search(before)))
        yield line_number, surroundings.context(near.group(1) if near else own, raw), value


class _Surroundings:
    """Follows the lines of a file and knows the parent key, section or nearest name of the current one."""

    def __init__(self, suffix: str) -> None:
        self.indented = suffix in _INDENTED
        self.sectioned = suffix in _SECTIONED
        self.parents: list[tuple[int, str]] = []
        self.named = (0, "")
        self.nearest = ""
        self.section = ""

    def follow(self, line: str) -> None:
        """Take a line into account for those that come after it."""
        section = _SECTION.match(line) if self.sectioned else None
        if section:
            self.section = section.group(1).strip(" \"'")[-30:]
            return
        if self.indented or self.sectioned:
            named = _NAMED.search(line)
            if named:
                self.named = (_indent(line), named.group(1))
        key = _KEY.match(line)
        if key:
            self.nearest = key.group(1).strip()
        elif not self.indented and not line[:1].isspace():
            words = [word for word in _TOKEN.findall(line) if not word[0].isdigit()]
            self.nearest = " ".join(words) or self.nearest
        if self.indented and (key or "<" in line):
            name = key.group(1).strip() if key else line.strip(" \t<>/").split(" ")[0].split(">")[0]
            depth = _indent(line)
            while self.parents and self.parents[-1][0] >= depth:
                self.parents.pop()
            self.parents.append((depth, name))

    def context(self, own: str, line: str) -> str:
        """Return the context of a number whose own words are these."""
        if own in _GENERIC and self.named[1] and self.named[0] == _indent(line):
            own = f"{self.named[1]} {own}"
        elif self.indented:
            own = f"{self._parent(line)} {own}"
        elif self.sectioned and self.section:
            own = f"{self.section} {own}"
        return (own.strip() or self.nearest)[:60]

    def _parent(self, line: str) -> str:
        """Return the nearest key that is indented less; a list may stand as far left as its key."""
        depth = _indent(line) + (0 if _KEY.match(line) else _is_item(line))
        return next((name for at, name in reversed(self.parents) if at < depth), "")


def _is_item(line: str) -> bool:
    return line.lstrip().startswith("- ")


def _indent(line: str) -> int:
    """Return where the line's text begins; a key behind a list's dash begins behind the dash."""
    text = line.lstrip()
    return len(line) - len(text) + (2 if _is_item(line) and _KEY.match(line) else 0)
