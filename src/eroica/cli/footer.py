"""The live line under the command of `eroica run`, kept by a process of its own.

That process gives the terminal back whatever happens: when the command has ended, when `eroica run` dies (its end of a
pipe closes), when the job is stopped or put into the background, when a program reads single keys. If the process
itself is killed, `eroica run` gives the terminal back. The command inherits the terminal; nothing of its output passes
through us. See docs/terminal.md.

A scroll region keeps the line apart. Whatever is written goes out in one write, which terminals do not mix
with those of other processes, and leaves cursor, colors and modes as it found them (DECSC, DECRC).
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import termios
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NoReturn

from eroica.wire.places import Places

if TYPE_CHECKING:
    from eroica.report.footer import Piece, Style

#: Terminals that keep a scroll region and what scrolls out of it.
_KNOWN = (
    *("xterm", "screen", "tmux", "vte", "gnome", "konsole", "rxvt", "linux", "alacritty", "foot", "kitty", "st-"),
    *("wezterm", "contour", "ghostty", "iterm", "putty", "mlterm"),
)
#: What these would make of a link's escape sequence is not sure.
_WITHOUT_LINKS = ("linux", "screen", "rxvt", "putty")
_LOOK_S = 0.25
_UPDATE_S = 1.0
#: Unchanged text is drawn again after so long: the command may have cleared the screen.
_AGAIN_S = 5.0
#: After Ctrl-Z, until the shell has taken the terminal.
_HELD_S = 1.0
#: A window's corner that is being dragged.
_SETTLED_S = 0.1
#: Reading and drawing may take this share of one core: large jobs are shown more seldom.
_MOST_CORE = 0.02
_FAREWELL_S = 1.0
_LARGEST_STATUS_BYTES = 64_000_000
_NOT_OURS = (
    *(signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGTTOU, signal.SIGTTIN, signal.SIGPIPE),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM),
)
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


def fits(environ: Mapping[str, str]) -> bool:
    """Standard output and standard error are one terminal, ours, of a kind that is known to bear it."""
    if environ.get("CI", "0").lower() not in ("", "0", "false") or environ.get("INSIDE_EMACS"):
        return False
    locale = next((environ[name] for name in ("LC_ALL", "LC_CTYPE", "LANG") if environ.get(name)), "").lower()
    if not environ.get("TERM", "").startswith(_KNOWN) or ("." in locale and "utf" not in locale):
        return False
    try:
        os.tcgetpgrp(1)
        return os.isatty(2) and os.fstat(1).st_rdev == os.fstat(2).st_rdev
    except OSError:
        return False


class Footer:
    """The line of one `eroica run`, from its side.

    Args:
        where: The places of the job.
        environ: Our environment.
    """

    def __init__(self, where: Places, environ: Mapping[str, str]) -> None:
        self._where = where
        self._environ = environ
        self._pid = 0
        self._pipe = -1

    def start(self) -> None:
        """Begin, where it fits; whatever fails, there is no line. Called without threads."""
        if not fits(self._environ):
            return
        with contextlib.suppress(OSError):
            alive, ours = os.pipe()
            try:
                terminal = os.open("/dev/tty", os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC)
                pid = os.fork()
            except OSError:
                os.close(alive)
                os.close(ours)
                raise
            if pid == 0:
                _keep(self._where, self._environ, alive, terminal)
            self._pid, self._pipe = pid, ours
            os.close(alive)
            os.close(terminal)

    def tend(self) -> None:
        """Give the terminal back if the line's process was killed."""
        if self._pid:
            self._reap(0.0)

    def end(self) -> None:
        """Give the terminal back; takes a second at most, if the terminal takes nothing (Ctrl-S)."""
        if not self._pid:
            return
        os.close(self._pipe)
        self._pipe = -1
        if not self._reap(_FAREWELL_S):
            with contextlib.suppress(OSError):
                os.kill(self._pid, signal.SIGKILL)
            self._reap(_FAREWELL_S)

    def _reap(self, patience_s: float) -> bool:
        """Whether it has ended; clean up after it if that was not in order."""
        end = time.monotonic() + patience_s
        while True:
            try:
                pid, status = os.waitpid(self._pid, os.WNOHANG)
            except ChildProcessError:
                pid, status = self._pid, 0
            if pid:
                break
            if time.monotonic() >= end:
                return False
            time.sleep(0.005)
        self._pid = 0
        if status:
            _clean_up()
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
        return True


