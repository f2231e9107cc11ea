"""Which ranks are alike: found by running some, checked on others.

Ranks are told apart by their places in the job's groups. A few places of each family are tried; a family along which
the fingerprints change counts, and all its places are run; one along which they do not change, does not. Every kind is
then run a second time on the rank that is farthest away in all that was said not to count, and must come out equal.
What was not run is not proved: the report says how many ranks ran. `everybody=True` runs all of them.

Source: PrismLLM proves nothing of this kind in what is public; the procedure is this implementation's own.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from prismllm.alignment import align
from prismllm.capture import CaptureOptions, Workshop, capture_alone, capture_slices, in_slices, prepare
from prismllm.errors import DivergenceError, SlicingError
from prismllm.graph import Job, Kind, Layout, fingerprint, lay_out
from prismllm.model import RankRecord, Step, write_record
from prismllm.recorder import check_repeats, describe

Say = Callable[[str], None]


@dataclass
class Found:
    """What is known so far.

    Attributes:
        shop: Where ranks are run.
        say: Told of the progress.
        records: Of each rank that ran.
        prints: Their fingerprints.
        layout: Groups as families, after the first rank ran.
    """

    shop: Workshop
    say: Say
    records: dict[int, RankRecord] = field(default_factory=dict)
    prints: dict[int, str] = field(default_factory=dict)
    layout: Layout | None = None

    def run(self, ranks: Sequence[int]) -> None:
        """Run what has not run yet, in slices; whom they need is taken along."""
        wanted = [rank for rank in dict.fromkeys(ranks) if rank not in self.records]
        for part in in_slices(wanted, self.shop.options.slice_size):
            missing = [rank for rank in part if rank not in self.records]
            if missing:
                self._run_slice(missing)

    def _run_slice(self, ranks: list[int]) -> None:
        self.say(f"run ranks {', '.join(map(str, ranks))}")
        try:
            new = capture_slices(self.shop, [ranks])
        except SlicingError as error:
            more = [rank for rank in error.needs if rank not in ranks]
            if not more:
                raise
            self._run_slice(sorted({*ranks, *more}))
            return
        for rank, record in new.items():
            self.records[rank] = record
            if self.layout is None:
                self.layout = lay_out(record.groups, record.world)
            self._check_groups(record)
            self.prints[rank] = fingerprint(record.step, rank, self.layout)

    def _check_groups(self, record: RankRecord) -> None:
        first = next(iter(self.records.values()))
        mine, theirs = [one.ranks for one in record.groups], [one.ranks for one in first.groups]
        if mine != theirs:
            at = next((n for n, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b),
                      min(len(mine), len(theirs)))  # fmt: skip
            longer = record if len(mine) > at else first
            raise DivergenceError(
                f"rank {record.rank} makes other groups than rank {first.rank}: they differ from group {at} "
                f"(made at {longer.groups[at].site}). Every rank has to make all groups, in the same order "
                "(no use_local_synchronization)."
            )


def capture_job(
    options: CaptureOptions, *, everybody: bool = False, say: Say = lambda _: None, shop: Workshop | None = None
) -> Job:
    """Capture a job: find kinds, check each on one more rank, time one or two of each, write `job.json`.

    Args:
        options: Script, world, slices, directory.
        everybody: Run every rank instead of some of each kind.
        say: Told of the progress.
        shop: An open process with torch loaded, for whoever captures several jobs; its options become these.

    Raises:
        PrismError: What the script ran into, or ranks that are not alike although their places are.
    """
    prepare(options)
    with contextlib.nullcontext(shop) if shop is not None else Workshop(options) as opened:
        opened.options = options
        found = Found(opened, say)
        if everybody or options.world <= options.slice_size:
            found.run(range(options.world))
            keys: dict[int, tuple[int, ...]] = {rank: (rank,) for rank in range(options.world)}
        else:
            keys = _explore(found)
        job = _assemble(found, keys)
    write_record(options.out / "job.json", job)
    return job


def _explore(found: Found) -> dict[int, tuple[int, ...]]:
    """Run what tells kinds apart, and a witness of each.

    Returns:
        For each rank of the world, the places that count; one rank of each has run at least.
    """
    world = found.shop.options.world
    found.run([0])
    layout = _layout(found)
    tried = [
        at
        for at, family in enumerate(layout.families)
        if family.shape[1] > 1 and layout.row[at, 0] >= 0 and (at > 0 or len(layout.families) == 1)
    ]
    probes = {at: _corners(layout.families[at][layout.row[at, 0]].tolist()) for at in tried}
    found.run([rank for ranks in probes.values() for rank in ranks])
    counting = [at for at in tried if any(found.prints[rank] != found.prints[0] for rank in probes[at])]
    found.run([rank for at in counting for rank in layout.families[at][layout.row[at, 0]].tolist()])
    keys = {rank: _key(layout, counting, rank) for rank in range(world)}
    members: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for rank, key in keys.items():
        members[key].append(rank)
    found.say(f"{len(members)} combinations of places count")
    found.run([next((rank for rank in ranks if rank in found.records), ranks[0]) for ranks in members.values()])
    found.run([ranks[-1] for ranks in members.values()])
    for ranks in members.values():
        ran = [rank for rank in ranks if rank in found.records]
        for other in ran[1:]:
            if found.prints[other] != found.prints[ran[0]]:
                _refuse(found, ran[0], other)
    return keys


def _layout(found: Found) -> Layout:
    if found.layout is None:  # pragma: no cover - a rank has run
        raise AssertionError("nothing has run")
    return found.layout


def _corners(ranks: list[int]) -> list[int]:
    """Some places of a group: the second, the middle, the last."""
    return list(dict.fromkeys([ranks[min(1, len(ranks) - 1)], ranks[len(ranks) // 2], ranks[-1]]))


def _key(layout: Layout, counting: list[int], rank: int) -> tuple[int, ...]:
    """Places in families that count, and in which families the rank is at all."""
    membership = (layout.row[:, rank] >= 0).astype(int).tolist()
    return (*(int(layout.position[at, rank]) for at in counting), *membership)


def _refuse(found: Found, one: int, other: int) -> None:
    mine, theirs = found.records[one].step, found.records[other].step
    what = "their operators differ"
    for place, (a, b) in enumerate(zip(mine.calls, theirs.calls, strict=False)):
        if (a.op, a.signature, a.nbytes, a.tag) != (b.op, b.signature, b.nbytes, b.tag):
            what = f"call {place} is {describe(a)} on the one and {describe(b)} on the other"
            break
    else:
        segment = next((at for at, (a, b) in enumerate(zip(mine.work, theirs.work, strict=False)) if a != b), -1)
        if segment >= 0:
            near = mine.calls[min(segment, len(mine.calls) - 1)] if mine.calls else None
            what += f" before moment {segment}" + (f" (near {near.site})" if near else "")
    raise DivergenceError(
        f"ranks {one} and {other} have the same places in all groups that count, but do not do the same: {what}. "
        "Run every rank (--all), or make the script treat them alike."
    )


def _assemble(found: Found, keys: dict[int, tuple[int, ...]]) -> Job:
    """Kinds are fingerprints; who did not run has the fingerprint of a rank with its places."""
    print_of_key = {keys[rank]: found.prints[rank] for rank in found.records}
    numbers: dict[str, int] = {}
    kind_of = [numbers.setdefault(print_of_key[keys[rank]], len(numbers)) for rank in range(found.shop.options.world)]
    ran: dict[int, list[int]] = defaultdict(list)
    for rank in sorted(found.records):
        ran[numbers[found.prints[rank]]].append(rank)
    timed = [rank for ranks in ran.values() for rank in dict.fromkeys((ranks[0], ranks[-1]))]
    if len(ran) > 24:  # a second one of each only where that is cheap
        timed = [ranks[0] for ranks in ran.values()]
    found.say(f"{len(numbers)} kinds of ranks; time {len(timed)} ranks, each alone")
    times = capture_alone(found.shop, timed)
    kinds = [_kind(found, ran[number], times) for number in range(len(numbers))]
    groups = found.records[min(found.records)].groups
    return Job(
        found.shop.options.world,
        groups,
        kinds,
        kind_of,
        found.shop.options.local_world,
        list(found.shop.options.script),
        align(kinds, _layout(found)),
    )


def _kind(found: Found, ran: list[int], times: dict[int, RankRecord]) -> Kind:
    first = found.records[ran[0]]
    alone = times[ran[0]]
    check_repeats(ran[0], first.step, alone.step, found.shop.options.warmup)
    totals = []
    samples: list[list[int]] = []
    for rank in dict.fromkeys((ran[0], ran[-1])):
        if rank in times:
            samples += times[rank].samples_ns
            totals.append(sum(times[rank].step.segments_ns))
    step = Step(first.step.calls, first.step.moments, alone.step.segments_ns, first.step.work, first.step.grown_bytes,
                first.step.peak_bytes)  # fmt: skip
    spread = (max(totals) - min(totals)) / max(totals) if max(totals) else 0.0
    return Kind(ran[0], ran, step, samples, spread, first.peak_bytes)
