"""A thread that sleeps until the agent asks what this process is waiting for.

It waits for a FIFO, `<pid>.ask` in the runtime directory, and answers a question, one letter, with
`<pid>.answer`. The answer holds process groups, the open and recent entries of the Flight Recorder, thread names, and
the Python stacks of all threads. Until the agent asks, the thread costs nothing: no wake-up, no lock, no frame. It
takes no signal from the user's threads, and answers less than five times a second, whatever is written into the FIFO.

A process of a single thread gets none: forking it would draw a warning from Python 3.12 on that it does not draw
without us. A process with a process group always has several.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from eroica.wire.places import write_private
from eroica.worker import surroundings
from eroica.worker.errors_of_users import UNFAMILIAR
from eroica.worker.pristine import (
    Listener,
    get_ident,
    monotonic_ns,
    posix,
    python_threads,
    runs_ours,
)

Said = TypeVar("Said")

_PAUSE_S = 0.2
_ALONE = 2  # threads of a process that has only the training's and the one that asks
_STOP_PATIENCE_S = 1.0
_READ_BYTES = 65_536  # all that a FIFO holds
_QUESTIONS = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ")
_MAX_THREADS, _MAX_FRAMES, _MAX_TEXT = 128, 200, 300
_RECENT, _MAX_OPEN, _MAX_GROUPS = 32, 256, 256
_ENTRY_FACTS = (
    "profiling_name", "process_group", "pg_id", "collective_seq_id", "p2p_seq_id", "op_id", "is_p2p",
    "time_created_ns", "state", "retired",
)  # fmt: skip


def has_other_threads() -> bool:
    """This process has several threads already, but for the one that asks; one more changes nothing for its forks."""
    try:
        return len(os.listdir("/proc/self/task")) > _ALONE  # noqa: PTH208 - names only
    except OSError:
        return False


class Answering:
    """The thread and its FIFO.

    Args:
        directory: The runtime directory.
        run: Runs our code behind the guest's border.
    """

    def __init__(self, directory: Path, run: Callable[..., Any]) -> None:
        self._ask = directory / f"{os.getpid()}.ask"
        self._answer = directory / f"{os.getpid()}.answer"
        self._run = run
        self._reading = self._writing = -1
        self._fifo = (0, 0)
        self._thread: Listener | None = None

    def start(self) -> bool:
        """Begin to listen; False where there can be no FIFO or no thread, which costs a blocked job its answer only."""
        try:
            self._open()
            self._thread = Listener(self._reading, self._live, self._close, _PAUSE_S)
            self._thread.start()
        except (OSError, RuntimeError):
            self._thread = None
            self._close()
            self._remove()
            return False
        return True

    def stop(self) -> None:
        """End the thread; waits a second at most: tearing the process down under an answer could crash it."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        thread.ask_to_end()
        with contextlib.suppress(OSError):  # full: then it is awake anyway
            if self._is_ours(self._writing):
                posix.write(self._writing, b"\n")
        thread.join(_STOP_PATIENCE_S)
        self._remove()

    def abandon(self) -> None:
        """Close the inherited files in a forked child: the thread is the parent's."""
        self._close()

    def _open(self) -> None:
        self._ask.unlink(missing_ok=True)
        posix.mkfifo(self._ask, 0o600)
        flags = os.O_NOFOLLOW | os.O_CLOEXEC
        # a writer of our own, so that no read ends for want of one
        self._reading = posix.open(self._ask, os.O_RDWR | flags)
        facts = posix.fstat(self._reading)
        if not stat.S_ISFIFO(facts.st_mode) or facts.st_uid != os.getuid():
            raise PermissionError(f"{self._ask} is not our FIFO")
        self._fifo = (facts.st_dev, facts.st_ino)
        self._writing = posix.open(self._ask, os.O_WRONLY | os.O_NONBLOCK | flags)

    def _is_ours(self, handle: int) -> bool:
        """The number still means our FIFO: a program that closes all files may have opened another one under it."""
        try:
            facts = posix.fstat(handle)
        except OSError:
            return False
        return (facts.st_dev, facts.st_ino) == self._fifo

    def _close(self) -> None:
        for handle in (self._reading, self._writing):
            if handle >= 0 and self._is_ours(handle):
                posix.close(handle)
        self._reading = self._writing = -1

    def _remove(self) -> None:
        for path in (self._ask, self._answer):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)

    # ------------------------------------------------------------------ in the thread

    def _live(self) -> bool:
        """Answer what is asked; return whether to listen on."""
        return self._run(self._hear) is True

    def _hear(self) -> bool:
        if not self._is_ours(self._reading):
            return False
        try:
            asked = posix.read(self._reading, _READ_BYTES)
        except OSError:
            return False
        self._run(self._reply, next((letter for letter in reversed(asked) if letter in _QUESTIONS), 0))
        return self._is_ours(self._reading)

    def _reply(self, question: int) -> None:
        """Write the answer, whole; whatever fails costs this answer and nothing else."""
        if not question:
            return
        try:
            text = json.dumps(answer(question)).encode("utf-8", "replace")
        except Exception as error:  # noqa: BLE001 - the agent learns why; the training's hooks go on
            text = json.dumps({"question": chr(question), "notes": [f"no answer: {error!r}"[:_MAX_TEXT]]}).encode()
        draft = self._answer.with_name(f".{self._answer.name}.draft")
        with contextlib.suppress(OSError):
            write_private(draft, text)
            draft.replace(self._answer)


