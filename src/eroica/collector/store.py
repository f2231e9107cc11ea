"""What the collector keeps on disk: the run directory.

    <run>/job.json                          the command, its settings, when it began
    <run>/collector.json                    where the collector listens and its token (0600); gone when it ends
    <run>/status.json                       the job right now, rewritten twice a second
    <run>/verdict.json                      the job's final verdict
    <run>/windows/<id>/window.json          what was asked for
    <run>/windows/<id>/verdict.json         this window's verdict
    <run>/windows/<id>/patterns/<rank>.pattern
    <run>/log/                              logs of collector, agents and workers

Files appear whole (written beside, then renamed), so a reader never sees half of one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from eroica.errors import InputError
from eroica.model.pattern import WorkerPattern
from eroica.model.verdict import Verdict
from eroica.model.window import Window
from eroica.wire.codec import decode_record, encode_record


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """Where a collector listens."""

    url: str
    token: str
    pid: int


def write_whole(path: Path, data: bytes) -> None:
    """Write a file that appears at once, readable by its owner only.

    Raises:
        OSError: The disk is full or the directory cannot be written; what was there before stays.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as file:
            file.write(data)
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise


def write_json(path: Path, record: msgspec.Struct | dict[str, object]) -> None:
    """A record as indented JSON."""
    write_whole(path, msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n")


class Store:
    """The run directory of one job."""

    def __init__(self, run: Path) -> None:
        self.run = run

    def window_directory(self, window_id: int) -> Path:
        """Where everything about one window lies."""
        return self.run / "windows" / str(window_id)

    def save_window(self, window: Window) -> None:
        """Keep what was asked for."""
        write_json(self.window_directory(window.window_id) / "window.json", window)

    def save_pattern(self, pattern: WorkerPattern, data: bytes) -> None:
        """Keep one worker's pattern as it came."""
        name = f"{pattern.worker.global_rank}.pattern"
        write_whole(self.window_directory(pattern.window_id) / "patterns" / name, data)

    def save_verdict(self, window_id: int, verdict: Verdict) -> None:
        """Keep one window's verdict."""
        write_whole(self.window_directory(window_id) / "verdict.json", verdict.to_json())

    def save_final(self, verdict: Verdict) -> None:
        """Keep the job's verdict."""
        write_whole(self.run / "verdict.json", verdict.to_json())

    def announce(self, address: Address) -> None:
        """Tell agents and commands of this user where the collector listens."""
        write_json(self.run / "collector.json", address)

    def sign_off(self) -> None:
        """The collector ends."""
        (self.run / "collector.json").unlink(missing_ok=True)


def read_address(run: Path) -> Address | None:
    """The collector of a run directory, None if there is none (yet, or any more)."""
    try:
        return msgspec.json.decode((run / "collector.json").read_bytes(), type=Address)
    except (OSError, msgspec.DecodeError, msgspec.ValidationError):
        return None


def load_patterns(window_directory: Path) -> tuple[Window, tuple[WorkerPattern, ...], tuple[str, ...]]:
    """A saved window and its patterns.

    Returns:
        The window, the readable patterns in order of global rank, and one note per unreadable file.

    Raises:
        InputError: There is no window here.
    """
    try:
        window = msgspec.json.decode((window_directory / "window.json").read_bytes(), type=Window)
    except (OSError, msgspec.DecodeError, msgspec.ValidationError) as error:
        raise InputError(f"{window_directory} is no saved window: {error}") from error
    patterns, notes = [], []
    for path in sorted((window_directory / "patterns").glob("*.pattern")):
        try:
            patterns.append(decode_record(path.read_bytes(), WorkerPattern))
        except (OSError, InputError) as error:
            notes.append(f"{path.name} was left out: {error}")
    patterns.sort(key=lambda pattern: pattern.worker.global_rank)
    return window, tuple(patterns), tuple(notes)


def save_patterns(window_directory: Path, window: Window, patterns: Iterable[WorkerPattern]) -> None:
    """Write a window directory that `load_patterns` reads."""
    store = Store(window_directory.parent.parent)
    write_json(window_directory / "window.json", window)
    for pattern in patterns:
        store.save_pattern(pattern, encode_record(pattern))
