"""Clean all messages from agents: bounded in every dimension, finite, printable.

A record that makes no sense at all is refused; a number or a text that makes none is taken out of an otherwise useful
one. Nobody behind this border has to think of NaN, of a world of 2**63 workers or of escape sequences.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from eroica.archive.load import check_pattern
from eroica.errors import InputError
from eroica.model.look import HostLooks, WorkerLook
from eroica.model.pattern import WorkerPattern
from eroica.model.window import bounded_setup
from eroica.model.worker import Worker
from eroica.wire.beat import ANNOUNCED
from eroica.wire.messages import AgentReport, ProfileRequest, WorkerStatus

MAX_WORKERS = 200_000
MAX_ITERATION = 2**48
_LEAST_S, _LONGEST_S = 1e-9, 1e7
#: Characters of a text, for fields of these names and for any other.
_LETTERS = {
    "silence": 500,
    "reason": 500,
    "note": 500,
    "notes": 500,
    "state": 8,
    "source": 32,
    "backend": 64,
    "device": 80,
}
_NAME = 255
#: Items of a list; the last ones where the number is negative. What is not here holds `_ITEMS`.
_MOST = {"notes": 50, "stack": -128, "children": 64, "open": 200, "recent": -200, "trouble": 16}
_MOST |= {"ranks": MAX_WORKERS, "workers": MAX_WORKERS, "first": MAX_WORKERS, "second": MAX_WORKERS}
_ITEMS = 256
#: Numbers that are -1 for "none"; times for which 0 is no answer; numbers that may be of any size.
_OR_NONE = frozenset({"entered", "completed", "enqueued"})
_ABOVE_0 = frozenset({"current_s", "baseline_s", "latest_s"})
_ANY_SIZE = frozenset({"created_ns"})
Record = TypeVar("Record", bound=msgspec.Struct)


def clean_text(text: str, limit: int = 500) -> str:
    """Printable and short; whoever wrote it may have wanted to move a cursor."""
    head = text[: limit + 1]
    if not head.isprintable():
        head = "".join(letter if letter.isprintable() else " " for letter in head)
    return head if len(head) <= limit else head[: limit - 1] + "…"


def clean(record: Record) -> Record:
    """The record with each number, text and list inside its bounds, through all records in it."""
    numbers, others = _bounds(type(record))
    changed: dict[str, Any] = {}
    for name, least, most, instead in numbers:
        value = getattr(record, name)
        if value is not None and not least <= value <= most:  # NaN, too
            changed[name] = min(max(value, least), most) if isinstance(value, int) else instead
    for name, make in others:
        value = getattr(record, name)
        if value and (made := make(value)) is not value:
            changed[name] = made
    return msgspec.structs.replace(record, **changed) if changed else record


@cache
def _bounds(
    kind: type[msgspec.Struct],
) -> tuple[list[tuple[str, float, float, float | None]], list[tuple[str, Callable[[Any], Any]]]]:
    """Fields of a record that may be out of bounds.

    Returns:
        Numbers, each with its least and most, and what takes the place of seconds that are none; what cleans others.
    """
    described = inspect.type_info(kind)
    assert isinstance(described, inspect.StructType)
    numbers, others = [], []
    for field in described.fields:
        name, of = field.name, field.type
        optional = isinstance(of, inspect.UnionType)
        if isinstance(of, inspect.UnionType):  # with None
            of = next(each for each in of.types if not isinstance(each, inspect.NoneType))
        if isinstance(of, inspect.FloatType):
            numbers.append((name, _LEAST_S if name in _ABOVE_0 else 0.0, _LONGEST_S, None if optional else 0.0))
        elif isinstance(of, inspect.IntType) and name not in _ANY_SIZE:
            numbers.append((name, -1 if name in _OR_NONE else 0, MAX_ITERATION, None))
        elif (make := _cleaner(name, of)) is not None:
            others.append((name, make))
    return numbers, others


def _cleaner(name: str, kind: inspect.Type) -> Callable[[Any], Any] | None:
    """Return what cleans a field of this name and type; None where its type is a bound already."""
    if isinstance(kind, inspect.StrType):
        return partial(clean_text, limit=_LETTERS.get(name, _NAME))
    if isinstance(kind, inspect.StructType):
        return None if kind.cls is Worker else clean  # see `clean_worker`
    if isinstance(kind, inspect.VarTupleType):
        item = _rank if name == "ranks" else _cleaner(name, kind.item_type)
        return partial(_items, most=_MOST.get(name, _ITEMS), item=item)
    if isinstance(kind, inspect.DictType) and isinstance(kind.value_type, inspect.IntType):
        return partial(_counters, most=_MOST.get(name, _ITEMS))
    return None


def _items(values: tuple[Any, ...], most: int, item: Callable[[Any], Any] | None) -> tuple[Any, ...]:
    kept = values[:most] if most > 0 else values[most:]
    return kept if item is None else tuple(one for value in kept if (one := item(value)) is not None)


def _rank(value: int) -> int | None:
    return value if 0 <= value < MAX_WORKERS else None


def _counters(values: Mapping[str, int], most: int) -> dict[str, int]:
    return {clean_text(name, _NAME): min(max(n, 0), MAX_ITERATION) for name, n in list(values.items())[:most]}


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


def _clean_host(name: str) -> str:
    """A host's name.

    Raises:
        InputError: It has none.
    """
    if not name.strip():
        raise InputError("a report needs the name of its host")
    return clean_text(name, _NAME)


def clean_report(report: AgentReport) -> AgentReport:
    """A report whose impossible workers became notes.

    Raises:
        InputError: It names no host.
    """
    host, refused = _clean_host(report.host), list[str]()
    return clean(
        msgspec.structs.replace(
            report,
            host=host,
            workers=tuple(_possible(report.workers, host, refused)),
            notes=(*report.notes, *refused),
        )
    )


OfWorker = TypeVar("OfWorker", WorkerStatus, WorkerLook)


def _possible(records: Iterable[OfWorker], host: str, refused: list[str]) -> Iterable[OfWorker]:
    """Records whose worker is possible, as one of this host; why others are not."""
    for one in records:
        try:
            one = msgspec.structs.replace(one, worker=clean_worker(one.worker, host))  # noqa: PLW2901
        except InputError as error:
            refused.append(str(error))
            continue
        if isinstance(one, WorkerStatus):
            one = msgspec.structs.replace(  # noqa: PLW2901
                one, source=min(max(one.source, 0), ANNOUNCED), known=max(one.known, 0) % (2 << ANNOUNCED)
            )
        yield one


def clean_request(request: ProfileRequest) -> ProfileRequest:
    """A window asked for by hand.

    Raises:
        InputError: Nobody can want that.
    """
    if not (0 <= request.iterations <= 100_000 and math.isfinite(request.seconds) and 0 <= request.seconds <= 3600):
        raise InputError(f"a window of {request.iterations} iterations or {request.seconds} s cannot be opened")
    return clean(request)


def clean_looks(looks: HostLooks) -> HostLooks:
    """Clean a host's looks at its workers; leave out impossible workers. Of several looks at one the last counts.

    Raises:
        InputError: It names no host.
    """
    host, refused = _clean_host(looks.host), list[str]()
    first, second = (
        tuple({one.worker.pid: one for one in _possible(each, host, refused)}.values())
        for each in (looks.first, looks.second)
    )
    notes = (*looks.notes, *refused)
    return clean(msgspec.structs.replace(looks, host=host, first=first, second=second, notes=notes))


def clean_pattern(pattern: WorkerPattern) -> WorkerPattern:
    """A pattern whose worker, iterations and numbers are possible.

    Raises:
        InputError: It is none.
    """
    worker = clean_worker(pattern.worker, _clean_host(pattern.worker.host))
    notes = _items(pattern.notes, _MOST["notes"], clean_text)
    setup = bounded_setup(pattern.setup)
    return check_pattern(msgspec.structs.replace(pattern, worker=worker, notes=notes, setup=setup))
