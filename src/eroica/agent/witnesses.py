"""Ask what a process is doing: py-spy from outside, the worker's own thread, and the kernel.

An answer was written by a process that may be broken, or by somebody else under its name: types are validated, sizes
bounded, and files read only if they are regular ones of ours. Where there is no answer, an `UnavailableError` says why.
"""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from eroica.errors import InputError, UnavailableError
from eroica.hardware.cpu import parse_schedstat
from eroica.model.look import FlightState, ThreadLook
from eroica.model.worker import ProcessGroup
from eroica.trace.flight import flight_state
from eroica.trace.stacks import frame_text
from eroica.wire.places import read_private

_MAX_BYTES = 8_000_000
_MOST_TOLD = 65_536
_MAX_THREADS, _MAX_FRAMES, _MAX_TEXT, _MAX_GROUPS, _MAX_NOTES = 128, 128, 300, 256, 10
_LOOK_AGAIN_S = 0.01
_TICKS = os.sysconf("SC_CLK_TCK")
_OUR_THREADS = "eroica/worker/pristine.py"  # file of their outermost function
_QUESTIONS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"  # capitals ask for stacks, too

Frame = tuple[str, str, int]


class Told(NamedTuple):
    """Answer of the worker's own thread."""

    threads: tuple[ThreadLook, ...]
    names: dict[int, str]
    groups: tuple[ProcessGroup, ...]
    flight: FlightState | None
    notes: tuple[str, ...]


# ---------------------------------------------------------------------- py-spy


class _SpiedFrame(msgspec.Struct):
    name: str
    filename: str = ""
    line: int = 0


class _SpiedThread(msgspec.Struct):
    thread_name: str | None = None
    os_thread_id: int | None = None
    owns_gil: bool = False
    frames: list[_SpiedFrame] = []


_SPIED = msgspec.json.Decoder(list[_SpiedThread])


def ask_py_spy(binary: Path | None, pid: int, timeout_s: float) -> tuple[ThreadLook, ...]:
    """Read Python stacks of all threads, and the owner of the interpreter lock; the process is not stopped. 40 ms.

    Raises:
        UnavailableError: py-spy is missing, may not look, takes too long or says something else.
    """
    if binary is None:
        raise UnavailableError("py-spy is not installed")
    command = [str(binary), "dump", "--json", "--nonblocking", "--pid", str(pid)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=timeout_s, check=False, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"py-spy did not answer within {timeout_s:.1f} s") from None
    except OSError as error:
        raise UnavailableError(f"py-spy cannot be started: {error.strerror}") from error
    if done.returncode:
        raise UnavailableError(py_spy_reason(done.stderr))
    try:
        threads = _SPIED.decode(done.stdout[:_MAX_BYTES])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnavailableError(f"py-spy said something strange: {error}"[:_MAX_TEXT]) from error
    return tuple(
        ThreadLook(
            name=(thread.thread_name or "")[:_MAX_TEXT],
            thread_id=max(0, thread.os_thread_id or 0),
            stack=stack_of([(one.name, one.filename, one.line) for one in reversed(thread.frames)]),
            holds_interpreter_lock=thread.owns_gil,
        )
        for thread in threads[:_MAX_THREADS]
        if not _is_ours(thread.frames[-1].filename if thread.frames else "")
    )


def py_spy_reason(stderr: bytes) -> str:
    """Return the line of py-spy's error output that says what is wrong."""
    lines = [line.strip() for line in stderr.decode(errors="replace").splitlines() if line.strip()]
    named = (line for word in ("ermi", "Reason", "Error") for line in lines if word in line)
    return f"py-spy: {next(named, lines[0] if lines else 'it failed without a word')}"[:_MAX_TEXT]


def _is_ours(outermost_file: str) -> bool:
    return outermost_file.endswith(_OUR_THREADS)


def stack_of(frames: Sequence[Frame]) -> tuple[str, ...]:
    """Frames, outermost first, as they read in pattern keys; of a very deep stack the inner ones."""
    shown = ((name[:_MAX_TEXT], file[:_MAX_TEXT], line) for name, file, line in frames[-_MAX_FRAMES:])
    texts = (frame_text(name, file, line if line > 0 else None) for name, file, line in shown)
    return tuple("".join(letter if letter.isprintable() else "?" for letter in text) for text in texts)


# ---------------------------------------------------------------------- the worker's own thread


class _AnsweredThread(msgspec.Struct):
    thread_id: int = 0
    name: str = ""
    frames: list[Frame] = []


class _Answer(msgspec.Struct):
    question: str
    thread_names: dict[str, str] = {}
    process_groups: list[ProcessGroup] = []
    flight: msgspec.Raw = msgspec.Raw(b"null")
    threads: list[_AnsweredThread] = []
    notes: list[str] = []


_ANSWER = msgspec.json.Decoder(_Answer)


def ask_worker(beat_file: Path, number: int, timeout_s: float) -> Told:
    """Ask the thread that sleeps in the worker; it needs the interpreter lock.

    Args:
        beat_file: The worker's; FIFO and answer lie beside it.
        number: Of the question; the answer repeats it.
        timeout_s: Longest wait.

    Raises:
        UnavailableError: Nobody listens, no answer came in time, or it is none.
    """
    letter = _QUESTIONS[number % len(_QUESTIONS)]
    place = beat_file.with_suffix(".answer")
    old = _read_ours(place)
    put_question(beat_file, letter)
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        text = _read_ours(place)
        answer = _decode_answer(text) if text and text != old else None
        if answer is not None and answer.question == letter:
            return _told(answer)
        time.sleep(_LOOK_AGAIN_S)
    raise UnavailableError(f"it did not answer within {timeout_s:g} s")


