"""Which characters a terminal can show, and what stands for those that it cannot.

Every replacement is as wide as what it replaces, so that tables stay tables.
"""

from __future__ import annotations

import codecs
import io
import sys
from collections.abc import Mapping

_REPLACEMENTS = {
    "β": "b",
    "μ": "u",
    "σ": "s",
    "δ": "d",
    "…": "~",
    "–": "-",
    "—": "-",
    "−": "-",
    "─": "-",
    "·": "|",
    "•": "*",
    "›": ">",
    "→": ">",
    "×": "x",
    "▲": "^",
    "’": "'",
    "‘": "'",
    "“": '"',
    "”": '"',
    **dict(zip("▁▂▃▄▅▆▇█", "_.-:=+*#", strict=True)),
}
#: Name of our error handler among Python's.
_REPLACING = "eroica-plain"


def speaks_utf8(environ: Mapping[str, str]) -> bool:
    """Whether the locale says that the terminal shows UTF-8.

    Where nobody has said anything, Python has set `LC_CTYPE` itself (PEP 538), and so it counts as UTF-8.
    """
    named = next((environ[name] for name in ("LC_ALL", "LC_CTYPE", "LANG") if environ.get(name)), "")
    return "utf8" in named.lower().replace("-", "")


def plain(text: str) -> str:
    """`text` in ASCII, one character for each."""
    return text if text.isascii() else "".join(map(_plain, text))


def write_what_the_locale_can() -> None:
    """Standard output and error of this process: plain characters where their encoding has none, not an error."""
    codecs.register_error(_REPLACING, _replace)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and not stream.encoding.lower().startswith("utf"):
            stream.reconfigure(errors=_REPLACING)


def _plain(character: str) -> str:
    return character if character.isascii() else _REPLACEMENTS.get(character, "?")


def _replace(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return plain(error.object[error.start : error.end]), error.end
