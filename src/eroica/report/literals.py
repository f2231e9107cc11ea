"""Text literals of source lines that give something to a name which speaks of a secret.

Which literal holds the secret is not worked out: of `password = get("x") or "y"` both are hidden. A line that such a
name stands on hides all its literals, those that go on over the next lines too. Only what looks like the name of an
entry stays (`os.environ["DB_PASS"]`): it says what was hidden.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

#: A text literal up to its end or the line's, or a comment.
_LITERAL = re.compile(
    r"(?P<quote>\"\"\"|'''|\"|')(?P<body>(?:\\.|(?!(?P=quote))[^\\])*)(?P<end>(?P=quote)|\\?$)|(?P<comment>#.*)"
)
_REST = {
    quote: re.compile(rf"(?P<body>(?:\\.|(?!{quote})[^\\])*)(?P<end>{quote}|\\?$)")
    for quote in ('"""', "'''", '"', "'")
}
_NAME = re.compile(r"[A-Za-z_]\w*")
_PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
#: Parts of a name that speak of a secret wherever they stand, and those that do as the last or last but one.
_SECRET = re.compile(r"passw|passphrase|passcode|secret|credential|apikey|accesskey|privatekey|authori[sz]ation")
_LAST = frozenset({"pass", "pwd", "pw", "token", "auth", "oauth", "bearer", "creds", "cred"})
_AFTER_LAST = frozenset({"value", "str", "text", "string", "key", "default", "env", "header"})
#: A key is one where it gets a value; of names with more parts also where another argument follows.
_GIVEN = re.compile(r"\s*\]?\s*(?::|=(?!=))")
_GIVEN_OR_NEXT = re.compile(r"\s*\]?\s*(?::|,|=(?!=))")
#: The value of such a line stands on the next one.
_GOES_ON = re.compile(r"(?:[=(\[{+,\\]|\bor|\band|\belse|\bif)\s*$")


class LiteralHider:
    """Hides literals in the lines of one piece of source, one line after the other.

    Args:
        mark: What stands in their place.
    """

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self._open = ""  # the quotes of a literal that goes on
        self._hides_open = False
        self._depth = 0  # brackets that are open
        self._until: int | None = None  # hidden until no more brackets than that are open
        self._hides_next = False

    def hide(self, line: str) -> str:
        """The next line, with its literals hidden where they may be secrets."""
        start, head = self._go_on(line)
        rest = line[start:]
        if self._open:
            return head
        matches = list(_LITERAL.finditer(rest))
        code = _code(rest, matches)
        hides = self._hides_next or self._until is not None or _speaks_of_a_secret(code)
        shown = "".join(self._pieces(rest, matches, hides=hides))
        self._count(_bare(rest, matches), hides=hides)
        return head + shown

    def _go_on(self, line: str) -> tuple[int, str]:
        """End of a literal that was open, and what is shown of it."""
        if not self._open:
            return 0, ""
        match = _REST[self._open].match(line)
        if match is None:  # cannot be: the pattern matches any line
            return 0, ""
        body = self._mark if self._hides_open and match["body"].strip() else match["body"]
        self._open = "" if match["end"] == self._open else self._open
        return match.end(), body + match["end"]

    def _pieces(self, rest: str, matches: Iterable[re.Match[str]], *, hides: bool) -> Iterable[str]:
        at = 0
        for match in matches:
            yield rest[at : match.start()]
            at = match.end()
            if match["comment"]:
                yield match[0]
                continue
            is_hidden = hides and bool(match["body"].strip()) and not _is_entry(rest, match)
            yield f"{match['quote']}{self._mark if is_hidden else match['body']}{match['end']}"
            if match["end"] != match["quote"] and (len(match["quote"]) == 3 or match["end"]):
                self._open, self._hides_open = match["quote"], hides
        yield rest[at:]

    def _count(self, bare: str, *, hides: bool) -> None:
        """Brackets that are open now, and whether the next line belongs to this one."""
        before = self._depth
        self._depth = max(0, before + sum(map(bare.count, "([{")) - sum(map(bare.count, ")]}")))
        if self._until is None and hides and self._depth > before:
            self._until = before
        if self._until is not None and self._depth <= self._until:
            self._until = None
        is_entry = self._depth > 0 and bare.rstrip().endswith(":")
        goes_on = bool(_GOES_ON.search(bare)) and not bare.rstrip().endswith(",")
        self._hides_next = hides and self._until is None and (goes_on or is_entry)


def _is_entry(rest: str, match: re.Match[str]) -> bool:
    """Whether a literal is the index of something: `environ["DB_PASS"]`."""
    before, after = rest[: match.start()].rstrip(), rest[match.end() :].lstrip()
    if not before.endswith("[") or not after.startswith("]") or not re.fullmatch(r"\w{1,60}", match["body"]):
        return False
    return bool(re.search(r"[\w)\]]$", before[:-1]))


def _code(rest: str, matches: Iterable[re.Match[str]]) -> str:
    """The line without comments, and of its literals only those that may be names."""
    text, at = [], 0
    for match in matches:
        text.append(rest[at : match.start()])
        at = match.end()
        if not match["comment"] and re.match(r"\s*[\]:,)]", rest[at:]) and re.fullmatch(r"[\w\-]+", match["body"]):
            text.append(f" {match['body'].replace('-', '_')}")
    return "".join(text) + rest[at:]


def _bare(rest: str, matches: Iterable[re.Match[str]]) -> str:
    """The line without literals and comments."""
    text, at = [], 0
    for match in matches:
        text.append(rest[at : match.start()])
        text.append("" if match["comment"] else "_")
        at = match.end()
    return "".join(text) + rest[at:]


def _speaks_of_a_secret(code: str) -> bool:
    return any(_is_secret(match[0], code[match.end() :]) for match in _NAME.finditer(code))


def _is_secret(name: str, after: str) -> bool:
    if _SECRET.search(name.replace("_", "").lower()):
        return True
    parts = [part.lower() for part in _PART.findall(name)]
    if not parts or name == "pass":  # the statement
        return False
    if parts[-1] in _LAST or (len(parts) > 1 and parts[-2] in _LAST and parts[-1] in _AFTER_LAST):
        return True
    if parts[-1] != "key":
        return False
    return bool((_GIVEN_OR_NEXT if len(parts) > 1 else _GIVEN).match(after))