def put_question(beat_file: Path, letter: str) -> None:
    """Put one question to the thread that sleeps in the worker; never waits.

    Raises:
        UnavailableError: Nobody listens.
    """
    fifo = beat_file.with_suffix(".ask")
    try:
        handle = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise UnavailableError(f"nobody in it listens to questions ({error.strerror})") from error
    try:
        facts = os.fstat(handle)
        if not stat.S_ISFIFO(facts.st_mode) or facts.st_uid != os.getuid():
            raise UnavailableError(f"{fifo.name} is not our FIFO")
        os.write(handle, letter.encode())
    except OSError as error:
        raise UnavailableError(f"it takes no questions ({error.strerror})") from error
    finally:
        os.close(handle)


def read_answer(beat_file: Path) -> bytes:
    """Read the worker's last answer; empty if it never gave one.

    Raises:
        UnavailableError: The file is not ours, or too large.
    """
    return _read_ours(beat_file.with_suffix(".answer"))


def open_told(beat_file: Path) -> int:
    """The FIFO into which the worker writes its counters, open for reading without waiting.

    Raises:
        UnavailableError: There is none of ours.
    """
    path = beat_file.with_suffix(".told")
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise UnavailableError(f"it tells no counters ({error.strerror})") from error
    facts = os.fstat(handle)
    if not stat.S_ISFIFO(facts.st_mode) or facts.st_uid != os.getuid():
        os.close(handle)
        raise UnavailableError(f"{path.name} is not our FIFO")
    return handle


def read_told(handle: int) -> bytes:
    """Read the counters that the worker has written since the last call, without waiting; empty if there are none."""
    try:
        return os.read(handle, _MOST_TOLD)
    except OSError:
        return b""


def _read_ours(path: Path) -> bytes:
    """A small regular file of ours, no link is followed; empty if there is none yet."""
    try:
        return read_private(path, _MAX_BYTES)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise UnavailableError(f"{path.name} cannot be read: {error.strerror or error}") from error


def _decode_answer(data: bytes) -> _Answer:
    try:
        return _ANSWER.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnavailableError(f"its answer cannot be read: {error}"[:_MAX_TEXT]) from error


def _told(answer: _Answer) -> Told:
    notes = [note[:_MAX_TEXT] for note in answer.notes[:_MAX_NOTES]]
    flight = None
    if bytes(answer.flight) != b"null":
        try:
            flight = flight_state(answer.flight)
            if not (flight.progress or flight.open or flight.recent):
                flight = None  # nobody records in it: it must not look like "has entered nothing"
                notes.append("its Flight Recorder is empty")
        except InputError as error:
            notes.append(str(error)[:_MAX_TEXT])
    threads = [
        ThreadLook(name=one.name[:_MAX_TEXT], thread_id=max(0, one.thread_id), stack=stack_of(one.frames))
        for one in answer.threads[:_MAX_THREADS]
    ]
    names = {int(tid): name[:_MAX_TEXT] for tid, name in answer.thread_names.items() if tid.isdigit() and len(tid) < 12}
    return Told(tuple(threads), names, tuple(answer.process_groups[:_MAX_GROUPS]), flight, tuple(notes))


# ---------------------------------------------------------------------- the kernel


def kernel_view(pid: int, tid: int | None = None) -> tuple[str, float | None]:
    """State letter and CPU seconds of a process, or of one of its threads; ("", None) once it is gone."""
    place = Path(f"/proc/{pid}") if tid is None else Path(f"/proc/{pid}/task/{tid}")
    try:
        fields = (place / "stat").read_bytes().rpartition(b")")[2].split()
        state, cpu_s = fields[0].decode(), (int(fields[11]) + int(fields[12])) / _TICKS
    except (OSError, LookupError, ValueError):
        return "", None
    if tid is not None:
        with contextlib.suppress(OSError, ValueError):
            cpu_s = max(cpu_s, parse_schedstat((place / "schedstat").read_bytes())[0] * 1e-9)
    return state, cpu_s


def wait_channel(pid: int, tid: int) -> str:
    """Kernel function in which a thread sleeps; empty if it runs, or if we may not know."""
    try:
        text = Path(f"/proc/{pid}/task/{tid}/wchan").read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return ""
    return "" if text == "0" else text[:100]


def io_bytes(pid: int, tid: int) -> int | None:
    """Bytes that a thread has read and written through `read` and `write`; None if we may not know."""
    try:
        lines = Path(f"/proc/{pid}/task/{tid}/io").read_text(encoding="ascii").splitlines()
        counters = dict(line.split(": ") for line in lines)
        return int(counters["rchar"]) + int(counters["wchar"])
    except (OSError, ValueError, KeyError):
        return None


def with_kernel_view(pid: int, thread: ThreadLook) -> ThreadLook:
    """Return the thread with its state, wait channel, CPU time and bytes moved."""
    if thread.thread_id <= 0:
        return thread
    state, cpu_s = kernel_view(pid, thread.thread_id)
    channel, moved = wait_channel(pid, thread.thread_id), io_bytes(pid, thread.thread_id)
    return msgspec.structs.replace(thread, state=state, wait_channel=channel, cpu_s=cpu_s, io_bytes=moved)
