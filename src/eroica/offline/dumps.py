"""Flight Recorder dumps of a job that stood still, as one verdict: who did not enter, who is behind."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from eroica.diagnosis.blocked import diagnose_blockage
from eroica.errors import InputError
from eroica.model.look import Blockage, HostLooks, ProcessLook, WorkerLook
from eroica.model.verdict import Verdict
from eroica.model.worker import ProcessGroup, Worker
from eroica.settings import Settings
from eroica.trace.dump import FlightDump, read_dump

_DEFAULT_GROUP = "default_pg"


def diagnose_dumps(dumps: Iterable[Path | FlightDump], job: str, settings: Settings) -> Verdict:
    """Verdict on the dumps of one job.

    Args:
        dumps: Files, or dumps that are read already; at most one of each worker.
        job: Name of the job.
        settings: As for every other verdict.

    Returns:
        "blocked" with those who hold the others up, or "undetermined".

    Raises:
        InputError: There are none, one cannot be read, its worker is not known, or two are of the same worker.
    """
    read = [_read(one) for one in dumps]
    if not read:
        raise InputError("there is no Flight Recorder dump to diagnose")
    seen: dict[int, str] = {}
    for where, dump in read:
        if dump.rank is None:
            raise InputError(f"{where} does not say whose it is: let its name end in the global rank, as in _dump_3")
        if dump.rank in seen:
            raise InputError(f"{where} and {seen[dump.rank]} are both of worker {dump.rank}: give the dumps of one job")
        seen[dump.rank] = where
    verdict = diagnose_blockage(build_blockage([dump for _, dump in read]), job, settings)
    assert verdict is not None  # only somebody who moved between two looks makes it None, and a dump is one look
    return verdict


def _read(dump: Path | FlightDump) -> tuple[str, FlightDump]:
    if isinstance(dump, FlightDump):
        return "a dump", dump
    return str(dump), read_dump(dump)


def build_blockage(dumps: Iterable[FlightDump]) -> Blockage:
    """Dumps whose workers are known, as one look at each worker."""
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
    """Groups whose members no dump tells (gloo, early versions): those that have entries of them.

    Who is a member and has never entered anything there cannot be seen.
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
    """Of the default group where one is told, else as far as the ranks go."""
    listed = list(dumps)
    groups = [group for dump in listed for group in dump.groups if group.ranks]
    told = [len(one.ranks) for one in groups if one.description == _DEFAULT_GROUP or one.name in ("0", _DEFAULT_GROUP)]
    highest = [max(one.ranks) for one in groups] if not told else []
    return max([*told, *(1 + rank for rank in highest), *(1 + (dump.rank or 0) for dump in listed)], default=0)
