"""Turn a trace of another profiler into a pattern: events tell here what a `Capture` says online.

The trace tells what nobody tells about it: which thread trains, where iterations begin, who is in which process group.
After that the way is the online one.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.errors import InputError
from eroica.model.pattern import WorkerPattern
from eroica.model.trace import NO_KERNELS, Held, Range, TraceSummary
from eroica.model.window import Capture, ClockPair, GarbageCollection
from eroica.model.worker import ProcessGroup, Worker
from eroica.settings import Settings
from eroica.summarize.collectives import is_host_collective
from eroica.summarize.iterations import Iterations, between, find_iterations
from eroica.summarize.pattern import summarize_worker
from eroica.summarize.phases import find_purpose
from eroica.summarize.staging import Staged, stage_window
from eroica.trace.kineto import everybody
from eroica.trace.table import GRAPH_LAUNCHES, LAUNCHES, Category, EventTable

_COLLECTOR = ("Python GC", "Garbage collection", "garbage collection", "gc.collect", "<built-in function collect>")


def summarize_recording(
    events: EventTable, path: str, rank_hint: int, settings: Settings, only: Range | None = None
) -> TraceSummary:
    """Boil one trace file down.

    Args:
        events: What was read of it.
        path: Its name, for messages.
        rank_hint: Global rank that its name states, -1 if it does not; the trace's own word comes first.
        settings: All tunables.
        only: First and last iteration that count; None for all.

    Returns:
        The summary, with a pattern.

    Raises:
        InputError: The trace holds nothing that could be judged.
    """
    counted = (events.category != Category.OTHER) & (events.start_ns < events.end_ns)
    if not counted.any():
        if events.header.writer:
            raise InputError(
                f"{path} is a trace, but not PyTorch's: {events.header.writer} wrote it; name the .json that "
                "torch.profiler exported"
            )
        raise InputError(f"{path} holds no events of operators, kernels or Python; profile with activities switched on")
    found = find_iterations(events, settings.max_window_iterations)
    if only is not None:
        found = between(found, *only)
    header = events.header
    rank = header.rank if header.rank >= 0 else rank_hint
    pattern = _pattern(events, found, rank, settings)
    startup = found.startup
    startup_ns = startup.within(int(found.edges_ns[0]), int(found.edges_ns[-1]))
    return TraceSummary(
        path=path,
        rank=rank,
        world_size=header.world_size,
        job=header.job,
        host=header.host,
        start_ns=int(found.edges_ns[0]) if header.has_wall_clock else 0,
        end_ns=int(found.edges_ns[-1]) if header.has_wall_clock else 0,
        found_by=found.found_by,
        steps=found.steps,
        pattern=pattern,
        purpose=find_purpose(events),
        startup=tuple((name, nanoseconds / 1e9) for name, nanoseconds in startup.names) if startup_ns else (),
        startup_s=startup_ns / 1e9,
        held=_held(events, found),
        events=len(events),
    )


def _pattern(events: EventTable, found: Iterations, rank: int, settings: Settings) -> WorkerPattern:
    pattern = summarize_worker(_capture(events, found, rank), events, None, None, (), settings, recorded=True)
    return msgspec.structs.replace(pattern, found_by=found.found_by)


def stage_recording(events: EventTable, rank: int, settings: Settings) -> Staged:
    """One trace file for viewers of traces, instead of its summary.

    Args:
        events: What was read of it.
        rank: Global rank of its worker.
        settings: All tunables.

    Raises:
        InputError: The trace holds nothing that lasts.
    """
    if not ((events.category != Category.OTHER) & (events.start_ns < events.end_ns)).any():
        raise InputError("the trace holds no events of operators, kernels or Python")
    capture = _capture(events, find_iterations(events, settings.max_window_iterations), rank)
    return stage_window(capture, events, None, (), recorded=True)


def _held(events: EventTable, found: Iterations) -> Held:
    """Count the recorded launches, kernels, operators and communication of each iteration."""

    def counts(chosen: NDArray[np.bool_]) -> tuple[int, ...]:
        at = np.searchsorted(found.edges_ns, events.start_ns[chosen], side="right") - 1
        inside = (at >= 0) & (at < len(found.edges_ns) - 1)
        return tuple(np.bincount(at[inside], minlength=len(found.edges_ns) - 1).tolist())

    kernels = events.category == Category.KERNEL
    single = events.named(lambda name: name.startswith(LAUNCHES), Category.RUNTIME)
    many = events.named(lambda name: name.startswith(GRAPH_LAUNCHES), Category.RUNTIME)
    talks = events.communication(Category.KERNEL)
    talks |= events.named(is_host_collective, Category.KERNEL, Category.ANNOTATION)
    return Held(
        launches=counts(single),
        kernels=counts(kernels),
        operators=counts(events.category == Category.OPERATOR),
        communication=counts(talks),
        all_launches=int(single.sum()),
        all_kernels=int(kernels.sum()),
        launches_many=bool(many.any()),
        damage=events.damage,
        unknown=events.unknown or "".join(_gaps(events)),
    )


def _capture(events: EventTable, found: Iterations, rank: int) -> Capture:
    header = events.header
    groups, notes = find_groups(events, rank)
    worker = Worker(
        global_rank=max(rank, 0),
        world_size=max(header.world_size, 1),
        host=header.host,
        pid=max(header.process_id, 0),
        device=_device(events),
    )
    return Capture(
        worker=worker,
        window_id=1,
        first_iteration=found.first,
        last_iteration=found.first + len(found.edges_ns) - 1,
        boundaries_ns=tuple(found.edges_ns.tolist()),
        clocks=(ClockPair(realtime_ns=0, monotonic_ns=0),),
        training_thread_id=found.training_thread,
        training_thread_ident=found.training_thread,
        process_groups=groups,
        setup=dict((("device", header.device), *header.versions) if header.device else header.versions),
        garbage_collections=_collections(events, found.training_thread),
        notes=(*found.notes, *notes, *_gaps(events)),
    )


def _device(events: EventTable) -> str:
    """Tell the kind of device that ran kernels, as far as the trace shows it; its index is not in the table."""
    if not (events.category == Category.KERNEL).any():
        return "cpu"
    runtime = np.unique(events.name[events.category == Category.RUNTIME]).tolist()
    names = [events.strings[number] for number in runtime]
    if any(name.startswith("hip") for name in names) or "AMD" in events.header.device:
        return "hip"
    if any(name.startswith("cu") for name in names) or "NVIDIA" in events.header.device:
        return "cuda"
    return events.header.device or "accelerator"


def find_groups(events: EventTable, rank: int) -> tuple[tuple[ProcessGroup, ...], tuple[str, ...]]:
    """Process groups of the worker, and notes on what the trace does not tell about them.

    The header lists them in newer traces, the kernels' arguments name them in others. Where neither does, everybody is
    taken to be in one group, for collectives of the busiest stream: torch gives each group a stream of its own.

    Args:
        events: The trace.
        rank: This worker, -1 if unknown.
    """
    header = events.header
    said = [one for one in events.collectives.values() if one.group]
    named = {one.group for one in said}
    known = {one.name: one for one in header.groups if rank in one.ranks or (rank < 0 and one.name in named)}
    all_ranks = everybody(header.world_size)
    for one in said:
        if one.group in known and known[one.group].ranks:
            continue
        ranks = one.ranks or (all_ranks if 1 < header.world_size == one.group_size else ())
        known[one.group] = ProcessGroup(name=one.group, ranks=ranks, backend=header.backend)
    if (
        known
        or named
        or len(all_ranks) < 2
        or not (events.communication(Category.KERNEL) | events.named(is_host_collective)).any()
    ):
        return tuple(known.values()), ()
    group = ProcessGroup(name="0", description="default_pg", ranks=all_ranks, backend=header.backend)
    note = f"the trace names no process groups: all {len(all_ranks)} workers are taken to be in one"
    return (group,), (note,)


def _collections(events: EventTable, thread: int) -> tuple[GarbageCollection, ...]:
    """Runs of Python's collector that the trace shows: its own events (torch 2.8), or calls of `gc.collect`."""
    rows = np.flatnonzero(
        events.named(_COLLECTOR.__contains__, Category.PYTHON, Category.ANNOTATION) & (events.thread == thread)
    )
    spans = zip(events.start_ns[rows].tolist(), events.end_ns[rows].tolist(), strict=True)
    return tuple(GarbageCollection(start_ns=start, end_ns=end, generation=-1, thread_id=thread) for start, end in spans)


def _gaps(events: EventTable) -> tuple[str, ...]:
    """Name the kinds of events that are missing although the job must have had them."""
    if (events.category == Category.KERNEL).any():
        return ()
    nccl = any(name.startswith(("nccl:", "rccl:")) for name in events.strings)
    launches = (events.category == Category.RUNTIME).any()
    if not nccl and not launches:
        return ()
    return (NO_KERNELS,)
