"""Book waiting in collectives that no member leaves before all members have come.

Array suffixes: G groups of M members, K matched executions. All times are microseconds.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from math import prod

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.engine import HERE, Engine
from eroica.localize.blame import (
    Ledger,
    exit_skew,
    is_often,
    keep_repeated,
    measured_skew,
    nearly_last,
    shares_of_blame,
    sites_of,
)
from eroica.localize.fleet import Fleet
from eroica.localize.matching import (
    FEWEST_VERIFIED,
    Matched,
    is_contradiction,
    pair_by_order,
    pair_executions,
    recorded_skew_floor,
    skew_floor,
    stacked,
    stacked_ends,
    uneven_exit,
    waits_in,
)
from eroica.localize.meetings import MeetingBlock
from eroica.model.pattern import CollectiveRecord
from eroica.model.series import decode_series, decode_together

Floats = NDArray[np.float64]
_MOST_LISTED = 8
#: Times of executions that are judged in one go: few enough for a processor's cache.
_AT_ONCE = 100_000


class Paired(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Paired executions of one kind in one group.

    Attributes:
        name: Group and kind.
        members: Indices of the workers. M of them.
        records: One per member, with ends only where these may refuse a pairing.
        places: Which executions of each record pair. intp [K] each.
        timed: The records with all ends there are.
        is_partial: Members are missing: nobody is blamed, for nobody knows whether these were the last; but none of
            those who are here left before the others of them came.
    """

    name: tuple[str, str]
    members: tuple[int, ...]
    records: Sequence[CollectiveRecord]
    places: Sequence[NDArray[np.intp]]
    timed: Sequence[CollectiveRecord]
    is_partial: bool = False

    @property
    def is_whole(self) -> bool:
        """True if all executions of all members pair, in the order in which they stand."""
        place_K = self.places[0]
        whole = all(
            at is place_K and record.executions == at.size for at, record in zip(self.places, self.records, strict=True)
        )
        return whole and np.array_equal(place_K, np.arange(place_K.size))


def pair_synchronizing(
    ledger: Ledger,
    fleet: Fleet,
    name: tuple[str, str],
    ranks: tuple[int, ...],
    owners: Mapping[int, CollectiveRecord],
    timed: Mapping[int, CollectiveRecord],
) -> Paired | None:
    """Executions of a group whose members are known.

    Args:
        ledger: Where it is written down what does not pair, and why.
        fleet: The window.
        name: Group and kind.
        ranks: Global ranks of the members.
        owners: Records by worker, with ends only where these may pair and refuse.
        timed: The same with all ends there are.

    Returns:
        None where they do not pair.
    """
    present = {fleet.ranks[worker]: worker for worker in owners}
    members = [present[rank] for rank in ranks if rank in present]
    records = [owners[worker] for worker in members]
    places, reason = pair_executions(records, uneven_exit(fleet.carriers, name[0])) if members else ([], "")
    ledger.refuse(reason)
    is_partial = False
    untraced = [rank for rank in ranks if rank not in fleet.known_ranks]
    if untraced and not reason and len(members) == len(ranks) - len(untraced) and _is_confirmed(records, places):
        listed = ", ".join(map(str, untraced[:_MOST_LISTED])) + (", ..." if len(untraced) > _MOST_LISTED else "")
        whom = f"{len(untraced)} of {len(ranks)} members of process group {name[0]!r} ({listed})"
        ledger.notes.append(
            f"the comparison has no trace of {whom}: in its {name[1]} blame is judged among the others only"
        )
    elif len(members) < len(ranks):
        absent = f"{len(ranks) - len(members)} of {len(ranks)} members of process group {name[0]!r}"
        apart = f", and what the others show does not pair ({reason})" if is_contradiction(reason) else ""
        ledger.notes.append(f"{absent} show no {name[1]}{apart}: nobody is blamed for it")
        is_partial = len(members) > 1 and not reason and _by_sequence(records)
        if not is_partial:
            return None
    if reason:
        ledger.notes.append(f"{name[1]} in process group {name[0]!r} does not pair ({reason}): nobody is blamed for it")
        return None
    timed_M = [timed[worker] for worker in members]
    return Paired(
        name=name,
        members=tuple(members),
        records=records,
        places=places,
        timed=timed_M,
        is_partial=is_partial,
    )


def _by_sequence(records: Sequence[CollectiveRecord]) -> bool:
    """Return whether the group's own numbers pair executions, which no missing member puts in doubt. Online only."""
    return all(record.paired_by == "sequence" and not record.end_us for record in records)


