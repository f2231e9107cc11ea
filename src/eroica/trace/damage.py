"""Mending text that is almost JSON. Every change keeps the length, so that offsets stay what they are."""

from __future__ import annotations

import re

_CONTROL = bytes(32 if byte < 32 else byte for byte in range(256))
_NO_NUMBER = re.compile(rb"(?<=[:\[,\s])-?(?:NaN|nan|Infinity|infinity|Inf|inf)(?=\s*[,\]}])")
_PAIR = rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_ESCAPE = re.compile(_PAIR + rb"|\\u[0-9a-fA-F]{4}|\\.", re.DOTALL)


def repair(text: bytes) -> bytes:
    """Mend what writers of traces are known to get wrong.

    NaN and infinities (no JSON) become empty lists, which are no usable time either; escapes that do not exist (an
    unescaped Windows path) become slashes; raw control characters become spaces; bytes that are no UTF-8 and halves of
    surrogate pairs become replacements.
    """
    text = text.decode("utf-8", "surrogateescape").encode("utf-8", "replace")
    text = text.translate(_CONTROL)
    text = _NO_NUMBER.sub(lambda found: b"[]".ljust(len(found[0])), text)
    return _ESCAPE.sub(_escape, text) if b"\\" in text else text


def _escape(found: re.Match[bytes]) -> bytes:
    whole = found[0]
    if len(whole) == 6:
        return b"\\ufffd" if whole[2:3] in b"dD" and whole[3:4] in b"89abcdefABCDEF" else whole
    return whole if len(whole) == 12 or whole[1] in b'"\\/bfnrt' else b"/" + whole[1:]
