"""Finds which ranks are alike, by running some and checking others.

Ranks are told apart by their places in the job's groups. A few places of each family are tried; a family along which
the fingerprints change counts, and all its places are run; one along which they do not change, does not. Every class is
then run a second time on the rank that is farthest away in all that was said not to count, and must come out equal.
Calls and operators cannot tell a rank that only works longer. So ranks of each class that are chosen at random are
timed, and all ranks where that is cheap; those that work longer or shorter become classes of their own. The prediction
states the risk of ranks that were not timed. `every_rank=True` runs and times all of them.

Source: PrismLLM proves nothing of this class in what is public; the procedure is this implementation's own.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from prismllm.capture import CaptureOptions, capture_alone, capture_slice, prepare
from prismllm.errors import DivergenceError, SlicingError
from prismllm.graph import Job, Layout, RankClass, fingerprint, lay_out
from prismllm.model import RankRecord, Step, write_record
from prismllm.recorder import check_repeats

Say = Callable[[str], None]
#: Ranks of each class that are chosen at random and timed, beside the first one.
_CHOSEN = 2
#: Times that a rank which stands out is timed again, beside one that does not.
_AGAIN = 3
#: Ranks of one class work equally long if their shortest timed iterations differ by at most this share of the shorter
#: one, or by at most so many nanoseconds. Equal ranks on shared cores differ by up to 0.1.
_UNLIKE = 0.2
_UNLIKE_NS = 1_000_000


@dataclass
class Explored:
    """The records and fingerprints of the ranks that have run, and the layout, after the first one ran."""

    options: CaptureOptions
    say: Say
    records: dict[int, RankRecord] = field(default_factory=dict)
    prints: dict[int, str] = field(default_factory=dict)
    layout: Layout = field(init=False)

    def run(self, ranks: Sequence[int]) -> None:
        """Run the ranks that have not run yet, in slices, with the ranks that they need."""
        wanted = [rank for rank in dict.fromkeys(ranks) if rank not in self.records]
        size = self.options.slice_size
        for at in range(0, len(wanted), size):
            missing = [rank for rank in wanted[at : at + size] if rank not in self.records]
            if missing:
                self._run_slice(missing)

    def _run_slice(self, ranks: list[int]) -> None:
        self.say(f"run ranks {', '.join(map(str, ranks))}")
        try:
            new = capture_slice(self.options, ranks)
        except SlicingError as error:
            more = [rank for rank in error.needs if rank not in ranks]
            if not more:
                raise
            self._run_slice(sorted({*ranks, *more}))
            return
        for rank, record in new.items():
            self.records[rank] = record
            if len(self.records) == 1:
                self.layout = lay_out(record.groups, record.world)
            self.check_groups(record)
            self.prints[rank] = fingerprint(record.step, rank, self.layout)

    def check_groups(self, record: RankRecord) -> None:
        """Raise DivergenceError if this rank makes other groups than the first one."""
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


def capture_job(options: CaptureOptions, *, every_rank: bool = False, say: Say = lambda _: None) -> Job:
    """Capture a job: find classes, check each on one more rank, time one or two of each, write `job.json`.

    With `every_rank` all ranks run instead of some of each class.

    Raises:
        PrismError: What the script ran into, or ranks that are not alike although their places are.
    """
    prepare(options)
    found = Explored(options, say)
    if every_rank or options.world <= options.slice_size:
        found.run(range(options.world))
        keys: dict[int, tuple[int, ...]] = {rank: (rank,) for rank in range(options.world)}
    else:
        keys = _explore(found)
    job = _assemble(found, keys, every_rank=every_rank)
    write_record(options.out / "job.json", job)
    return job


def _explore(found: Explored) -> dict[int, tuple[int, ...]]:
    """Run the ranks that tell classes apart, and a second one of each class.

    Return the places that count for each rank of the world; at least one rank of each has run.
    """
    world = found.options.world
    found.run([0])
    layout = found.layout
    tried = [
        at
        for at, family in enumerate(layout.families)
        if family.shape[1] > 1 and layout.row[at, 0] >= 0 and (at > 0 or len(layout.families) == 1)
    ]
    groups = {at: layout.families[at][layout.row[at, 0]].tolist() for at in tried}
    probes = {at: (ranks[1], ranks[len(ranks) // 2], ranks[-1]) for at, ranks in groups.items()}
    found.run([rank for ranks in probes.values() for rank in ranks])
    counting = [at for at in tried if any(found.prints[rank] != found.prints[0] for rank in probes[at])]
    found.run([rank for at in counting for rank in groups[at]])
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
                _refuse(found.records[ran[0]], found.records[other])
    return keys


def _key(layout: Layout, counting: list[int], rank: int) -> tuple[int, ...]:
    """Return the rank's places in families that count, and its membership in all families."""
    membership = (layout.row[:, rank] >= 0).astype(int).tolist()
    return (*(int(layout.position[at, rank]) for at in counting), *membership)


