"""Read Kineto (Chrome) traces: what torch wrote since 2021, on any accelerator or none.

A file is read in bounded pieces, so memory follows the number of events and not the size of the file. What cannot be
read costs only itself and stands in `EventTable.losses`; a file is refused only if nothing sensible is in it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.errors import InputError
from eroica.model.worker import ProcessGroup
from eroica.settings import Settings
from eroica.trace.chunks import EventStream, counted
from eroica.trace.columns import Columns, Place, thread_number
from eroica.trace.source import TraceSource, writer_of
from eroica.trace.table import Category, CollectiveArguments, EventTable, TraceHeader, is_annotation, unknown_on_device

_DEFAULTS = Settings()
_BASE = "baseTimeNanoseconds"
_FEW_NOTHING = 1_000
_MOST_NOTHING = 1_000_000
_NOTHING_SHARE = 0.99
#: Events that may be left out without a word to the verdict.
_LITTLE = 0.01
_LONG_AGO_NS = 300_000_000_000_000_000
_HOUR_NS = 3_600_000_000_000
_FAR = 20
_MOST_FAR_NS = 10**18
_STREAMS = 2**40
_MERGED_SHARE = 0.01
_ON_DEVICE = (Category.KERNEL, Category.MEMORY)

Numbers = NDArray[np.int64]
_MOST_RANK = 2**31
_MOST_TEXT = 500
_MOST_WORLD = 1_000_000
_MOST_EVERYBODY = 100_000
_MOST_GROUPS = 100_000
_MOST_PRINTED = 1_000_000
_JOB_KEYS = ("mast_job_name", "job_name", "job", "job_id", "slurm_job_id", "SLURM_JOB_ID", "tw_job")
_HOST_KEYS = ("host_name", "hostname", "host")
#: Kineto writes driver, runtime and CUPTI since 2023; torch_npu and launchers add others.
_VERSIONS = {
    "torch": ("torch_version", "pytorch_version", "PyTorch Version"),
    "CUDA driver": ("cuda_driver_version", "driver_version"),
    "CUDA runtime": ("cuda_runtime_version", "cuda_version"),
    "HIP driver": ("hip_driver_version",),
    "HIP runtime": ("hip_runtime_version",),
}


def read_trace(path: Path, settings: Settings = _DEFAULTS, links: bool = False) -> EventTable:
    """Read one worker's trace.

    Args:
        path: A .json or .json.gz as Kineto writes it, or a bare list of Chrome events; its name does not matter.
        settings: `max_trace_bytes` and `max_trace_events` bound what is read and kept.
        links: Read which call launched what on a device, too: a quarter of the time more (`EventTable.link`).

    Returns:
        Its complete events ("ph": "X", or "B" and "E"). What was still open when the trace was stopped ends with the
        trace: Kineto says so with "finished": false and cuts it itself; an event without a usable duration is cut here.

    Raises:
        InputError: The file cannot be read, or is no trace.
    """
    columns = Columns(settings.max_trace_events, links)
    with TraceSource(path, settings.max_trace_bytes) as source:
        stream = EventStream(source)
        for events in stream:
            columns.add(events)
            _refuse_nothing(columns, path, _MOST_NOTHING)
            if columns.overflow:
                break
    if columns.nothing == columns.seen and (stream.count or stream.losses or stream.bare):
        raise InputError("; ".join((f"{path} is JSON, but no trace: it holds no events", *stream.losses)))
    _refuse_nothing(columns, path, _FEW_NOTHING)
    table, process, device = assemble(columns, _base_ns(stream.keys.get(_BASE), path))
    header, doubts = read_header(stream.keys, process, device)
    header = replace(header, writer=writer_of({place[0] for place in columns.places}, stream.keys.keys()))
    losses = [*stream.losses, *table.losses, *doubts]
    damage = [*stream.cuts, *_much_left_out(columns, stream.damaged)]
    if not (stream.complete or stream.bare or _BASE in stream.keys) and table.start_ns.max(initial=0) < _LONG_AGO_NS:
        header = replace(header, has_wall_clock=False)
        losses.append("what its times count from is lost: they tell durations and order, but no time of day")
    return replace(table, header=header, losses=tuple(losses), damage=tuple(damage))


def _much_left_out(columns: Columns, damaged: int) -> list[str]:
    """A sentence where so much is left out that what is left may mislead."""
    if columns.overflow:
        return [columns.overflow]
    lost = columns.timeless + columns.negative + damaged
    if lost <= _LITTLE * max(columns.seen, 1):
        return []
    return [f"{lost:,} of {columns.seen:,} events could not be read"]


def _refuse_nothing(columns: Columns, path: Path, most: int) -> None:
    """Refuse a file of which nearly all objects are no events."""
    if columns.nothing > most and columns.nothing > _NOTHING_SHARE * columns.seen:
        raise InputError(
            f"{path} is no trace: {columns.nothing:,} of its first {columns.seen:,} objects are empty or unreadable"
        )


def _base_ns(raw: msgspec.Raw | None, path: Path) -> int:
    try:
        base = 0 if raw is None else int(msgspec.json.decode(raw, type=int | str))
    except (msgspec.DecodeError, ValueError, RecursionError):
        base = -1
    if not 0 <= base <= 2**62:
        raise InputError(f"{path} counts its times from {bytes(raw or b'')[:40]!r}, which is no time; capture it again")
    return base


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
    kind = np.array(list(columns.places.kinds) or [int(Category.OTHER)], dtype=np.int8)
    process, losses = _process(places, kind, place)
    kernels = _counts([one[1] for one in places], kind == Category.KERNEL, place)
    device = max(kernels, key=lambda one: kernels[one], default=-1)
    thread = _threads(places, kind)
    kept = _drop_impossible(start, length, np.isin(kind, _ON_DEVICE)[place], columns.last_us)
    del start, length
    order = _order(kept.start, kept.end)
    rows = kept.row[order]
    name, place = name[rows], place[rows]
    category = kind[place]
    marks = np.array([is_annotation(text) for text in columns.names] or [False])
    category[marks[name] & (category == Category.OPERATOR)] = Category.ANNOTATION
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
        open_events=kept.open_events + columns.unfinished,
        losses=(*columns.losses(), *kept.losses, *losses, *([unknown] if unknown else [])),
        unknown=unknown,
    )
    return table, process, thread_number(device)


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
    hours, without_end = spread / _HOUR_NS, int((endless & ~far).sum())
    told = (
        (far.any(), f"left out: {counted(int(far.sum()), 'event')} more than {hours:,.0f} h away from the others"),
        (without_end, f"left out: {counted(without_end, 'device event')} without an end"),
    )
    return _Kept(row, start, end, int(is_open.sum()), tuple(sentence for happened, sentence in told if happened))


def _reach(start: Numbers) -> tuple[int, int] | None:
    """Median start and how far from it an event may start; None where all start within an hour."""
    if int(start.max()) - int(start.min()) <= _HOUR_NS:
        return None
    half, most = len(start) // 2, (3 * (len(start) - 1)) // 4
    median = int(np.partition(start, half)[half])
    distance = np.abs(start - median)
    return median, min(max(_HOUR_NS, _FAR * int(np.partition(distance, most)[most])), _MOST_FAR_NS)


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


def read_header(keys: Mapping[str, msgspec.Raw], process: int, device: int) -> tuple[TraceHeader, tuple[str, ...]]:
    """The header of a trace, and what of it was not taken; what is missing or of a strange type stays unknown.

    Args:
        keys: What stands beside the events, undecoded.
        process: Process of the operators, -1 if unknown.
        device: Number of the device whose kernels these are, -1 if unknown.
    """
    told = {name: value for name, raw in keys.items() if (value := _value(raw)) is not None}
    distributed = _record(told.get("distributedInfo"))
    stated = _natural(distributed.get("world_size"), 0)
    world = stated if stated <= _MOST_WORLD else 0
    header = TraceHeader(
        rank=_natural(distributed.get("rank"), -1),
        world_size=world,
        backend=_text(distributed.get("backend")),
        host=_first_text(told, _HOST_KEYS),
        process_id=process,
        groups=tuple(_groups(distributed.get("pg_config"), world)),
        job=_first_text(told, _JOB_KEYS),
        device=_device(told.get("deviceProperties"), device),
        versions=tuple((name, text) for name, keys in _VERSIONS.items() if (text := _first_text(told, keys))),
    )
    doubt = f"the trace states a world size of {stated:,}, which is not believed"
    return header, (doubt,) if stated > _MOST_WORLD else ()


def everybody(world: int) -> tuple[int, ...]:
    """All ranks of a job; nobody where they are too many to be listed."""
    return tuple(range(world)) if world <= _MOST_EVERYBODY else ()


def _value(raw: msgspec.Raw) -> Any:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _from_text(value: Any) -> Any:
    """Some writers keep a record as text: JSON, or what Python prints."""
    if not isinstance(value, str) or len(value) > _MOST_PRINTED:
        return value
    for read in (msgspec.json.decode, ast.literal_eval):
        try:
            return read(value)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
    return None


def _record(value: Any) -> dict[str, Any]:
    value = _from_text(value)
    return value if isinstance(value, dict) else {}


def _natural(value: Any, default: int) -> int:
    try:
        number = int(value) if isinstance(value, (int, str)) and not isinstance(value, bool) else default
    except ValueError:
        return default
    return number if 0 <= number < _MOST_RANK else default


def _text(value: Any) -> str:
    return str(value)[:_MOST_TEXT] if isinstance(value, (str, int)) else ""


def _first_text(told: Mapping[str, Any], names: Iterable[str]) -> str:
    return next((text for name in names if (text := _text(told.get(name)))), "")


def _device(value: Any, number: int) -> str:
    devices = _from_text(value)
    named = [one for one in devices if isinstance(one, dict)] if isinstance(devices, list) else []
    chosen = next((one for one in named if one.get("id") == number), named[0] if named else {})
    return _text(chosen.get("name"))


# --- process groups ---


def _groups(value: Any, world: int) -> Iterable[ProcessGroup]:
    """The groups of "pg_config", a list of records. One whose members are not all told is left out.

    torch leaves "ranks" empty where a group holds everybody.
    """
    config = _from_text(value)
    all_ranks = everybody(world)
    for entry in config[:_MOST_GROUPS] if isinstance(config, list) else ():
        one = _record(entry)
        size = _natural(one.get("pg_size", one.get("group_size")), 0)
        ranks = _ranks(one.get("ranks"))
        if ranks == () and size == world > 0:
            ranks = all_ranks
        name = one.get("pg_name", one.get("name"))
        if ranks and name is not None and size in (0, len(ranks)):
            yield ProcessGroup(
                name=_text(name),
                description=_text(one.get("pg_desc", one.get("description", ""))),
                ranks=ranks,
                backend=_backend(_text(one.get("backend_config", one.get("backend", "")))),
            )


def _ranks(value: Any) -> tuple[int, ...] | None:
    """Members; None where the list is abbreviated or no list."""
    value = _from_text(value)
    if not isinstance(value, list):
        return () if value is None else None
    numbers = [_natural(one, -1) for one in value]
    return tuple(numbers) if min(numbers, default=0) >= 0 else None


def _backend(config: str) -> str:
    """What serves the accelerator, else the only one: nccl of "cpu:gloo,cuda:nccl"."""
    parts = [part.rpartition(":") for part in config.split(",")]
    return next((name for place, _, name in parts if place not in ("", "cpu")), parts[0][2])
