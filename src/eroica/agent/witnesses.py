"""Ask what a process is doing: py-spy from outside, the worker's own thread, and the kernel.

An answer was written by a process that may be broken, or by somebody else under its name: types are validated, sizes
bounded, and files read only if they are regular ones of ours. Where there is no answer, an `UnavailableError` says why.

A look at all workers of the host takes 0.1 s for two, and `LOOK_S` at most: a worker that could not be asked by then is
in it with what is known.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import msgspec

from eroica.errors import InputError, UnavailableError
from eroica.hardware.cpu import Target, descendants, parse_schedstat, read_stat
from eroica.model.look import FlightState, HostLooks, ProcessLook, ThreadLook, WorkerLook
from eroica.model.worker import ProcessGroup, Worker
from eroica.trace.flight import flight_state
from eroica.trace.stacks import frame_text
from eroica.wire.places import read_private

_MAX_BYTES = 8_000_000
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


def find_py_spy() -> Path | None:
    """The py-spy of this environment: beside the interpreter, in its scripts directory, or on the path."""
    places = [Path(sys.executable).parent, Path(sysconfig.get_path("scripts"))]
    for place in places:
        if os.access(place / "py-spy", os.X_OK):
            return place / "py-spy"
    found = shutil.which("py-spy")
    return Path(found) if found else None


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
        if text and text != old:
            try:
                answer = _ANSWER.decode(text)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise UnavailableError(f"its answer cannot be read: {error}"[:_MAX_TEXT]) from error
            if answer.question == letter:
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


def _read_ours(path: Path) -> bytes:
    """A small regular file of ours, no link is followed; empty if there is none yet."""
    try:
        return read_private(path, _MAX_BYTES)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise UnavailableError(f"{path.name} cannot be read: {error.strerror or error}") from error


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
    fields = read_stat(pid, tid)
    if not fields:
        return "", None
    cpu_s = (int(fields[11]) + int(fields[12])) / _TICKS
    if tid is not None:
        with contextlib.suppress(OSError, ValueError):
            cpu_s = max(cpu_s, parse_schedstat(Path(f"/proc/{pid}/task/{tid}/schedstat").read_bytes())[0] * 1e-9)
    return fields[0].decode(), cpu_s


def with_kernel_view(pid: int, thread: ThreadLook) -> ThreadLook:
    """Return the thread with its state, its CPU time, and the bytes that it has moved through `read` and `write`.

    If the kernel permits it, the place in the kernel where the thread sleeps is added.
    """
    if thread.thread_id <= 0:
        return thread
    state, cpu_s = kernel_view(pid, thread.thread_id)
    place, channel, moved = Path(f"/proc/{pid}/task/{thread.thread_id}"), "", None
    with contextlib.suppress(OSError, ValueError):
        channel = (place / "wchan").read_text(encoding="utf-8").strip().removeprefix("0")[:100]
    with contextlib.suppress(OSError, ValueError, KeyError):
        counters = dict(line.split(": ") for line in (place / "io").read_text(encoding="ascii").splitlines())
        moved = int(counters["rchar"]) + int(counters["wchar"])
    return msgspec.structs.replace(thread, state=state, wait_channel=channel, cpu_s=cpu_s, io_bytes=moved)


# --- looks at all workers of the host ---


LOOK_S = 3.0
MOST_LOOKS_BYTES = 1_500_000
"""Of both looks together, encoded; beyond it children and threads that do not train are left out."""
_ANSWER_S = 1.0
_LEAST_S = 0.3
_AT_ONCE = 3
_MAX_CHILDREN = 8
_FEW_THREADS = 6
_STOPPED = "tT"


class Subject(NamedTuple):
    """A worker to look at, and what its beat says."""

    worker: Worker
    beat_file: Path
    training_thread_id: int
    iteration: int = 0
    events: int = 0
    silent_s: float = 0.0
    silent: bool = False


class Look:
    """One look at some workers. Blocks; call it in a thread.

    Args:
        number: Of the look; no two in a row are the same.
        binary: py-spy, default the one of this environment.
    """

    def __init__(self, number: int, binary: Path | None = None) -> None:
        self._number = number
        self._binary = binary or find_py_spy()
        self._deadline = time.monotonic() + LOOK_S

    def at(self, subjects: Sequence[Subject]) -> tuple[WorkerLook, ...]:
        """All of them, workers before children."""
        strangers = frozenset({os.getpid()})
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="look") as pool:
            workers = [pool.submit(self._worker, subject) for subject in subjects]
            children = [
                [
                    pool.submit(self._child, pid)
                    for pid in descendants(Target(one.worker.pid, one.training_thread_id), strangers)[:_MAX_CHILDREN]
                ]
                for one in subjects
            ]
            return tuple(
                msgspec.structs.replace(
                    worker.result(), children=tuple(look for child in of_worker if (look := child.result()).state)
                )
                for worker, of_worker in zip(workers, children, strict=True)
            )

    def _left_s(self) -> float:
        return max(0.0, self._deadline - time.monotonic())

    def _child(self, pid: int) -> ProcessLook:
        try:
            threads, source = self._spied(pid), "py-spy"
        except UnavailableError:
            threads, source = (), ""
        return _process(pid, threads, source)

    def _spied(self, pid: int) -> tuple[ThreadLook, ...]:
        if self._left_s() < _LEAST_S:
            raise UnavailableError("there was no time left for py-spy")
        return ask_py_spy(self._binary, pid, self._left_s())

    def _worker(self, subject: Subject) -> WorkerLook:
        pid, notes = subject.worker.pid, list[str]()
        told = self._told(subject, notes)
        threads, source = self._threads(subject, told, notes)
        if told is not None:
            threads = tuple(
                msgspec.structs.replace(thread, name=thread.name or told.names.get(thread.thread_id, ""))
                for thread in threads
            )
        return WorkerLook(
            worker=subject.worker,
            iteration=subject.iteration,
            events=subject.events,
            silent_s=subject.silent_s,
            silent=subject.silent,
            training_thread_id=subject.training_thread_id,
            process=_process(pid, threads, source),
            asked=subject.beat_file.with_suffix(".ask").exists(),
            answered=told is not None,
            groups=told.groups if told is not None else (),
            flight=told.flight if told is not None else None,
            notes=tuple(notes),
        )

    def _told(self, subject: Subject, notes: list[str]) -> Told | None:
        """Its own answer; a stopped process is not asked, for it would answer when nobody listens any more."""
        try:
            if kernel_view(subject.worker.pid)[0] in _STOPPED:
                raise UnavailableError("it is stopped")
            told = ask_worker(subject.beat_file, self._number, min(_ANSWER_S, self._left_s()))
        except UnavailableError as reason:
            notes.append(f"no answer: {reason}")
            return None
        notes += told.notes
        return told

    def _threads(self, subject: Subject, told: Told | None, notes: list[str]) -> tuple[tuple[ThreadLook, ...], str]:
        """Python's threads by the best witness there is."""
        try:
            return self._spied(subject.worker.pid), "py-spy"
        except UnavailableError as reason:
            notes.append(str(reason))
        return (told.threads, "answer") if told is not None and told.threads else ((), "")


