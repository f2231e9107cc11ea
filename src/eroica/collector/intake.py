"""Clean all messages from agents: bounded in every dimension, finite, printable.

A record that makes no sense at all is refused; a number or a text that makes none is taken out of an otherwise useful
one. Nobody behind this border has to think of NaN, of a world of 2**63 workers or of escape sequences.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np

from eroica.errors import InputError
from eroica.model.communication import HostCommunication, WorkerOperations
from eroica.model.look import Ending, FlightState, HostLooks, ProcessLook, ThreadLook, WorkerLook
from eroica.model.pattern import WorkerPattern
from eroica.model.rows import RowTable
from eroica.model.setup import bounded_setup
from eroica.model.window import FlightEntry
from eroica.model.worker import ProcessGroup, Worker
from eroica.wire.beat import ANNOUNCED
from eroica.wire.messages import AgentReport, OrderResult, ProfileRequest, WorkerStatus, WorkerTrigger

MAX_WORKERS = 200_000
MAX_ITERATION = 2**48
MAX_SOURCE = ANNOUNCED
_LONGEST_S = 1e7
_TEXT, _NAME, _NOTES = 500, 255, 50
_THREADS, _STACK, _CHILDREN, _ENTRIES, _GROUPS = 256, 128, 64, 200, 256
_FLOWS = 1024


def clean_text(text: str, limit: int = _TEXT) -> str:
    """Printable and short; whoever wrote it may have wanted to move a cursor."""
    head = text[: limit + 1]
    if not head.isprintable():
        head = "".join(letter if letter.isprintable() else " " for letter in head)
    return head if len(head) <= limit else head[: limit - 1] + "…"


def clean_texts(texts: Iterable[str], count: int = _NOTES, limit: int = _TEXT) -> tuple[str, ...]:
    """The first `count` of them, each clean."""
    return tuple(clean_text(text, limit) for text, _ in zip(texts, range(count), strict=False))


def clean_host(name: str) -> str:
    """A host's name.

    Raises:
        InputError: It has none.
    """
    if not name.strip():
        raise InputError("a report needs the name of its host")
    return clean_text(name, _NAME)


def clean_seconds(value: float | None) -> float | None:
    """None for what cannot be a duration."""
    return value if value is not None and math.isfinite(value) and 0.0 <= value <= _LONGEST_S else None


def _seconds(value: float) -> float:
    return clean_seconds(value) or 0.0


def _count(value: int) -> int:
    return min(max(value, 0), MAX_ITERATION)


def clean_worker(worker: Worker, host: str) -> Worker:
    """The worker as one of `host`, whatever host it names itself.

    Raises:
        InputError: Its numbers are impossible.
    """
    ranks_fit = 0 <= worker.global_rank < MAX_WORKERS and 0 <= worker.local_rank < MAX_WORKERS
    if not (ranks_fit and 1 <= worker.world_size <= MAX_WORKERS and 0 <= worker.pid < 2**32):
        raise InputError(
            f"{host} tells of worker {worker.global_rank} of {worker.world_size} with pid {worker.pid}; that is none"
        )
    return msgspec.structs.replace(worker, host=host, device=clean_text(worker.device, _NAME))


def clean_status(status: WorkerStatus, host: str) -> WorkerStatus:
    """One worker's status.

    Raises:
        InputError: Its worker is none.
    """
    return msgspec.structs.replace(
        status,
        worker=clean_worker(status.worker, host),
        iteration=_count(status.iteration),
        source=min(_count(status.source), MAX_SOURCE),
        known=_count(status.known) % (2 << MAX_SOURCE),
        current_s=clean_seconds(status.current_s) or None,
        baseline_s=clean_seconds(status.baseline_s) or None,
        latest_s=clean_seconds(status.latest_s) or None,
        trigger=None if status.trigger is None else _trigger(status.trigger),
        result=_result(status.result),
        silent_s=_seconds(status.silent_s),
        silence=clean_text(status.silence),
        ending=None if status.ending is None else _ending(status.ending),
    )


def _trigger(trigger: WorkerTrigger) -> WorkerTrigger:
    return msgspec.structs.replace(
        trigger,
        count=_count(trigger.count),
        reason=clean_text(trigger.reason),
        baseline_s=clean_seconds(trigger.baseline_s) or None,
        current_s=_seconds(trigger.current_s),
    )


def _result(result: OrderResult) -> OrderResult:
    return msgspec.structs.replace(
        result,
        window_id=_count(result.window_id),
        first_iteration=_count(result.first_iteration),
        last_iteration=_count(result.last_iteration),
        events=_count(result.events),
        stall_s=_seconds(result.stall_s),
        duration_s=_seconds(result.duration_s),
        note=clean_text(result.note),
    )


def _ending(ending: Ending) -> Ending:
    number = ending.number if 0 <= ending.number < 2**16 else 0
    return msgspec.structs.replace(ending, number=number, ago_s=_seconds(ending.ago_s))


def clean_report(report: AgentReport) -> AgentReport:
    """A report whose impossible workers became notes.

    Raises:
        InputError: It names no host.
    """
    host, workers, refused = clean_host(report.host), [], []
    for status in report.workers:
        try:
            workers.append(clean_status(status, host))
        except InputError as error:
            refused.append(str(error))
    return msgspec.structs.replace(
        report,
        host=host,
        event_budget=_count(report.event_budget),
        workers=tuple(workers),
        notes=clean_texts((*report.notes, *refused)),
        communication=None if report.communication is None else clean_communication(report.communication),
    )


def clean_communication(told: HostCommunication) -> HostCommunication | None:
    """Clean a host's record of its workers' communication; None if its numbers are none."""
    if not (0.0 < told.interval_s <= _LONGEST_S and finite(msgspec.to_builtins(told))):
        return None
    flows = (flow for flow in told.flows[:_FLOWS] if flow.sent_bytes >= 0 and flow.waiting_byte_s >= 0)
    return msgspec.structs.replace(
        told,
        workers=tuple(_operations(one) for one in told.workers[:_FLOWS] if 0 <= one.worker < MAX_WORKERS),
        flows=tuple(
            msgspec.structs.replace(flow, local=clean_text(flow.local, 80), remote=clean_text(flow.remote, 80))
            for flow in flows
        ),
        groups=tuple(_group(group) for group in told.groups[:_GROUPS]),
    )  # fmt: skip


def _operations(one: WorkerOperations) -> WorkerOperations:
    counts = tuple(
        msgspec.structs.replace(
            count,
            group=clean_text(count.group, _NAME),
            entered=max(-1, min(count.entered, MAX_ITERATION)),
            completed=max(-1, min(count.completed, MAX_ITERATION)),
            waits_in=clean_text(count.waits_in, _NAME),
            before=max(-1, min(count.before, MAX_ITERATION)),
        )
        for count in one.counts[:_GROUPS]
    )
    return msgspec.structs.replace(one, counts=counts, state=clean_text(one.state, 8))


def clean_request(request: ProfileRequest) -> ProfileRequest:
    """A window asked for by hand.

    Raises:
        InputError: Nobody can want that.
    """
    if not (0 <= request.iterations <= 100_000 and math.isfinite(request.seconds) and 0 <= request.seconds <= 3600):
        raise InputError(f"a window of {request.iterations} iterations or {request.seconds} s cannot be opened")
    return msgspec.structs.replace(request, reason=clean_text(request.reason))


def clean_head(pattern: WorkerPattern) -> WorkerPattern:
    """A pattern, or its head alone, whose worker and iterations are possible.

    Raises:
        InputError: It is none.
    """
    worker = clean_worker(pattern.worker, clean_host(pattern.worker.host))
    if not 0 <= pattern.first_iteration <= pattern.last_iteration <= MAX_ITERATION:
        raise InputError(f"a pattern of iterations {pattern.first_iteration} to {pattern.last_iteration}")
    return msgspec.structs.replace(pattern, worker=worker)


def clean_pattern(pattern: WorkerPattern) -> WorkerPattern:
    """A pattern whose worker is possible and whose numbers are all finite.

    Raises:
        InputError: It is none.
    """
    worker = clean_head(pattern).worker
    rest = msgspec.structs.replace(pattern, functions=(), process_groups=())  # these have whole numbers only
    rows = RowTable.of(pattern.functions).numbers
    if not (np.isfinite(rows).all() and finite(msgspec.to_builtins(rest, builtin_types=(bytes,)))):
        raise InputError(f"the pattern of worker {worker.global_rank} has numbers that are none")
    notes, setup = clean_texts(pattern.notes), bounded_setup(pattern.setup)
    return msgspec.structs.replace(pattern, worker=worker, notes=notes, setup=setup)


def finite(tree: Any) -> bool:
    """No NaN and no infinity in plain containers."""
    waiting = [tree]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            waiting.extend(item.values())
        elif isinstance(item, list | tuple):
            waiting.extend(item)
        elif isinstance(item, float) and not math.isfinite(item):
            return False
    return True


# ---------------------------------------------------------------------- looks


def clean_looks(looks: HostLooks) -> HostLooks:
    """Clean a host's looks at its workers; leave out impossible workers.

    Raises:
        InputError: It names no host.
    """
    host, refused = clean_host(looks.host), list[str]()
    first, second = (_looks(each, host, refused) for each in (looks.first, looks.second))
    notes = clean_texts((*looks.notes, *refused))
    return msgspec.structs.replace(looks, host=host, first=first, second=second, notes=notes)


def _looks(looks: Iterable[WorkerLook], host: str, refused: list[str]) -> tuple[WorkerLook, ...]:
    """One look a worker, the last counts."""
    kept: dict[int, WorkerLook] = {}
    for look in looks:
        try:
            worker = clean_worker(look.worker, host)
        except InputError as error:
            refused.append(str(error))
            continue
        kept[worker.pid] = msgspec.structs.replace(
            look,
            worker=worker,
            iteration=_count(look.iteration),
            events=_count(look.events),
            silent_s=_seconds(look.silent_s),
            process=_process(look.process),
            children=tuple(_process(child) for child in look.children[:_CHILDREN]),
            groups=tuple(_group(group) for group in look.groups[:_GROUPS]),
            flight=None if look.flight is None else _flight(look.flight),
            notes=clean_texts(look.notes),
        )
    return tuple(kept.values())


def _process(process: ProcessLook) -> ProcessLook:
    return msgspec.structs.replace(
        process,
        state=clean_text(process.state, 8),
        threads=tuple(_thread(thread) for thread in process.threads[:_THREADS]),
        source=clean_text(process.source, 32),
        cpu_s=clean_seconds(process.cpu_s),
    )


def _thread(thread: ThreadLook) -> ThreadLook:
    return msgspec.structs.replace(
        thread,
        name=clean_text(thread.name, _NAME),
        stack=clean_texts(thread.stack[-_STACK:], _STACK, _NAME),
        state=clean_text(thread.state, 8),
        wait_channel=clean_text(thread.wait_channel, _NAME),
        cpu_s=clean_seconds(thread.cpu_s),
        io_bytes=None if thread.io_bytes is None else _count(thread.io_bytes),
    )


def _group(group: ProcessGroup) -> ProcessGroup:
    return msgspec.structs.replace(
        group,
        name=clean_text(group.name, _NAME),
        description=clean_text(group.description, _NAME),
        ranks=tuple(rank for rank in group.ranks[:MAX_WORKERS] if 0 <= rank < MAX_WORKERS),
        backend=clean_text(group.backend, 64),
    )


def _flight(flight: FlightState) -> FlightState:
    return FlightState(
        progress=tuple(
            msgspec.structs.replace(
                group,
                name=clean_text(group.name, _NAME),
                enqueued=max(-1, min(group.enqueued, MAX_ITERATION)),
                completed=max(-1, min(group.completed, MAX_ITERATION)),
            )
            for group in flight.progress[:_GROUPS]
        ),
        open=tuple(_entry(entry) for entry in flight.open[:_ENTRIES]),
        recent=tuple(_entry(entry) for entry in flight.recent[-_ENTRIES:]),
    )


def _entry(entry: FlightEntry) -> FlightEntry:
    return msgspec.structs.replace(
        entry, name=clean_text(entry.name, _NAME), group=clean_text(entry.group, _NAME), elements=_count(entry.elements)
    )