def _refuse(one: RankRecord, other: RankRecord) -> None:
    mine, theirs = one.step, other.step
    what = "their operators differ"
    for place, (a, b) in enumerate(zip(mine.calls, theirs.calls, strict=False)):
        if (a.op, a.signature, a.nbytes, a.tag) != (b.op, b.signature, b.nbytes, b.tag):
            what = f"call {place} is {a} on the one and {b} on the other"
            break
    else:
        segment = next((at for at, (a, b) in enumerate(zip(mine.work, theirs.work, strict=False)) if a != b), -1)
        if segment >= 0:
            near = mine.calls[min(segment, len(mine.calls) - 1)] if mine.calls else None
            what += f" before event {segment}" + (f" (near {near.site})" if near else "")
    raise DivergenceError(
        f"ranks {one.rank} and {other.rank} have the same places in all groups that count, but do not do the same: "
        f"{what}. Run every rank (--all), or make the script treat them alike."
    )


def _assemble(found: Explored, keys: dict[int, tuple[int, ...]], *, every_rank: bool) -> Job:
    """Return the job. A class has one fingerprint and one time; a rank that did not run takes those of its places."""
    options = found.options
    print_of_key = {keys[rank]: found.prints[rank] for rank in found.records}
    numbers: dict[str, int] = {}
    class_of = [numbers.setdefault(print_of_key[keys[rank]], len(numbers)) for rank in range(options.world)]
    first_of = {class_of[rank]: rank for rank in sorted(found.records, reverse=True)}
    times, apart = _time_ranks(found, class_of, first_of, every_rank=every_rank)
    usual: list[RankClass] = []
    unlike: list[RankClass] = []
    for number in range(len(numbers)):
        mine = {rank: one for rank, one in times.items() if class_of[rank] == number}
        ran = [rank for rank in found.records if class_of[rank] == number and rank not in apart]
        most = {rank: one for rank, one in mine.items() if rank not in apart}
        usual.append(_rank_class(found, first_of[number], ran, most))
        parts = _by_time({rank: one for rank, one in mine.items() if rank in apart})
        unlike += [_rank_class(found, first_of[number], [], one) for one in parts]
    for number, rank_class in enumerate(unlike, len(usual)):
        for rank in rank_class.timed:
            class_of[rank] = number
    classes = [*usual, *unlike]
    return Job(
        options.world,
        found.records[min(found.records)].groups,
        classes,
        class_of,
        options.local_world,
        list(options.script),
        sorted(rank for rank_class in unlike for rank in rank_class.timed),
    )


def _time_ranks(
    found: Explored, class_of: Sequence[int], first_of: dict[int, int], *, every_rank: bool
) -> tuple[dict[int, RankRecord], set[int]]:
    """Time some ranks of each class, each alone; all ranks where that is cheap.

    Returns:
        Records of the ranks that were timed, and those of them that work longer or shorter than their class.

    Raises:
        DivergenceError: A rank makes other calls than its class.
    """
    options = found.options
    random = Random(options.seed)
    chosen: list[int] = []
    for number, first in first_of.items():
        others = [rank for rank in range(options.world) if class_of[rank] == number and rank != first]
        chosen += [first, *random.sample(others, min(_CHOSEN, len(others)))]
    found.say(f"{len(first_of)} rank classes; time {len(chosen)} ranks, each alone")
    begun = time.monotonic()
    times = _alone(found, chosen)
    each_s = (time.monotonic() - begun) / len(chosen)
    rest = [rank for rank in range(options.world) if rank not in times]
    if rest and (every_rank or each_s * len(rest) <= options.check_s):
        found.say(f"time the other {len(rest)} ranks, too: about {each_s * len(rest):.0f} s")
        times |= _alone(found, rest)
    for rank, record in times.items():
        found.check_groups(record)
        first_record = found.records[first_of[class_of[rank]]]
        if _calls(found, record) != _calls(found, first_record):
            _refuse(first_record, record)
    return times, _unlike(found, times, class_of, first_of)


