"""Takes the manifest out of a model's answer. Text that is already valid stays as it is; one that was cut off stays cut off."""

import re

from cloudeval.errors import ReadError
from cloudeval.reading import values

_OPENERS = (
    (re.compile(r"^[ \t]*(`{3,}|~{3,})[ \t]*([\w+-]*)[^\n`]*$", re.MULTILINE), None),
    (re.compile(r"<code[^>]*>", re.IGNORECASE), re.compile(r"</code>", re.IGNORECASE)),
    (re.compile(r"\\begin\{code\}"), re.compile(r"\\end\{code\}")),
    (re.compile(r"START SOLUTION"), re.compile(r"END SOLUTION")),
)
_FOREIGN = {"bash", "sh", "shell", "console", "text", "python", "go", "diff", "dockerfile"}
#: A line at the margin that can belong to a YAML document.
_YAML_LINE = re.compile(r"([\w.\"'/@-]+\s*:(\s|$)|- |-$|---|#|\.\.\.|[}\]])")


def clean(text: str, runner: str = "cluster") -> tuple[str, str]:
    """Return the manifest in an answer, and the rule that found it.

    Rules, in order: `as it is` (valid and with its root key), `fence` (every fenced block that is not of another
    language, joined by `---`), `unclosed fence` (all that follows it), `longest block` (from the first root key to the
    last line that still parses, only where prose follows after a blank line), `unchanged`.
    """
    text = text.replace("\r\n", "\n")
    if _is_manifest(text, runner):
        return text, "as it is"
    for opener, closer in _OPENERS:
        blocks, closed = _marked(text, opener, closer)
        if blocks:
            kept = [block for block in blocks if _has_root(block, runner)] or blocks
            return "\n---\n".join(block.strip("\n") for block in kept) + "\n", "fence" if closed else "unclosed fence"
    if (block := _block(text, runner)) is not None:
        return block, "longest block"
    return text, "unchanged"


def _marked(text: str, opener: re.Pattern[str], closer: re.Pattern[str] | None) -> tuple[list[str], bool]:
    blocks, position, closed = [], 0, True
    while found := opener.search(text, position):
        fence = found[1] if closer is None else ""
        fence_end = rf"^[ \t]*{fence}+(?=[ \t]|$)"
        end = (closer or re.compile(fence_end, re.MULTILINE)).search(text, found.end())
        language = found[2].lower() if closer is None else ""
        body = text[found.end() : end.start() if end else len(text)]
        if language not in _FOREIGN and body.strip():
            blocks.append(_dedent(body))
            closed = end is not None
        if end is None:
            break
        position = end.end()
    return blocks, closed


def _dedent(block: str) -> str:
    lines = [line for line in block.split("\n") if line.strip()]
    indent = min((len(line) - len(line.lstrip(" ")) for line in lines), default=0)
    return "\n".join(line[indent:] for line in block.split("\n"))


def _has_root(text: str, runner: str) -> bool:
    keys = "static_resources|admin|kind" if runner == "envoy" else "apiVersion|kind"
    return re.search(rf'^\s*[{{"]*({keys})"?\s*:', text, re.MULTILINE) is not None


def _is_manifest(text: str, runner: str) -> bool:
    try:
        documents = values(text)
    except ReadError:
        return False
    root = "static_resources" if runner == "envoy" else "apiVersion"
    return bool(documents) and all(isinstance(value, dict) and root in value for value in documents)


def _block(text: str, runner: str) -> str | None:
    """Return the manifest between prose, or None where none stands alone.

    The block starts at the first line with a root key and ends where a blank line is followed by prose. It is taken
    whole or not at all, so that half of an answer that was cut off is never taken for the answer.
    """
    lines = text.split("\n")
    keys = ("static_resources:", "admin:", "node:") if runner == "envoy" else ("apiVersion:", "kind:")
    start = next((index for index, line in enumerate(lines) if line.startswith(keys) or line.startswith("---")), None)
    if start is None:
        return None
    end = len(lines)
    for index in range(start + 1, len(lines)):
        line = lines[index]
        if line and not line[0].isspace() and not _YAML_LINE.match(line) and not lines[index - 1].strip():
            end = index
            break
    block = "\n".join(lines[start:end]).rstrip() + "\n"
    return block if _is_manifest(block, runner) else None