def answer(question: int) -> dict[str, Any]:
    """Collect what this process is waiting for; `eroica.agent.witnesses` reads it.

    Args:
        question: The letter that was asked, handed back so that nobody takes an old answer for a new one.
    """
    notes: list[str] = []
    told: dict[str, Any] = {"question": chr(question), "monotonic_ns": monotonic_ns()}
    told["thread_names"] = _ask(notes, "thread names", surroundings.thread_names) or {}
    told["process_groups"] = (_ask(notes, "process groups", surroundings.process_groups) or [])[:_MAX_GROUPS]
    told["flight"] = _ask(notes, "flight recorder", _flight)
    told["threads"] = _ask(notes, "stacks", stacks) or []
    return {**told, "notes": notes}


def _ask(notes: list[str], what: str, question: Callable[[], Said]) -> Said | None:
    try:
        return question()
    except UNFAMILIAR as error:
        notes.append(f"no {what}: {type(error).__name__}: {error}"[:_MAX_TEXT])
        return None


def _flight() -> dict[str, Any] | None:
    """NCCL's recorder where it has seen anything, else the other: numbers of two recorders must not be mixed."""
    nccl = digest(surroundings.nccl_flight_dump())
    return nccl if nccl is not None and nccl["entries"] else digest(surroundings.flight_dump())


def digest(dump: bytes) -> dict[str, Any] | None:
    """Extract from a Flight Recorder dump the counters, the open entries, and the last 32 of each group.

    Args:
        dump: As torch wrote it; empty for none.
    """
    if not dump:
        return None
    record = json.loads(dump)
    entries = list(enumerate(record.get("entries", ())))
    still_open = [number for number, one in entries if not (one.get("retired") or one.get("state") == "completed")]
    kept, seen = set(still_open[:_MAX_OPEN]), dict[str, int]()
    for number, entry in reversed(entries):
        group = str(entry.get("process_group"))
        seen[group] = seen.get(group, 0) + 1
        if seen[group] <= _RECENT:
            kept.add(number)
    return {
        "pg_status": record.get("pg_status", {}),
        "entries": [_short(entry) for number, entry in entries if number in kept],
    }


def _short(entry: dict[str, Any]) -> dict[str, Any]:
    facts = {name: entry[name] for name in _ENTRY_FACTS if name in entry}
    return {**facts, "input_sizes": entry.get("input_sizes", [])[:1]}


def stacks() -> list[dict[str, Any]]:
    """Every thread with its frames (function, file, line executed), outermost first; our own threads left out."""
    names = {thread.ident: thread for thread in python_threads()}
    frames = sys._current_frames()
    frames.pop(get_ident(), None)
    told = []
    for ident, frame in list(frames.items())[:_MAX_THREADS]:
        if runs_ours(frame):
            continue
        thread = names.get(ident)
        name, tid = (thread.name, thread.native_id) if thread is not None else ("", 0)
        told.append({"ident": ident, "thread_id": tid or 0, "name": name[:_MAX_TEXT], "frames": _frames(frame)})
    frames.clear()
    return told


def _frames(frame: FrameType | None) -> list[tuple[str, str, int]]:
    found: list[tuple[str, str, int]] = []
    while frame is not None and len(found) < _MAX_FRAMES:
        code = frame.f_code
        name = getattr(code, "co_qualname", code.co_name)
        found.append((name[:_MAX_TEXT], code.co_filename[:_MAX_TEXT], frame.f_lineno or 0))
        frame = frame.f_back
    found.reverse()
    return found