def _unlike(
    found: Explored, times: dict[int, RankRecord], class_of: Sequence[int], first_of: dict[int, int]
) -> set[int]:  # fmt: skip
    """Return the ranks that work longer or shorter than their class each time that both are timed.

    A rank that is cleared keeps the record that cleared it; in place.
    """
    usual: dict[int, int] = {}
    doubted: set[int] = set()
    for number in first_of:
        most, *others = _by_time({rank: one for rank, one in times.items() if class_of[rank] == number})
        usual[number] = sorted(most, key=lambda one: _least_ns(times[one]))[len(most) // 2]
        doubted |= {rank for one in others for rank in one}
    for _ in range(_AGAIN):
        if not doubted:
            break
        found.say(f"time {len(doubted)} ranks again, which work longer or shorter than others of their class")
        again = _alone(found, sorted({*doubted, *(usual[class_of[rank]] for rank in doubted)}))
        for rank in sorted(doubted):
            reference = usual[class_of[rank]]
            if len(_by_time({rank: again[rank], reference: again[reference]})) == 1:
                doubted.remove(rank)
                times[rank] = again[rank]
    return doubted


def _alone(found: Explored, ranks: Sequence[int]) -> dict[int, RankRecord]:
    """Time ranks alone. A rank that needs a payload without a recording runs in a slice first."""
    try:
        return capture_alone(found.options, ranks)
    except SlicingError:
        if all(rank in found.records for rank in ranks):
            raise
        found.run(ranks)
        return capture_alone(found.options, ranks)


def _calls(found: Explored, record: RankRecord) -> str:
    """Return the fingerprint of a rank's calls, without its operators."""
    step = record.step
    return fingerprint(Step(step.calls, step.events, step.segments_ns), record.rank, found.layout)


def _least_ns(record: RankRecord) -> int:
    """Return the own work of the shortest iteration that was timed; nanoseconds. Other load only makes it longer."""
    return min(sum(sample) for sample in record.samples_ns)


def _by_time(times: dict[int, RankRecord]) -> list[dict[int, RankRecord]]:
    """Part ranks by how long they work: the largest part first, of equally large ones the slower."""
    parts: list[dict[int, RankRecord]] = []
    begun_ns = 0
    for rank in sorted(times, key=lambda one: _least_ns(times[one])):
        now_ns = _least_ns(times[rank])
        if not parts or now_ns - begun_ns > max(_UNLIKE * begun_ns, _UNLIKE_NS):
            parts.insert(0, {})
            begun_ns = now_ns
        parts[0][rank] = times[rank]
    return sorted(parts, key=len, reverse=True)


def _rank_class(found: Explored, first: int, ran: Sequence[int], times: dict[int, RankRecord]) -> RankClass:
    """Return a class: operators and memory of the rank `first`, calls and times of those that were timed."""
    shape = found.records[first]
    rank = first if first in times or not times else min(times)
    alone = times[rank]
    if rank in found.records:
        check_repeats(rank, found.records[rank].step, alone.step, found.options.warmup)
    totals = [sum(one.step.segments_ns) for one in times.values()]
    calls = found.records.get(rank, alone).step.calls
    step = Step(calls, shape.step.events, alone.step.segments_ns, shape.step.work, shape.step.grown_bytes,
                shape.step.peak_bytes, alone.step.busy_ns)  # fmt: skip
    return RankClass(
        rank,
        sorted({*ran, *times}),
        step,
        [sample for one in times.values() for sample in one.samples_ns],
        (max(totals) - min(totals)) / max(totals) if max(totals) else 0.0,
        shape.peak_bytes,
        sorted(times),
        [sizes for one in times.values() for sizes in one.sizes],
    )
