"""Two looks at all living workers of this host: what each thread stands in, what the kernel and the collectives say.

A look takes 0.1 s for two workers, and `LOOK_S` at most: who could not be asked by then is in it with what is known.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import msgspec

from eroica.agent.stacks import find_py_spy
from eroica.agent.witnesses import Told, ask_py_spy, ask_worker, kernel_view, with_kernel_view
from eroica.errors import UnavailableError
from eroica.hardware.cpu import Target, descendants
from eroica.model.look import HostLooks, ProcessLook, ThreadLook, WorkerLook
from eroica.model.worker import Worker

LOOK_S = 3.0
MAX_BYTES = 1_500_000
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
        longest_s: It ends by then.
    """

    def __init__(self, number: int, binary: Path | None = None, longest_s: float = LOOK_S) -> None:
        self._number = number
        self._binary = binary or find_py_spy()
        self._deadline = time.monotonic() + longest_s

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


def fitting(looks: HostLooks, limit: int = MAX_BYTES) -> HostLooks:
    """Fit looks into a number of bytes: with bare children, then with few threads, then with one."""
    for narrow, note in (
        (_with_bare_children, "what children do was left out"),
        (lambda look: _with_few_threads(look, _FEW_THREADS), "most threads were left out"),
        (lambda look: _with_few_threads(look, 1), "all threads but the training one were left out"),
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


def _with_bare_children(look: WorkerLook) -> WorkerLook:
    """Strip children to the fact that they live: a loop whose children are all dead is another matter."""
    return msgspec.structs.replace(
        look, children=tuple(msgspec.structs.replace(child, threads=(), source="") for child in look.children)
    )


def _with_few_threads(look: WorkerLook, count: int) -> WorkerLook:
    """Keep the training thread, the thread that holds the lock, and the first of the others."""
    threads = sorted(
        look.process.threads,
        key=lambda one: (one.thread_id != look.training_thread_id, not one.holds_interpreter_lock),
    )
    process = msgspec.structs.replace(look.process, threads=tuple(threads[:count]))
    return msgspec.structs.replace(_with_bare_children(look), process=process)
