"""Turn Flight Recorder dumps of jobs that stood still into verdicts: who did not enter, who is behind."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from eroica.diagnosis.blocked import diagnose_blockage
from eroica.errors import EroicaError, InputError, UsageError
from eroica.model.look import Blockage, HostLooks, ProcessLook, WorkerLook
from eroica.model.window import Window
from eroica.model.worker import ProcessGroup, Worker
from eroica.offline.discover import Source
from eroica.offline.jobs import Part, merge_siblings, name_places
from eroica.settings import Settings
from eroica.trace.flight import FlightDump, read_dump

_DEFAULT_GROUP = "default_pg"


def parts_of_dumps(sources: Sequence[Source], settings: Settings, problems: list[EroicaError]) -> list[Part]:
    """Judge the dumps of each job, one part a job.

    Dumps of one directory belong together; so do those of sibling directories of different workers of equally large
    jobs. Of two dumps of one worker the larger counts.

    Args:
        sources: Files.
        settings: As for every other verdict.
        problems: Gets what could not be used.
    """
    places: dict[str, dict[int, FlightDump]] = defaultdict(dict)
    for source in sorted(sources, key=lambda one: one.size, reverse=True):
        try:
            dump = read_dump(source.path, source.rank if source.rank >= 0 else None)
        except InputError as error:
            problems.append(error)
            continue
        if dump.rank is None:
            told = "does not say whose it is: let its name end in the global rank, as in _dump_3"
            problems.append(UsageError(f"{source.path} {told}"))
            continue
        if dump.rank in places[source.place]:
            problems.append(InputError(f"{source.path} is a second dump of worker {dump.rank}; it was left out"))
        places[source.place].setdefault(dump.rank, dump)
    held = {place: dumps for place, dumps in places.items() if dumps}
    merged = merge_siblings(held, lambda members: _are_parts([held[place] for place in members]))
    names = name_places(list(merged))
    parts = []
    for whole, members in merged.items():
        blockage = build_blockage(dump for place in members for dump in held[place].values())
        verdict = diagnose_blockage(blockage, names[whole], settings)
        assert verdict is not None  # only a move between two looks makes it None, and a dump is one look
        window = standstill_window(blockage)
        parts.append(Part(names[whole], "Flight Recorder dumps", window, verdict, blockage=blockage))
    return parts


def _are_parts(places: Sequence[dict[int, FlightDump]]) -> bool:
    ranks = [rank for dumps in places for rank in dumps]
    worlds = {build_blockage(dumps.values()).world_size for dumps in places}
    return len(ranks) == len(set(ranks)) and len(worlds) == 1


def standstill_window(blockage: Blockage) -> Window:
    """Describe what was looked at as a window."""
    return Window(
        window_id=max(1, blockage.look_id),
        kind="blocked",
        purpose="blocked",
        reason=blockage.reason,
        first_iteration=0,
        last_iteration=0,
    )


def build_blockage(dumps: Iterable[FlightDump]) -> Blockage:
    """Turn dumps whose workers are known into one look at each worker."""
    listed = sorted((dump for dump in dumps if dump.rank is not None), key=lambda dump: dump.rank or 0)
    world_size = _world_size(listed)
    inferred = _infer_groups(listed)
    looks = tuple(
        WorkerLook(
            worker=Worker(global_rank=dump.rank or 0, world_size=world_size, device=""),
            process=ProcessLook(pid=0),
            groups=(*dump.groups, *(group for group in inferred if (dump.rank or 0) in group.ranks)),
            flight=dump.state,
            notes=dump.notes,
        )
        for dump in listed
    )
    return Blockage(
        look_id=0,
        reason=f"Flight Recorder dumps of {len(listed)} of {world_size} workers were given",
        looks=(HostLooks(look_id=0, host="", first=looks),),
        world_size=world_size,
        source="dumps",
    )


def _infer_groups(dumps: Iterable[FlightDump]) -> list[ProcessGroup]:
    """Return the groups whose members no dump states (gloo, early versions), with the workers that have their entries.

    A member that has never entered a collective of the group is not seen.
    """
    listed = list(dumps)
    told = {group.name for dump in listed for group in dump.groups if group.ranks}
    members: dict[str, list[int]] = defaultdict(list)
    for dump in listed:
        entries = (*dump.state.open, *dump.state.recent)
        for name in sorted({entry.group for entry in entries} - told - {"", "0", _DEFAULT_GROUP}):
            members[name].append(dump.rank or 0)
    return [ProcessGroup(name=name, ranks=tuple(ranks)) for name, ranks in members.items() if len(ranks) > 1]


def _world_size(dumps: Iterable[FlightDump]) -> int:
    """Return the size of the default group, else the highest rank seen plus one."""
    listed = list(dumps)
    groups = [group for dump in listed for group in dump.groups if group.ranks]
    told = [len(one.ranks) for one in groups if one.description == _DEFAULT_GROUP or one.name in ("0", _DEFAULT_GROUP)]
    highest = [max(one.ranks) for one in groups] if not told else []
    return max([*told, *(1 + rank for rank in highest), *(1 + (dump.rank or 0) for dump in listed)], default=0)
