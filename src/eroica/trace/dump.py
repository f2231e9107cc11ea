"""Flight Recorder dumps that torch left in files, pickled or as JSON, of any version.

What torch wrote over time: a plain list of entries, then a dict with "version" and "entries" (1.x: `seq_id` instead of
`collective_seq_id`, the group as text or not at all), "pg_config" and "pg_status" (2.x). JSON writes numbers as text,
`ranks` are text such as "[0, 1]". A dump may hold only the entries that have not completed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from eroica.errors import InputError
from eroica.model.look import FlightState, GroupProgress
from eroica.model.window import FlightEntry
from eroica.model.worker import ProcessGroup
from eroica.trace.names import rank_of_dump
from eroica.trace.pickles import load_data

_MAX_BYTES = 64_000_000
_MAX_ENTRIES = 100_000
_MAX_CONTAINERS = 5_000_000
_MAX_OPEN = 256
_MAX_GROUPS = 1024
_MAX_RANKS = 1_000_000
_MAX_MEMBERS = 4_000_000  # characters or numbers that list them, all groups together
_MAX_TEXT = 200
_MAX_DIMENSIONS = 16
_RECENT = 32
_PICKLED = re.compile(rb"\x80[\x02-\x05](?:\x95.{8})?[}\]]", re.DOTALL)
_JSON = re.compile(rb"\s*(?:\{\s*\"|\[\s*\{\s*\")")
_WORDS = re.compile(
    rb"pg_config|pg_status|collective_seq_id|profiling_name|last_enqueued_collective|nccl_version|comm_lib_version"
    rb"|nccl_comm_state"
)
_STATES = ("scheduled", "started", "completed")
_NUMBERS = ("collective_seq_id", "seq_id")
_POINT_TO_POINT = re.compile(r"(?:\w+:)?(?:send|recv)\b")


class FlightDump(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker's Flight Recorder had written down when it was dumped.

    Attributes:
        rank: Global rank; None if neither the file's name nor the groups tell it.
        version: Of the schema, as torch wrote it; "" if it wrote none.
        groups: Process groups of the worker.
        state: Counters per group, entries that have not completed in the order of their enqueuing, and the last ones
            that have.
        notes: What is missing in the dump.
    """

    rank: int | None = None
    version: str = ""
    groups: tuple[ProcessGroup, ...] = ()
    state: FlightState = FlightState()
    notes: tuple[str, ...] = ()


class _Entry(msgspec.Struct):
    """An entry with what is needed of it."""

    flight: FlightEntry
    group_id: str
    collective: int
    completed: bool
    description: str
    is_unnumbered: bool = False


def is_dump(head: bytes) -> bool:
    """Whether a file that begins like this is a Flight Recorder dump.

    Args:
        head: The first bytes of the file; 4 KB are enough.
    """
    if _PICKLED.match(head):
        return _WORDS.search(head) is not None or b"seq_id" in head or (b"entries" in head and b"version" in head)
    return _JSON.match(head) is not None and b"traceEvents" not in head and _WORDS.search(head) is not None


def read_dump(path: Path, rank: int | None = None) -> FlightDump:
    """Read a dump.

    Args:
        path: A pickle or JSON.
        rank: Global rank of its worker, where the file's name does not tell it.

    Returns:
        What it says. Entries that make no sense are left out and counted in a note.

    Raises:
        InputError: The file cannot be read, is cut short, is no dump, or does more than hold data.
    """
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise InputError(f"{path} has more than {_MAX_BYTES} bytes; that is no Flight Recorder dump")
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
    try:
        return parse_dump(data, rank if rank is not None else rank_of_dump(path.name))
    except InputError as error:
        raise InputError(f"{path} is no Flight Recorder dump that can be used: {error}") from error


def parse_dump(data: bytes, rank: int | None = None) -> FlightDump:
    """Read a dump that is in memory; see `read_dump`."""
    content = load_data(data) if data[:1] in (b"\x80", b"c", b"i") else _load_json(data)
    if isinstance(content, list):
        content = {"entries": content}
    if not isinstance(content, dict) or not any(key in content for key in ("entries", "pg_config", "pg_status")):
        raise InputError('it has neither "entries" nor "pg_status"')
    groups = tuple(_groups(content.get("pg_config")))
    raws = content.get("entries")
    listed = raws[-_MAX_ENTRIES:] if isinstance(raws, list) else []
    entries, unread = _entries(listed)
    if listed and unread == len(listed):
        raise InputError("none of its entries names a collective")
    if entries and not content.get("pg_status") and _hides_progress(listed[-1]):
        raise InputError("its newest entry is damaged, so nobody can tell how far its worker was; dump it again")
    notes = [f"{unread} entries of the dump make no sense and are left out"] if unread else []
    notes += [] if groups else ["the dump does not tell who is a member of which process group"]
    notes += [] if content.get("pg_status") else ["the dump tells by its entries only how far the worker is"]
    return FlightDump(
        rank=rank if rank is not None else _rank_of_groups(groups),
        version=_text(content.get("version")),
        groups=groups,
        state=_state(entries, groups, content.get("pg_status"), listed="entries" in content),
        notes=tuple(notes),
    )


