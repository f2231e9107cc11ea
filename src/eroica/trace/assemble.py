"""Columns as they were read -> the event table: categories, streams of several devices, impossible times, order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eroica.trace.columns import Columns, Place, thread_number
from eroica.trace.events import counted
from eroica.trace.makers import kind_of_place, kind_of_task, unknown_on_device
from eroica.trace.schema import is_annotation
from eroica.trace.table import Category, CollectiveArguments, EventTable

_HOUR_NS = 3_600_000_000_000
_FAR = 20
_MOST_FAR_NS = 10**18
_STREAMS = 2**40
_MERGED_SHARE = 0.01
_ON_DEVICE = (Category.KERNEL, Category.MEMORY)

Numbers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class _Kept:
    """Events that are left, times in nanoseconds without the base; `row` is their number while reading."""

    row: Numbers
    start: Numbers
    end: Numbers
    open_events: int
    losses: tuple[str, ...]


def assemble(columns: Columns, base_ns: int) -> tuple[EventTable, int, int]:
    """Build the table.

    Args:
        columns: Everything that was read; emptied.
        base_ns: What the trace's times count from.

    Returns:
        The table without a header and without losses of reading; process of most operators; device of most kernels.
    """
    columns.close_open()
    name, place, start, length = columns.take()
    link = columns.take_links()
    places = list(columns.places)
    kind = _kinds(columns)
    process, losses = _process(places, kind, place)
    device = _most_used([one[1] for one in places], kind == Category.KERNEL, place)
    thread = _threads(places, kind)
    kept = _drop_impossible(start, length, np.isin(kind, _ON_DEVICE)[place], columns.last_us)
    del start, length
    order = _order(kept.start, kept.end)
    rows = kept.row[order]
    name, place = name[rows], place[rows]
    category = kind[place]
    marks = np.array([is_annotation(text) for text in columns.names] or [False])
    category[marks[name] & (category == Category.OPERATOR)] = Category.ANNOTATION
    if len(kind) and not np.array_equal(kind[: len(columns.places.kinds)], list(columns.places.kinds)):
        category = _tasks(columns, category, name, place)
    unknown = unknown_on_device(
        places, kind.tolist(), np.bincount(place, minlength=len(kind)).tolist(), columns.processes
    )
    table = EventTable(
        strings=tuple(columns.names),
        name=name,
        category=category,
        thread=thread[place],
        start_ns=kept.start[order] + base_ns,
        end_ns=kept.end[order] + base_ns,
        link=link[rows] if len(link) else link,
        collectives=_collectives(columns, rows),
        thread_names=columns.thread_names,
        open_events=kept.open_events + columns.unfinished,
        losses=(*columns.losses(), *kept.losses, *losses, *([unknown] if unknown else [])),
        unknown=unknown,
    )
    return table, process, thread_number(device)


def _kinds(columns: Columns) -> NDArray[np.int8]:
    """Category of each place: by what the events say, else by the names of process and track."""
    kinds = list(columns.places.kinds) or [int(Category.OTHER)]
    for at, place in enumerate(columns.places):
        if kinds[at] == Category.OTHER:
            kinds[at] = kind_of_place(place, columns.processes, columns.tracks)
    return np.array(kinds, dtype=np.int8)


def _tasks(
    columns: Columns, category: NDArray[np.int8], name: NDArray[np.int32], place: NDArray[np.int32]
) -> NDArray[np.int8]:
    """Categories with what streams of other makers hold beside work told by its name."""
    by_name = {number: kind_of_task(text) for number, text in enumerate(columns.names)}
    uncategorized = np.array([not one[0] for one in columns.places], dtype=np.bool_)[place]
    for number, kind in by_name.items():
        if kind is not None:
            category[uncategorized & (category == Category.KERNEL) & (name == number)] = kind
    return category


# --- times ---


def _drop_impossible(start: Numbers, length: Numbers, on_device: NDArray[np.bool_], last_us: float) -> _Kept:
    """Leave out what cannot be: events far from all others in time, and device events without an end.

    An event is far if it starts more than an hour, and more than 20 times as far from the median start as three
    quarters of the events do; or if it ends so much later than the last one starts. What has no end
    is taken to be open until the trace's last moment on the host; a kernel like that says nothing.
    """
    row = np.arange(len(start), dtype=np.int64)
    if not len(start):
        return _Kept(row, start, start, 0, ())
    is_open = length < 0
    endless = is_open & on_device
    reach = _reach(start)
    far = np.zeros(len(start), dtype=np.bool_) if reach is None else np.abs(start - reach[0]) > reach[1]
    spread = _HOUR_NS if reach is None else reach[1]
    latest = int(start[~far].max())
    far |= length > latest + spread - start
    if far.any() or endless.any():
        left = ~(far | endless)
        row, start, length, is_open = row[left], start[left], length[left], is_open[left]
    end = start + np.maximum(length, 0)
    last = int(end.max(initial=latest))
    if np.isfinite(last_us) and last < last_us * 1000.0 < latest + spread:
        last = round(last_us * 1000.0)
    end[is_open] = np.maximum(start[is_open], last)
    return _Kept(row, start, end, int(is_open.sum()), tuple(_time_losses(int(far.sum()), endless & ~far, spread)))


def _reach(start: Numbers) -> tuple[int, int] | None:
    """Median start and how far from it an event may start; None where all start within an hour."""
    if int(start.max()) - int(start.min()) <= _HOUR_NS:
        return None
    half, most = len(start) // 2, (3 * (len(start) - 1)) // 4
    median = int(np.partition(start, half)[half])
    distance = np.abs(start - median)
    return median, min(max(_HOUR_NS, _FAR * int(np.partition(distance, most)[most])), _MOST_FAR_NS)


def _time_losses(far: int, endless: NDArray[np.bool_], spread: int) -> list[str]:
    losses = []
    if far:
        losses.append(f"left out: {counted(far, 'event')} more than {spread / _HOUR_NS:,.0f} h away from the others")
    if endless.any():
        losses.append(f"left out: {counted(int(endless.sum()), 'device event')} without an end")
    return losses


def _order(start: Numbers, end: Numbers) -> Numbers:
    """Order of start, the longer first where starts are equal. The files are runs of sorted events: one stable sort."""
    order = np.argsort(start, kind="stable")
    ordered = start[order]
    same = ordered[1:] == ordered[:-1]
    if same.any():
        tied = np.zeros(len(start), dtype=np.bool_)
        tied[1:] = same
        tied[:-1] |= same
        rows = order[tied]
        order[tied] = rows[np.lexsort((-end[rows], start[rows]))]
    return order


# --- where ---


def _threads(places: list[Place], kind: NDArray[np.int8]) -> Numbers:
    """Thread of each place: the host's thread id; on a device the stream's number.

    Where a trace holds several devices, those after the first one (by number) are told apart by multiples of 2**40:
    stream 7 of the second device is 2**40 + 7.
    """
    on_device = [
        kind[at] in _ON_DEVICE or one[0].lower().startswith(("gpu_", "cuda_sync")) for at, one in enumerate(places)
    ]
    devices = {one[1] for one, is_device in zip(places, on_device, strict=True) if is_device}
    numbers = {device: at for at, device in enumerate(sorted(devices, key=lambda one: (thread_number(one), str(one))))}
    threads = [-1] * max(len(places), 1)
    for at, (_, process, thread) in enumerate(places):
        number = thread_number(thread)
        index = numbers[process] if on_device[at] else 0
        threads[at] = index * _STREAMS + number % _STREAMS if index else number
    return np.array(threads, dtype=np.int64)


def _process(places: list[Place], kind: NDArray[np.int8], place: NDArray[np.int32]) -> tuple[int, tuple[str, ...]]:
    """The process with most operators, and a sentence if others have some as well."""
    counts = _counts([one[1] for one in places], kind == Category.OPERATOR, place)
    ranked = sorted(counts, key=lambda one: -counts[one])
    if not ranked:
        return -1, ()
    others = [one for one in ranked[1:] if counts[one] >= _MERGED_SHARE * counts[ranked[0]]]
    said = f"the file holds operators of {len(others) + 1} processes, as if traces had been merged"
    note = f"{said}; process {ranked[0]!s:.50} counts as the worker"
    return thread_number(ranked[0]), ((note,) if others else ())


def _most_used(groups: list[int | str], chosen: NDArray[np.bool_], place: NDArray[np.int32]) -> int | str:
    counts = _counts(groups, chosen, place)
    return max(counts, key=lambda one: counts[one]) if counts else -1


def _counts(groups: list[int | str], chosen: NDArray[np.bool_], place: NDArray[np.int32]) -> dict[int | str, int]:
    """Events per group, in those places that are chosen."""
    counts: dict[int | str, int] = {}
    for group, wanted, number in zip(groups, chosen, np.bincount(place, minlength=len(groups)), strict=False):
        if wanted and number:
            counts[group] = counts.get(group, 0) + int(number)
    return counts


# --- the rest ---


def _collectives(columns: Columns, rows: Numbers) -> dict[int, CollectiveArguments]:
    """Arguments by the rows of the finished table."""
    told = {**columns.collectives, **columns.calls}
    if not told:
        return {}
    place_of = np.full(columns.rows, -1, dtype=np.int64)
    place_of[rows] = np.arange(len(rows))
    found = ((int(place_of[row]), one) for row, one in told.items())
    return {row: one for row, one in sorted(found, key=lambda item: item[0]) if row >= 0}
