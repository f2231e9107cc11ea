"""What an agent sees of a worker that no longer moves: stacks, kernel state, collectives; and of one that died.

No time in these records is compared between hosts: ages are durations, measured where they were seen.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from eroica.model.window import FlightEntry
from eroica.model.worker import ProcessGroup, Worker

EndKind = Literal["signed-off", "signal", "exit", "unknown"]


class ThreadLook(msgspec.Struct, frozen=True, kw_only=True):
    """One thread that Python knows.

    Attributes:
        name: Python's name of it.
        thread_id: Kernel thread id.
        stack: Outermost frame first, each "function (file.py:line)" as in pattern keys; the line is the one executed.
        holds_interpreter_lock: It owns the interpreter lock.
        state: Kernel's letter: R running, S sleeping, D uninterruptible, T stopped; empty if unreadable.
        wait_channel: Kernel function it sleeps in, empty if unknown.
        cpu_s: CPU time it has used since it began; None if unreadable.
        io_bytes: What it has read and written since it began, sockets' own calls left out; None if unreadable.
    """

    name: str
    thread_id: int
    stack: tuple[str, ...] = ()
    holds_interpreter_lock: bool = False
    state: str = ""
    wait_channel: str = ""
    cpu_s: float | None = None
    io_bytes: int | None = None


class ProcessLook(msgspec.Struct, frozen=True, kw_only=True):
    """One process: a worker or one of its data-loader children.

    Attributes:
        pid: Process id on its host.
        state: Kernel's letter for the process; "T" is stopped.
        threads: What py-spy or the worker's own answer told; empty if nobody could.
        source: Who told: "py-spy", "answer", or "" for nobody.
        cpu_s: CPU time of all its threads so far.
    """

    pid: int
    state: str = ""
    threads: tuple[ThreadLook, ...] = ()
    source: str = ""
    cpu_s: float | None = None


class GroupProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a worker is in one process group, by collective sequence number; -1 if it never got there."""

    name: str
    enqueued: int = -1
    completed: int = -1


class FlightState(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker's Flight Recorder knows right now.

    Attributes:
        progress: Per process group.
        open: Entries that have not completed, oldest first.
        recent: The last completed ones of each group, oldest first; for comparing operation and size by sequence.
        mixed: Groups in which it also sends and receives, where this was looked for (in dumps): torch's counters count
            those there, too, and cannot be compared between members.
    """

    progress: tuple[GroupProgress, ...] = ()
    open: tuple[FlightEntry, ...] = ()
    recent: tuple[FlightEntry, ...] = ()
    mixed: tuple[str, ...] = ()


class WorkerLook(msgspec.Struct, frozen=True, kw_only=True):
    """One look at one living worker.

    Attributes:
        worker: Who.
        iteration: Completed iterations.
        events: Hooked events so far; equal in two looks = no progress.
        silent_s: Seconds since its last event.
        silent: That is longer than its limit.
        training_thread_id: Kernel id of the thread in which the hooks fire.
        process: Its process.
        children: Its data-loader children.
        asked: There was a thread in the worker to ask; without one, no answer says nothing.
        answered: That thread could answer, so the interpreter lock is not held for good.
        groups: Process groups, from the answer.
        flight: From the answer; None without one.
        notes: What could not be seen and why.
    """

    worker: Worker
    iteration: int = 0
    events: int = 0
    silent_s: float = 0.0
    silent: bool = False
    training_thread_id: int = 0
    process: ProcessLook
    children: tuple[ProcessLook, ...] = ()
    asked: bool = True
    answered: bool = False
    groups: tuple[ProcessGroup, ...] = ()
    flight: FlightState | None = None
    notes: tuple[str, ...] = ()


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker's process ended.

    Attributes:
        kind: "signed-off": Python ended in order (also after an exception); "signal" and "exit": what the kernel says;
            "unknown": it vanished, and its parent took the status before anybody could read it.
        number: Signal or exit status.
        out_of_memory: The kernel killed for memory in its cgroup at that moment.
        ago_s: Seconds since it ended, when this was reported.
    """

    kind: EndKind = "unknown"
    number: int = 0
    out_of_memory: bool = False
    ago_s: float = 0.0


class Death(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that ended without signing off, as the collector saw the job around it.

    Attributes:
        worker: Who.
        iteration: Iterations it had completed.
        ending: How it ended.
        lived_on_s: How long other workers were alive after it, at least; 0 if all vanished together.
    """

    worker: Worker
    iteration: int
    ending: Ending
    lived_on_s: float = 0.0


class HostLooks(msgspec.Struct, frozen=True, kw_only=True):
    """What one agent saw of its workers, twice.

    Attributes:
        look_id: The collector's number of this look.
        host: The agent's host.
        first: One per living worker.
        second: The same two seconds later; a worker that ended in between is missing.
        notes: What went wrong.
    """

    look_id: int
    host: str
    first: tuple[WorkerLook, ...] = ()
    second: tuple[WorkerLook, ...] = ()
    notes: tuple[str, ...] = ()


class Blockage(msgspec.Struct, frozen=True, kw_only=True):
    """Everything known about a job that stands still: the input of `eroica.diagnosis.blocked`.

    Attributes:
        look_id: Number of the look, the window id under which it is kept.
        reason: One clause with numbers: why it was looked at.
        looks: Of all hosts that answered.
        deaths: Workers that are gone without having signed off, first death first.
        left: Workers that signed off (Python ended in order, also after an exception) while others live on.
        world_size: Workers of the job.
        baseline_iteration_s: Best mean iteration before, None if unknown.
        source: Where it comes from: agents that looked at processes, or Flight Recorder dumps in files, which know
            neither stacks nor processes nor how long anything lasted.
    """

    look_id: int
    reason: str
    looks: tuple[HostLooks, ...] = ()
    deaths: tuple[Death, ...] = ()
    left: tuple[Worker, ...] = ()
    world_size: int = 0
    baseline_iteration_s: float | None = None
    source: Literal["looks", "dumps"] = "looks"