def _load_json(data: bytes) -> Any:
    if data.count(b"[") + data.count(b"{") > _MAX_CONTAINERS:
        raise InputError("the JSON holds more lists than a dump does")
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"the JSON cannot be read: {error}") from error


# ---------------------------------------------------------------------- groups


def _groups(config: object) -> Iterator[ProcessGroup]:
    """The worker's groups. Lists that are shared by many groups are read a bounded number of times."""
    room = _MAX_MEMBERS
    for key, raw in list(config.items())[:_MAX_GROUPS] if isinstance(config, dict) else ():
        if isinstance(key, str) and isinstance(raw, dict):
            told = raw.get("ranks")
            size = len(told) if isinstance(told, str | list | tuple) else 0
            room -= size
            name = _text(raw.get("name")) or key[:_MAX_TEXT]
            ranks = _ranks(told) if size and room >= 0 else ()
            if name:  # gloo writes one without name and members
                yield ProcessGroup(name=name, description=_text(raw.get("desc")), ranks=ranks)


def _ranks(told: object) -> tuple[int, ...]:
    """Global ranks: a list, or the text of one; nothing where it is anything else."""
    raw = re.findall(r"\d{1,7}", told) if isinstance(told, str) else told
    numbers = tuple(_number(one) for one in raw) if isinstance(raw, list | tuple) else ()
    return numbers if all(0 <= one < _MAX_RANKS for one in numbers) and len(set(numbers)) == len(numbers) else ()


def _rank_of_groups(groups: Iterable[ProcessGroup]) -> int | None:
    """A worker lists only groups in which it is a member: the rank that they have in common, if there is just one."""
    common: set[int] | None = None
    for group in groups:
        common = set(group.ranks) if common is None else common & set(group.ranks)
    return next(iter(common)) if common is not None and len(common) == 1 else None


# ---------------------------------------------------------------------- entries


def _entries(raws: list[Any]) -> tuple[list[_Entry], int]:
    """Those that make sense, in the order in which they were enqueued, and how many do not."""
    found, unread = [], 0
    kept: dict[Any, int] = {}
    for raw in reversed(raws):
        if _is_damaged(raw):
            unread += 1
            continue
        if _is_completed(raw):  # only the last ones of each group are kept
            group = raw.get("pg_id")
            group = group if isinstance(group, int | str) else None
            kept[group] = kept.get(group, 0) + 1
            if kept[group] > _RECENT:
                continue
        found.append(_entry(raw))
    found.reverse()
    return _numbered(found), unread


def _numbered(entries: list[_Entry]) -> list[_Entry]:
    """Collectives whose number cannot be read follow the one before them in their group."""
    latest: dict[str, int] = {}
    numbered = []
    for entry in entries:
        group = entry.flight.group
        if entry.is_unnumbered and not entry.flight.is_p2p and group in latest:
            flight = msgspec.structs.replace(entry.flight, sequence=latest[group] + 1)
            entry = msgspec.structs.replace(entry, flight=flight, collective=flight.sequence)  # noqa: PLW2901
        if not entry.flight.is_p2p and entry.collective:
            latest[group] = entry.collective
        numbered.append(entry)
    return numbered


def _is_damaged(raw: object) -> bool:
    """Whether an entry has something else where torch writes its name, its state or its group."""
    if not isinstance(raw, dict) or not isinstance(raw.get("profiling_name"), str) or not raw["profiling_name"]:
        return True
    if "state" in raw and raw["state"] not in _STATES:
        return True
    group = raw.get("process_group")
    if isinstance(group, list | tuple):
        return len(group) == 1  # a name without the description that goes with it
    return not isinstance(group, str | None)


def _hides_progress(raw: object) -> bool:
    """Whether an entry is damaged where it says how far the worker has come."""
    if not isinstance(raw, dict) or _is_damaged(raw):
        return True
    return _is_unnumbered(raw)


def _is_unnumbered(raw: Mapping[str, Any]) -> bool:
    """Whether what stands for an entry's number is none."""
    return any(key in raw and _number(raw[key]) < 0 for key in _NUMBERS)


def _entry(raw: Mapping[str, Any]) -> _Entry:
    name = raw["profiling_name"][:_MAX_TEXT]
    told = raw.get("is_p2p")
    pairwise = told if isinstance(told, bool) else _POINT_TO_POINT.match(name) is not None
    group, description = _group_of(raw.get("process_group"))
    collective = _number(raw.get("collective_seq_id", raw.get("seq_id")), least=0)
    return _Entry(
        flight=FlightEntry(
            name=name,
            group=group or _text(raw.get("pg_id")),
            sequence=_number(raw.get("p2p_seq_id"), least=0) if pairwise else collective,
            operation=_number(raw.get("op_id"), least=0),
            is_p2p=pairwise,
            created_ns=_number(raw.get("time_created_ns"), least=0),
            elements=_elements(raw.get("input_sizes")),
        ),
        group_id=_text(raw.get("pg_id")),
        collective=collective,
        completed=_is_completed(raw),
        description=description,
        is_unnumbered=_is_unnumbered(raw),
    )


