"""The last row of a terminal that somebody else writes to: kept apart by a scroll region, given back without a trace.

Whatever is written goes out in one write, which terminals' drivers do not mix with those of other processes, and leaves
cursor, colors and modes as it found them (DECSC, DECRC).
"""

from __future__ import annotations

import os
import termios
from collections.abc import Iterable

from eroica.report.footer import Piece, Style

_FEWEST_ROWS = 8
_FEWEST_COLUMNS = 40
#: No region; if the cursor stands in the last row, everything moves up by one. Any number of times: the same.
_MAKE_ROOM = "\x1b7\x1b[r\x1b8\x1bD\x1b[A"
#: The same, and what lies below the cursor goes: after a resize our line may stand in any row there, or in two.
_MAKE_ROOM_ANEW = "\x1b7\x1b[r\x1b8\x1bD\x1b7\x1b[1G\x1b[m\x1b[J\x1b8\x1b[A"
_COLORED: dict[Style, str] = {
    "title": "\x1b[7m",
    "dim": "\x1b[2m",
    "good": "\x1b[32m",
    "bad": "\x1b[1;31m",
    "warn": "\x1b[33m",
    "link": "\x1b[4m",
}
_UNCOLORED: dict[Style, str] = {"title": "\x1b[7m", "bad": "\x1b[1m", "link": "\x1b[4m"}


class BottomLine:
    """The last row of a terminal.

    Args:
        handle: The terminal, open for writing.
    """

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._shown_in: os.terminal_size | None = None

    @property
    def shown(self) -> bool:
        """It stands there."""
        return self._shown_in is not None

    def may_be_shown(self) -> bool:
        """The terminal is our job's, its size will do, and nobody reads single keys, as full-screen programs do.

        Raises:
            OSError: The terminal is gone.
        """
        if os.tcgetpgrp(self._handle) != os.getpgrp():
            return False
        try:
            _, output, _, local, *_ = termios.tcgetattr(self._handle)
        except termios.error as error:
            raise OSError(*error.args) from error
        lines = bool(local & termios.ICANON) and bool(output & termios.OPOST)
        size = os.get_terminal_size(self._handle)
        return lines and size.lines >= _FEWEST_ROWS and size.columns >= _FEWEST_COLUMNS

    @property
    def room(self) -> int:
        """Cells that a line may have; the last one stays free, where terminals differ."""
        return os.get_terminal_size(self._handle).columns - 1

    def show(self, line: str) -> None:
        """Draw `line`; again and again does no harm."""
        size = os.get_terminal_size(self._handle)
        rows = size.lines
        room = _MAKE_ROOM if self._shown_in in (None, size) else _MAKE_ROOM_ANEW
        self._write(f"{room}\x1b7\x1b[1;{rows - 1}r\x1b[{rows};1H\x1b[m\x1b[2K{line}\x1b[m\x1b8")
        self._shown_in = size

    def remove(self) -> None:
        """Give the row back."""
        if self._shown_in is None:
            return
        size, self._shown_in = self._shown_in, None
        same = os.get_terminal_size(self._handle) == size
        self._write(removal(size.lines) if same else _MAKE_ROOM_ANEW)

    def _write(self, text: str) -> None:
        data = text.encode()
        while data:
            data = data[os.write(self._handle, data) :]


def removal(row: int) -> str:
    """What undoes `BottomLine.show` in a terminal of `row` rows."""
    return f"\x1b7\x1b[r\x1b[{row};1H\x1b[m\x1b[2K\x1b8"


def drawn(pieces: Iterable[Piece], colored: bool, url: str = "") -> str:
    """Pieces with their styles; the link leads to `url` in terminals that know links (OSC 8)."""
    styles = _COLORED if colored else _UNCOLORED
    words = []
    for piece in pieces:
        style = styles.get(piece.style, "")
        text = f"\x1b]8;;{url}\x1b\\{piece.text}\x1b]8;;\x1b\\" if piece.style == "link" and url else piece.text
        words.append(f"{style}{text}\x1b[m" if style else text)
    return "".join(words)
