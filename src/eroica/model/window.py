"""One window: what was asked for, and what a worker handed over."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from eroica.errors import InputError
from eroica.model.pattern import Workload
from eroica.model.worker import ProcessGroup, Worker

WindowKind = Literal["iterations", "blocked", "trace"]
#: "seldom" stands only in run directories of version 0.1.0.
WindowPurpose = Literal[
    "slow", "expected", "seldom", "early", "manual", "baseline", "blocked", "trace", "communication"
]
#: Windows that workers asked for because the job got slower than it was.
SLOWER: tuple[WindowPurpose, ...] = ("slow",)
#: Iterations that last so many times those of the healthy job are slow, whoever asked for the window: transfers vary
#: from window to window, but not by this.
FAR_SLOWER = 1.5
#: Capturing makes iterations longer, those of tiny operators by half; so much longer, the job got slow meanwhile.
SLOWER_INSIDE = 2.0
#: Begins the note that a baseline window is not trusted; what follows is why.
REFUSED = "The baseline window is not trusted, the job may not have been healthy then: "
#: Windows that are compared with nothing: what would be is this very window, or looked slow itself.
ALONE: tuple[WindowPurpose, ...] = ("baseline", "early")


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """The same first and last iteration on every worker.

    Attributes:
        window_id: Counts from 1 in a job.
        purpose: Why it was opened; "baseline" windows are taken while the job is healthy and compared with later, and
            "early" ones after a baseline window that looked slow already.
        reason: One clause for people ("iterations have taken 34 % longer than at their best for 9 s").
            A "blocked" one has no iterations to capture: agents look at stacks and at the Flight Recorder instead, and
            both ends are the iteration at which the job stands. A "trace" one was recorded by somebody else's profiler
            and read from files: its ends are the iterations found in them. A "communication" one captured nothing:
            its verdict rests on records that are kept all the time.
        first_iteration: Id (number of completed optimizer iterations) at which the window opens.
        last_iteration: Id at which it closes, exclusive: `last - first` iterations are captured.
        baseline_iteration_s: Mean iteration of the job's best stretch before, None if unknown.
        current_iteration_s: Mean iteration when the window was asked for, None if unknown.
        since: Iteration from which on the job is slow, within a second; 0 = unknown.
    """

    window_id: int
    purpose: WindowPurpose
    reason: str
    first_iteration: int
    last_iteration: int
    kind: WindowKind = "iterations"
    baseline_iteration_s: float | None = None
    current_iteration_s: float | None = None
    since: int = 0


class UnderwayRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A window that workers were ordered to capture.

    Attributes:
        window: Which one.
        serial: Number of the order.
        ranks: Global ranks that take part, as (first, last) of each run of ranks that follow each other.
        asked_at: When it was opened, seconds since 1970.
        until: How long workers are waited for, seconds since 1970.
        resumed: A second collector has gone on with it. A third one does not: it may be what they died of.
    """

    window: Window
    serial: int
    ranks: tuple[tuple[int, int], ...]
    asked_at: float
    until: float
    resumed: bool = False


class ClockPair(msgspec.Struct, frozen=True, kw_only=True):
    """The same moment on two clocks of one host: wall clock and CLOCK_MONOTONIC, nanoseconds."""

    realtime_ns: int
    monotonic_ns: int


class GarbageCollection(msgspec.Struct, frozen=True, kw_only=True):
    """One run of Python's cyclic garbage collector inside the window (CLOCK_MONOTONIC, nanoseconds)."""

    start_ns: int
    end_ns: int
    generation: int
    thread_id: int


class FlightEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One collective as the Flight Recorder wrote it down when it was enqueued.

    Attributes:
        name: Profiling name, e.g. "gloo:all_reduce", "nccl:all_gather".
        group: Name of the process group.
        sequence: Sequence number inside the group (collective or point-to-point).
        is_p2p: Send or receive.
        created_ns: Wall clock when it was enqueued, nanoseconds.
        elements: Elements of the first input (0 if none).
        operation: Number of the operation in the group, sends and receives included (0 if unknown): gloo's own sends
            and receives leave no entry, but a gap here.
    """

    name: str
    group: str
    sequence: int
    is_p2p: bool = False
    created_ns: int = 0
    elements: int = 0
    operation: int = 0


class Capture(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker handed over for one window, beside its raw trace. Written by the worker as JSON.

    Attributes:
        worker: Who.
        window_id: Which window.
        first_iteration: First iteration really captured.
        last_iteration: Exclusive end of what was really captured.
        boundaries_ns: CLOCK_MONOTONIC at the start of each captured iteration and at the end of the last one;
            `last_iteration - first_iteration + 1` values.
        clocks: Pairs taken at start and stop; the trace is on the wall clock, samples are on CLOCK_MONOTONIC.
        training_thread_id: Kernel thread id in which the hooks fire.
        training_thread_ident: The same thread's `threading.get_ident()`.
        thread_names: Kernel thread id (as text) -> Python thread name.
        process_groups: Groups this worker is a member of.
        flight_path: The Flight Recorder's dump (JSON, as torch wrote it) taken after the window, empty if none.
        garbage_collections: Collector runs during the window.
        trace_path: The raw Kineto trace, absolute.
        stacks_path: Sampled stacks, empty if none.
        loader_pids: Data-loader children alive during the window.
        events: Events in the trace, an estimate.
        setup: How the worker is set up, see `WorkerPattern.setup`.
        workload: Parameters and batches, as far as the worker has counted them.
        stall_s: Seconds for which the training thread stood still because of start and stop.
        notes: What could not be captured and why.
    """

    worker: Worker
    window_id: int
    first_iteration: int
    last_iteration: int
    boundaries_ns: tuple[int, ...]
    clocks: tuple[ClockPair, ...]
    training_thread_id: int
    training_thread_ident: int
    thread_names: dict[str, str] = {}
    process_groups: tuple[ProcessGroup, ...] = ()
    flight_path: str = ""
    garbage_collections: tuple[GarbageCollection, ...] = ()
    trace_path: str = ""
    stacks_path: str = ""
    loader_pids: tuple[int, ...] = ()
    setup: dict[str, str] = {}
    workload: Workload = Workload()
    events: int = 0
    stall_s: float = 0.0
    notes: tuple[str, ...] = ()


# --- the facts of a worker's setup, told by itself and by its agent: short texts, bounded on the way in ---


SETUP_FILE = "setup.json"
"""What the agent found out, beside the worker's capture."""
MOST_FACTS = 64
MOST_BYTES = 3000
_LONGEST_NAME = 60
_LONGEST_VALUE = 80
_LARGEST_FILE = 64_000
_VARIABLE = "env:"


def read_setup(path: Path) -> dict[str, str]:
    """Read the facts that the agent wrote down.

    Raises:
        InputError: It cannot be read, or is no list of facts.
    """
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(_LARGEST_FILE), type=dict[str, str])
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{path} holds no facts: {error}") from error


def joined_setup(own: Mapping[str, str], outside: Mapping[str, str]) -> dict[str, str]:
    """Join the worker's own facts with those its agent saw; variables as the worker has them, not as it began."""
    has_looked = "python" in own
    seen = {name: value for name, value in outside.items() if not (has_looked and name.startswith(_VARIABLE))}
    return {**own, **seen}


def bounded_setup(facts: Mapping[str, str]) -> dict[str, str]:
    """Keep as many facts as fit into `MOST_BYTES`, each cut to its length, in order of name, variables last."""
    kept: dict[str, str] = {}
    left = MOST_BYTES
    for name in sorted(facts, key=lambda name: (name.startswith(_VARIABLE), name))[:MOST_FACTS]:
        value = "".join(letter for letter in facts[name] if letter.isprintable())[:_LONGEST_VALUE]
        left -= len(name.encode()) + len(value.encode()) + 4
        if len(name) > _LONGEST_NAME or left < 0:
            continue
        kept[name] = value
    return kept