def _clean_up() -> None:
    """Give back a terminal whose line nobody keeps any more; one that takes nothing now is not waited for."""
    with contextlib.suppress(OSError):
        terminal = os.open("/dev/tty", os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.write(terminal, removal(os.get_terminal_size(terminal).lines).encode())
        finally:
            os.close(terminal)


# ---------------------------------------------------------------------- the process that keeps the line


def _keep(where: Places, environ: Mapping[str, str], alive: int, terminal: int) -> NoReturn:
    """The whole life of the line's process; never returns into the code of the one that it was forked from."""
    status = 1
    try:
        _let_go_of_all_but(alive, terminal)
        Keeper(where, environ, alive, terminal).run()
        status = 0
    finally:
        os._exit(status)


def _let_go_of_all_but(alive: int, terminal: int) -> None:
    """What was given to the command is not ours to hold open."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)
    kept = {0, 1, 2, alive, terminal}
    for number in [int(entry) for entry in os.listdir("/proc/self/fd")]:  # noqa: PTH208 - names, not paths
        if number not in kept:
            with contextlib.suppress(OSError):
                os.close(number)


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
    """Return the bytes that undo `BottomLine.show` in a terminal of `row` rows."""
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


class Keeper:
    """Draws the line now and then, until `alive` closes.

    Args:
        where: The places of the job.
        environ: Of the command's terminal.
        alive: Readable as soon as `eroica run` has ended or wants us to.
        terminal: Open for writing.
    """

    def __init__(self, where: Places, environ: Mapping[str, str], alive: int, terminal: int) -> None:
        self._where = where
        self._alive = alive
        self._line = BottomLine(terminal)
        self._colored = not environ.get("NO_COLOR")
        self._links = not environ.get("TERM", "").startswith(_WITHOUT_LINKS)
        self._due = 0.0
        self._held_until = 0.0
        self._drawn = ("", 0.0)

    def run(self) -> None:
        """Until the end. The terminal is given back on every way out."""
        woken = self._listen()
        try:
            while True:
                ready, _, _ = select.select([self._alive, woken], [], [], _LOOK_S)
                if self._alive in ready:
                    return
                if woken in ready:
                    self._heed(os.read(woken, 512))
                self._turn(time.monotonic())
        finally:
            self._line.remove()

    def _listen(self) -> int:
        """Signals become bytes of a pipe; those that are for the command are ignored."""
        for number in _NOT_OURS:
            signal.signal(number, signal.SIG_IGN)
        for number in (signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT):
            signal.signal(number, lambda *_: None)
        woken, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        return woken

    def _heed(self, signals: bytes) -> None:
        now = time.monotonic()
        if signal.SIGTSTP in signals:  # the shell comes next
            self._line.remove()
            self._held_until = now + _HELD_S
        elif signal.SIGCONT in signals:
            self._held_until = self._due = 0.0
        if signal.SIGWINCH in signals:  # at once, before the command writes over what has moved
            self._line.remove()
            self._held_until = max(self._held_until, now + _SETTLED_S)

    def _turn(self, now: float) -> None:
        if now < self._held_until or not self._line.may_be_shown():
            self._line.remove()
        elif now >= self._due or not self._line.shown:
            self._draw(now)
            self._due = time.monotonic() + max(_UPDATE_S, (time.monotonic() - now) / _MOST_CORE)

    def _draw(self, now: float) -> None:
        text = self._text()
        if not text:
            self._line.remove()
        elif text != self._drawn[0] or not self._line.shown or now - self._drawn[1] >= _AGAIN_S:
            self._line.show(text)
            self._drawn = (text, now)

    def _text(self) -> str:
        """The line now; empty before any worker trains, and where the collector is on another host."""
        import msgspec

        from eroica.report.footer import footer
        from eroica.wire.address import page_link, read_address
        from eroica.wire.messages import JobStatus
        from eroica.wire.places import read_private

        path = self._where.run / "status.json"
        try:
            status = msgspec.json.decode(read_private(path, _LARGEST_STATUS_BYTES), type=JobStatus)
            silence_s = max(0.0, time.time() - path.stat().st_mtime)
        except (OSError, ValueError, RecursionError):
            return ""
        if not status.workers:
            return ""
        address = read_address(self._where.run, self._where.host)
        short = "" if address is None else address.url.removeprefix("http://")
        pieces = footer(status, self._line.room, short, silence_s)
        return drawn(pieces, self._colored, page_link(address) if address is not None and self._links else "")