def _is_completed(raw: Mapping[str, Any]) -> bool:
    """Gloo's entries stay "scheduled" until they are retired; NCCL's that are retired without have timed out."""
    return raw.get("state") == "completed" or (
        raw.get("retired") is True and not raw["profiling_name"].startswith("nccl")
    )


def _group_of(raw: object) -> tuple[str, str]:
    """Name and description: a pair since 2.0, only the name before."""
    if isinstance(raw, str):
        return raw[:_MAX_TEXT], ""
    if isinstance(raw, list | tuple) and raw:
        return _text(raw[0]), _text(raw[1]) if len(raw) > 1 else ""
    return "", ""


def _elements(sizes: object) -> int:
    """Elements of the first input."""
    first = sizes[0] if isinstance(sizes, list | tuple) and sizes else None
    if not isinstance(first, list | tuple) or len(first) > _MAX_DIMENSIONS:
        return 0
    product = math.prod(_number(one, least=0) for one in first)
    return product if product < 2**62 else 0


# ---------------------------------------------------------------------- counters


def _state(entries: list[_Entry], groups: tuple[ProcessGroup, ...], status: object, *, listed: bool) -> FlightState:
    still_open = [entry.flight for entry in entries if not entry.completed]
    done = [entry for entry in entries if entry.completed]
    mixed = {entry.flight.group for entry in entries if entry.flight.is_p2p}
    progress = dict(_told(entries, groups, status if isinstance(status, dict) else {}))
    counted = {entry.flight.group for entry in entries}
    for name in sorted(counted)[:_MAX_GROUPS]:
        of_group = [entry for entry in entries if entry.flight.group == name]
        told = progress.get(name) if name not in mixed else None
        enqueued = max(entry.collective for entry in of_group)
        completed = max((one.collective for one in of_group if one.completed and not one.flight.is_p2p), default=-1)
        progress[name] = GroupProgress(
            name=name,
            enqueued=max(enqueued, told.enqueued if told else -1),
            completed=max(completed, told.completed if told else -1),
        )
    if not listed:
        still_open = [
            FlightEntry(name="a collective", group=one.name, sequence=one.completed + 1)
            for one in progress.values()
            if 0 <= one.completed < one.enqueued
        ]
    return FlightState(
        progress=tuple(progress.values()),
        open=tuple(still_open[:_MAX_OPEN]),
        recent=tuple(entry.flight for entry in done),
        mixed=tuple(sorted(mixed)),
    )


def _told(
    entries: list[_Entry], groups: tuple[ProcessGroup, ...], status: Mapping[Any, Any]
) -> Iterator[tuple[str, GroupProgress]]:
    """What the recorder's counters say, by name of the group. They count by another number than its name."""
    counts = {str(key)[:_MAX_TEXT]: raw for key, raw in list(status.items())[:_MAX_GROUPS] if isinstance(raw, dict)}
    for number, name in _names(entries, groups, counts).items():
        raw = counts[number]
        yield (
            name,
            GroupProgress(
                name=name,
                enqueued=_number(raw.get("last_enqueued_collective")),
                completed=_number(raw.get("last_completed_collective")),
            ),
        )


def _names(entries: list[_Entry], groups: tuple[ProcessGroup, ...], counts: Mapping[str, Any]) -> dict[str, str]:
    """Group number -> name, as far as it is certain.

    Entries hold both. For the others: both numbers and names count groups in the order in which they were made, so if
    there are equally many of them, they belong together in their order, unless an entry contradicts.
    """
    known = {entry.group_id: entry.flight.group for entry in entries if entry.group_id in counts}
    names = [group.name for group in groups]
    if len(names) == len(counts) and all(one.isdecimal() and len(one) < 10 for one in (*names, *counts)):
        ordered = dict(zip(sorted(counts, key=int), sorted(names, key=int), strict=True))
        if all(ordered[number] == name for number, name in known.items()):
            return ordered
    if not groups:
        return {number: known.get(number, number) for number in counts}
    return known


# ---------------------------------------------------------------------- values


def _number(raw: object, least: int = -1) -> int:
    """A number, also written as text; `least` for none and for what no counter can be."""
    if isinstance(raw, str) and len(raw) < 20:
        try:
            raw = int(raw)
        except ValueError:
            return least
    if isinstance(raw, float) and raw.is_integer() and abs(raw) < 2**53:
        raw = int(raw)
    return raw if isinstance(raw, int) and not isinstance(raw, bool) and least <= raw < 2**62 else least


def _text(raw: object) -> str:
    """Text, bounded; numbers as torch's older versions wrote them."""
    if isinstance(raw, str):
        return raw[:_MAX_TEXT]
    return str(raw) if isinstance(raw, int) and abs(raw) < 2**62 else ""
