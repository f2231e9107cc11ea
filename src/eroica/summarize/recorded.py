"""A trace that somebody else's profiler recorded -> pattern: what a `Capture` says online is found in the events here.

The trace tells what nobody tells about it: which thread trains, where iterations begin, who is in which process group.
After that the way is the online one.
"""

from __future__ import annotations

import numpy as np

from eroica.errors import InputError
from eroica.model.trace import TraceSummary
from eroica.model.window import Capture, ClockPair
from eroica.model.worker import Worker
from eroica.settings import Settings
from eroica.summarize.iterations import find_iterations
from eroica.summarize.pattern import summarize_worker
from eroica.trace.table import EventTable


def summarize_recording(events: EventTable, path: str, rank_hint: int, settings: Settings) -> TraceSummary:
    """Boil one trace file down.

    Args:
        events: What was read of it.
        path: Its name, for messages.
        rank_hint: Global rank that its name states, -1 if it does not; the trace's own word comes first.
        settings: All tunables.

    Returns:
        The summary, with a pattern.

    Raises:
        InputError: The trace holds nothing that could be judged.
    """
    if not len(events):
        raise InputError(f"{path} holds no events")
    found = find_iterations(events)
    header = events.header
    rank = header.rank if header.rank >= 0 else rank_hint
    worker = Worker(
        global_rank=max(rank, 0),
        world_size=max(header.world_size, 1),
        host=header.host,
        pid=max(header.process_id, 0),
    )
    capture = Capture(
        worker=worker,
        window_id=1,
        first_iteration=found.first,
        last_iteration=found.first + len(found.edges_ns) - 1,
        boundaries_ns=tuple(found.edges_ns.tolist()),
        clocks=(ClockPair(realtime_ns=0, monotonic_ns=0),),
        training_thread_id=found.training_thread,
        training_thread_ident=found.training_thread,
        thread_names={str(number): name for number, name in events.thread_names.items()},
        process_groups=tuple(group for group in header.groups if rank in group.ranks),
        notes=(*events.losses, *found.notes),
    )
    pattern = summarize_worker(capture, events, None, None, (), settings)
    start, end = (int(edge) for edge in np.asarray(found.edges_ns)[[0, -1]])
    return TraceSummary(
        path=path,
        rank=rank,
        world_size=header.world_size,
        job=header.job,
        host=header.host,
        start_ns=start,
        end_ns=end,
        found_by=found.found_by,
        steps=found.steps,
        pattern=pattern,
        events=len(events),
    )