def _is_confirmed(records: Sequence[CollectiveRecord], places: Sequence[NDArray[np.intp]]) -> bool:
    """Return whether enough ends of recorded traces agree with a pairing that a missing member leaves in doubt."""
    return len(records) > 1 and stacked_ends(records, places).shape[1] >= FEWEST_VERIFIED


def pair_unnamed(
    ledger: Ledger, fleet: Fleet, name: tuple[str, str], owners: Mapping[int, CollectiveRecord]
) -> Paired | None:
    """Pair executions of a group that no trace describes; None unless all workers show it and it pairs."""
    members = sorted(owners)
    records = [owners[worker] for worker in members]
    places, reason = pair_by_order(records, uneven_exit(fleet.carriers, name[0]))
    ledger.refuse(reason)
    world = max(len(fleet.ranks), *(pattern.worker.world_size for pattern in fleet.patterns))
    if not reason and len(members) < world:
        reason = f"its members are unknown, and only {len(members)} of {world} workers show it"
    if reason:
        which = f"process group {name[0]!r}" if name[0] else "a process group without a name"
        ledger.notes.append(f"{name[1]} in {which} does not pair ({reason}): nobody is blamed for it")
        return None
    return Paired(name=name, members=tuple(members), records=records, places=places, timed=records)


def book_together(ledger: Ledger, fleet: Fleet, paired: Sequence[Paired], engine: Engine = HERE) -> None:
    """Book the waiting in matched executions, in one go for groups that are like each other.

    In a single recorded iteration it is booked once all kinds of a group are known.

    Args:
        ledger: Where it is booked.
        fleet: The window.
        paired: The groups.
        engine: Where groups are judged; they are booked here, in order.
    """
    alike: dict[tuple[object, ...], list[Paired]] = defaultdict(list)
    for at, one in enumerate(paired):
        record = one.records[0]
        shape = len(one.members), record.executions, record.iteration
        alike[(one.name[1], one.is_partial, *shape) if _is_alike(one) else (at,)].append(one)
    bundles: list[Sequence[Paired]] = []
    for some in alike.values():
        step = max(_AT_ONCE // max(len(some[0].members) * some[0].places[0].size, 1), 1)
        bundles += [some[start : start + step] for start in range(0, len(some), step)]
    asked: deque[_Asked] = deque()

    def handed_out() -> Iterator[Question]:
        for bundle in bundles:
            for each in _asked(ledger, fleet, bundle):
                asked.append(each)
                yield each.question

    for judged in engine.map(judge, handed_out()):
        answered = asked.popleft()
        if judged is not None:
            _enter(ledger, answered, judged)
            continue
        for part in answered.parts:
            alone = _by_itself(ledger, fleet, part)
            _enter(ledger, alone, _judged(alone.question, *alone.question.given))


class Question(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Groups that are like each other, or any one, with all that judging them takes.

    Attributes:
        durations: Of each member of each group, as `CollectiveRecord.duration_us`, where all executions pair.
        criticals: The same of `critical_us`.
        given: Instead of both, of one group: durations, and what of them is critical. float64 [1, M, K] each.
        columns: Iteration that each member counts an execution in, -1 = none; the same in all groups. intp [M, K].
        floor_us: Least exit skew to be expected of each group. float64 [G].
        end_us: Ends that may refuse a pairing, of one group by itself. float64 [M, K or 0].
        end_floor_us: Least skew of those.
        is_partial: As in `Paired`.
        is_alone: There is a single iteration, whose late are found later.
        first: First execution on whose blame is passed on; K = none.
    """

    durations: Sequence[bytes] = ()
    criticals: Sequence[bytes] = ()
    given: tuple[Floats, ...] = ()
    columns: NDArray[np.intp]
    floor_us: Floats
    end_us: Floats
    end_floor_us: float
    is_partial: bool
    is_alone: bool
    first: int

    def times(self) -> tuple[Floats, ...] | None:
        """Durations, and what of them is critical, float64 [G, M, K] each; None where series are of another length."""
        if self.given:
            return self.given
        shape = self.floor_us.size, *self.columns.shape
        decoded = [decode_together(parts, np.float32) for parts in (self.durations, self.criticals)]
        fitting = [
            one.astype(np.float64).reshape(shape) for one in decoded if one is not None and one.size == prod(shape)
        ]
        return tuple(fitting) if len(fitting) == len(decoded) else None


class Judged(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Waiting and blame that the durations of some groups tell.

    Attributes:
        skew_us: How unevenly members leave. float64 [G].
        transfer_us: Critical time in which nobody is waited for, mean over members. float64 [G, K].
        wait_us: Critical waiting. float64 [G, M, K].
        share: Each member's share of the blame. float64 [G, M, K].
        duration_us: Durations, all where there are ends that may refuse a pairing, else from `Question.first` on.
            float64 [G, M, K or fewer].
        critical_us: What of them is critical, from `Question.first` on. float64 [G, M, K or fewer].
    """

    skew_us: Floats
    transfer_us: Floats
    wait_us: Floats
    share: Floats
    duration_us: Floats
    critical_us: Floats


class _Asked(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A question, and what its answer is booked with.

    Attributes:
        parts: The groups.
        chained_us: All ends, from the first execution on whose blame is passed on. float64 [G, M, K or fewer].
    """

    parts: Sequence[Paired]
    chained_us: Floats
    question: Question


def _is_alike(one: Paired) -> bool:
    """Return whether members have all executions in common, and only sequence numbers and durations judge them."""
    is_plain = not any(record.end_us for record in one.records)
    return is_plain and one.is_whole and len({record.iteration for record in one.records}) == 1


def _asked(ledger: Ledger, fleet: Fleet, parts: Sequence[Paired]) -> list[_Asked]:
    """One question for groups that are like each other as far as their records tell, else one for each."""
    together = _side_by_side(ledger, fleet, parts) if len(parts) > 1 else None
    return [together] if together is not None else [_by_itself(ledger, fleet, part) for part in parts]


def judge(asked: Question) -> Judged | None:
    """Judge who waited in some groups, and for whom; None where the series do not lie side by side.

    Raises:
        InputError: A series is damaged.
    """
    times = asked.times()
    return None if times is None else _judged(asked, *times)


def _judged(asked: Question, duration_us: Floats, critical_us: Floats) -> Judged:
    site_K = sites_of(asked.columns[0])
    skew_G = exit_skew(duration_us, asked.floor_us, site_K)
    has_ends = asked.end_us.shape[1] > 0
    if asked.end_us.shape[1] >= FEWEST_VERIFIED:
        skew_G = np.asarray([measured_skew(asked.end_us, asked.end_floor_us)])
    wait_us = waits_in(duration_us, critical_us)
    share = shares_of_blame(duration_us, skew_G)
    if asked.is_partial:
        share = np.zeros_like(share)
    if not (asked.is_alone and has_ends):
        share = keep_repeated(share, wait_us, common_column(asked.columns), site_K)
    return Judged(
        skew_us=skew_G,
        transfer_us=(critical_us - wait_us).mean(axis=1),
        wait_us=wait_us,
        share=share,
        duration_us=duration_us[..., 0 if has_ends else asked.first :],
        critical_us=critical_us[..., asked.first :],
    )


def _enter(ledger: Ledger, asked: _Asked, judged: Judged) -> None:
    """Book what was found out."""
    parts, question = asked.parts, asked.question
    names = [part.name for part in parts]
    ledger.transfer_us.update(zip(names, judged.transfer_us, strict=True))
    has_ends = question.end_us.shape[1] > 0
    chained_us = judged.duration_us[..., question.first if has_ends else 0 :]
    block = block_of(ledger, parts, asked.chained_us, chained_us, judged.critical_us)
    if not has_ends:
        members_GM = np.asarray([part.members for part in parts], dtype=np.intp)
        columns_GMK = np.broadcast_to(question.columns, (len(parts), *question.columns.shape))
        ledger.enter(members_GM, judged.wait_us, judged.share, columns_GMK, block)
        return
    matched = Matched(
        group=names[0][0],
        kind=names[0][1],
        members=parts[0].members,
        duration_us=judged.duration_us[0],
        wait_us=judged.wait_us[0],
        share=judged.share[0],
        nearly_last=nearly_last(judged.duration_us[0], float(judged.skew_us[0])),
        end_us=question.end_us,
        columns=question.columns,
    )
    if question.is_alone:
        ledger.pending.append((matched, block))
    else:
        ledger.book(matched, block)


def _by_itself(ledger: Ledger, fleet: Fleet, part: Paired) -> _Asked:
    duration_MK, critical_MK = (stacked(part.records, part.places, name) for name in ("duration_us", "critical_us"))
    columns_MK = columns_of_all(ledger, part.members, part.records, part.places)
    chained_us = chained_ends(ledger, part, columns_MK)[None]
    question = Question(
        given=(duration_MK[None], critical_MK[None]),
        columns=columns_MK,
        floor_us=np.asarray([skew_floor(fleet.carriers, part.name[0])]),
        end_us=stacked_ends(part.records, part.places),
        end_floor_us=recorded_skew_floor(fleet.carriers, part.name[0]),
        is_partial=part.is_partial,
        is_alone=fleet.columns.shape[1] == 1,
        first=columns_MK.shape[1] - chained_us.shape[2],
    )
    return _Asked(parts=[part], chained_us=chained_us, question=question)


def _side_by_side(ledger: Ledger, fleet: Fleet, parts: Sequence[Paired]) -> _Asked | None:
    """Groups in one question; None where they differ after all, in what counts or in how long their series are."""
    records = [record for part in parts for record in part.records]
    shape = len(parts), len(parts[0].members), parts[0].places[0].size
    members_GM = np.asarray([part.members for part in parts], dtype=np.intp)
    columns_GMK = ledger.columns_of(members_GM, decode_series(records[0].iteration, np.int32))
    if columns_GMK.size != int(np.prod(shape)) or not (columns_GMK == columns_GMK[0, 0]).all():
        return None
    ends = [chained_ends(ledger, part, columns_MK) for part, columns_MK in zip(parts, columns_GMK, strict=True)]
    if len({end_MK.shape for end_MK in ends}) > 1:
        return None
    floors = [skew_floor(fleet.carriers, part.name[0]) for part in parts]
    return _Asked(
        parts=parts,
        chained_us=np.stack(ends),
        question=Question(
            durations=[record.duration_us for record in records],
            criticals=[record.critical_us for record in records],
            columns=columns_GMK[0],
            floor_us=np.asarray(floors),
            end_us=np.zeros((shape[1], 0)),
            end_floor_us=0.0,
            is_partial=parts[0].is_partial,
            is_alone=fleet.columns.shape[1] == 1,
            first=shape[2] - ends[0].shape[1],
        ),
    )


def columns_of_all(
    ledger: Ledger,
    members: Sequence[int],
    records: Sequence[CollectiveRecord],
    places: Sequence[NDArray[np.intp]],
) -> NDArray[np.intp]:
    """Iteration each member counts each execution in; nearly always all members name the same ones. intp [M, K]."""
    if len({record.iteration for record in records}) == 1 and all(at is places[0] for at in places):
        return ledger.columns_of(members, decode_series(records[0].iteration, np.int32)[places[0]])
    iterations = [decode_series(record.iteration, np.int32)[at] for record, at in zip(records, places, strict=True)]
    return ledger.columns_of(members, np.stack(iterations))


def common_column(columns_MK: NDArray[np.intp]) -> NDArray[np.intp]:
    """Iteration of each execution, -1 where any member counts it in none. intp [K]."""
    return np.where((columns_MK >= 0).all(axis=0), columns_MK[0], -1)


def chained_ends(ledger: Ledger, part: Paired, columns_MK: NDArray[np.intp]) -> Floats:
    """Ends on each member's own clock, from the first execution on whose blame is passed on. float64 [M, <= K]."""
    first = int(ledger.first_chained(columns_MK[None])[0])
    if first == columns_MK.shape[1]:
        return np.zeros((len(part.members), 0))
    return stacked_ends(part.timed, part.places)[:, first:]


def block_of(
    ledger: Ledger, parts: Sequence[Paired], end_GMK: Floats, duration_GMK: Floats, critical_GMK: Floats
) -> MeetingBlock | None:
    """The last executions of some groups with their places in time; None where there are none.

    Args:
        ledger: Where groups are numbered.
        parts: The groups.
        end_GMK: See `chained_ends`. float64 [G, M, K or fewer].
        duration_GMK: float64 [G, M, K].
        critical_GMK: float64 [G, M, K].
    """
    if not end_GMK.shape[2]:
        return None
    first = duration_GMK.shape[2] - end_GMK.shape[2]
    return MeetingBlock(
        members=np.asarray([part.members for part in parts], dtype=np.intp),
        group=np.asarray([ledger.queue(part.name[0]) for part in parts]),
        team=np.asarray([ledger.team(part.members) for part in parts]),
        duration_us=duration_GMK[..., first:].copy(),
        critical_us=critical_GMK[..., first:].copy(),
        end_us=end_GMK,
        waits=np.ones(end_GMK.shape, dtype=np.bool_),
        transfer_us=duration_GMK[..., first:].min(axis=1),
    )


def settle_single_iteration(ledger: Ledger) -> None:
    """Book the single recorded iteration, where executions of all kinds of a group take the place of iterations."""
    groups: dict[tuple[str, tuple[int, ...]], list[tuple[Matched, MeetingBlock | None]]] = defaultdict(list)
    for part, block in ledger.pending:
        groups[part.group, part.members].append((part, block))
    for parts in groups.values():
        often_M = np.concatenate([part.nearly_last for part, _ in parts], axis=1).mean(axis=1)
        kept_M = is_often(often_M, often_M.size)
        for part, block in parts:
            ledger.book(msgspec.structs.replace(part, share=part.share * kept_M[:, None]), block)
