"""One trace file boiled down: what travels from the process that read it to the one that compares."""

from __future__ import annotations

import msgspec

from eroica.model.pattern import WorkerPattern


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """What the recording of a worker holds, to tell whether it can be compared with others.

    Attributes:
        launches: Calls that put one kernel into a stream, in each iteration that counts.
        kernels: Kernels of the device that began in it.
        operators: Operators of the host.
        communication: Kernels, and operations of the host, that are communication.
        all_launches: Such calls in the whole trace, and
        all_kernels: kernels in it: at the edges of a window the device lags behind.
        launches_many: Calls that put many kernels at once (graphs) were recorded: calls do not tell how many.
        damage: What makes the file incomplete, a sentence each.
        unknown: What of the device's work nothing is known of, a clause; "" if all of it was recorded and read.
    """

    launches: tuple[int, ...] = ()
    kernels: tuple[int, ...] = ()
    operators: tuple[int, ...] = ()
    communication: tuple[int, ...] = ()
    all_launches: int = 0
    all_kernels: int = 0
    launches_many: bool = False
    damage: tuple[str, ...] = ()
    unknown: str = ""


Range = tuple[int, int]
"""First and last iteration, both included."""

#: A worker's note where a recording of a job on an accelerator shows nothing of that.
NO_KERNELS = "the job used an accelerator, but the trace holds no kernels of it: operators stand for their launches"


class TraceSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What one trace file holds.

    Attributes:
        path: The file.
        process: Which of the processes in it, -1 where it holds one.
        rank: Global rank as the trace itself says, -1 if it does not.
        world_size: Workers of the job as the trace says, 0 if it does not.
        job: Name or id of the job as the trace says, "" if it does not.
        host: Host name as the trace says, "" if it does not.
        start_ns: First boundary of its iterations by its own wall clock, nanoseconds; 0 if there are none.
        end_ns: Last boundary.
        found_by: How its iterations were found: "profiler steps", "optimizer steps", "loader", "marks", or "span" if
            there are none and the whole trace counts as one.
        steps: First and last number of the profiler's steps that count, (-1, -1) where they have no numbers.
        pattern: The worker's behavior; None where the file could not be used.
        purpose: "training" or "inference", as far as the events tell; "" if they do not.
        startup: What of the window is start-up, once per process: names with seconds, longest first.
        startup_s: Seconds of it in all.
        held: What of the device and of communication it holds.
        events: Events read.
        error: Why there is no pattern, "" if there is one.
    """

    path: str
    process: int = -1
    rank: int = -1
    world_size: int = 0
    job: str = ""
    host: str = ""
    start_ns: int = 0
    end_ns: int = 0
    found_by: str = "span"
    steps: tuple[int, int] = (-1, -1)
    pattern: WorkerPattern | None = None
    purpose: str = ""
    startup: tuple[tuple[str, float], ...] = ()
    startup_s: float = 0.0
    held: Held = Held()
    events: int = 0
    error: str = ""