def _process(pid: int, threads: tuple[ThreadLook, ...], source: str) -> ProcessLook:
    state, cpu_s = kernel_view(pid)
    seen = tuple(with_kernel_view(pid, thread) for thread in threads)
    return ProcessLook(pid=pid, state=state, threads=seen, source=source, cpu_s=cpu_s)


def take_looks(
    look_id: int,
    host: str,
    subjects: Callable[[], Sequence[Subject]],
    pause_s: float,
    binary: Path | None = None,
) -> HostLooks:
    """Look twice. Blocks for `pause_s`, or for as long as the first look takes and a second more.

    Args:
        look_id: The collector's number.
        host: This host.
        subjects: The living workers as their beats stand now; asked before the first look and after the second, so that
            an event between the two is seen.
        pause_s: From the beginning of the first look to that of the second.
        binary: py-spy, default the one of this environment.
    """
    began = time.monotonic()
    first = Look(2 * look_id, binary).at(subjects())
    time.sleep(max(min(1.0, pause_s), pause_s - (time.monotonic() - began)))
    second = Look(2 * look_id + 1, binary).at(subjects())
    now = {subject.worker.pid: subject for subject in subjects()}
    return fitting(
        HostLooks(
            look_id=look_id,
            host=host,
            first=first,
            second=tuple(_up_to_date(look, now[look.worker.pid]) for look in second if look.worker.pid in now),
        )
    )


def _up_to_date(look: WorkerLook, subject: Subject) -> WorkerLook:
    return msgspec.structs.replace(
        look,
        iteration=subject.iteration,
        events=subject.events,
        silent_s=subject.silent_s,
        silent=subject.silent,
    )


def fitting(looks: HostLooks, limit: int = MOST_LOOKS_BYTES) -> HostLooks:
    """Fit looks into a number of bytes: with bare children and few threads, then without process groups."""
    for narrow, note in (
        (_with_few_threads, "what children do and most threads were left out"),
        (lambda look: msgspec.structs.replace(look, flight=None, groups=()), "process groups were left out"),
    ):
        if len(msgspec.msgpack.encode(looks)) <= limit:
            break
        looks = msgspec.structs.replace(
            looks,
            first=tuple(map(narrow, looks.first)),
            second=tuple(map(narrow, looks.second)),
            notes=(*looks.notes, f"the looks are large: {note}"),
        )
    return looks


def _with_few_threads(look: WorkerLook) -> WorkerLook:
    """Keep the training thread, the one that holds the lock, and some others; of children that they live.

    A loop whose children are all dead is another matter.
    """
    threads = sorted(
        look.process.threads,
        key=lambda one: (one.thread_id != look.training_thread_id, not one.holds_interpreter_lock),
    )
    return msgspec.structs.replace(
        look,
        process=msgspec.structs.replace(look.process, threads=tuple(threads[:_FEW_THREADS])),
        children=tuple(msgspec.structs.replace(child, threads=(), source="") for child in look.children),
    )
