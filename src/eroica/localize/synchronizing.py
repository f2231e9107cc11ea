"""Book waiting in collectives that no member leaves before all members have come.

Array suffixes: G groups of M members, K matched executions. All times are microseconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.localize.blame import (
    exit_skew,
    is_often,
    keep_repeated,
    measured_skew,
    nearly_last,
    shares_of_blame,
    sites_of,
)
from eroica.localize.fleet import Fleet
from eroica.localize.ledger import Ledger, Timed
from eroica.localize.matching import (
    FEWEST_VERIFIED,
    Matched,
    is_contradiction,
    pair_by_order,
    pair_executions,
    stacked,
    stacked_ends,
    waits_in,
)
from eroica.model.pattern import CollectiveRecord
from eroica.model.series import decode_series

Floats = NDArray[np.float64]
Places = NDArray[np.intp]
_MOST_LISTED = 8
#: Times of executions that are judged in one go: few enough for a processor's cache.
_AT_ONCE = 100_000


class Paired(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Paired executions of one kind in one group.

    Attributes:
        name: Group and kind.
        members: Indices of the workers. M of them.
        records: One per member.
        places: Which executions of each record pair. intp [K] each.
        is_partial: Members are missing: nobody is blamed, for nobody knows whether these were the last; but none of
            those who are here left before the others of them came.
    """

    name: tuple[str, str]
    members: tuple[int, ...]
    records: Sequence[CollectiveRecord]
    places: Sequence[Places]
    is_partial: bool = False

    def is_whole(self) -> bool:
        """Return whether all executions of all members pair, in the order in which they stand, in equal iterations."""
        place_K, first = self.places[0], self.records[0]
        whole = all(
            at is place_K and record.executions == at.size and record.iteration == first.iteration
            for at, record in zip(self.places, self.records, strict=True)
        )
        return whole and np.array_equal(place_K, np.arange(place_K.size))

    def columns(self, ledger: Ledger) -> Places:
        """Iteration each member counts each execution in; nearly always all members name the same ones. intp [M, K]."""
        if len({record.iteration for record in self.records}) == 1 and all(at is self.places[0] for at in self.places):
            iterations = decode_series(self.records[0].iteration, np.int32)[self.places[0]]
        else:
            both = zip(self.records, self.places, strict=True)
            iterations = np.stack([decode_series(record.iteration, np.int32)[at] for record, at in both])
        return ledger.columns_of(self.members, iterations)

    def chained_ends(self, ledger: Ledger, columns_MK: Places) -> Floats:
        """Ends on each member's own clock, from the first execution on whose blame is passed on. float64 [M, <= K]."""
        first = int(ledger.first_chained(columns_MK[None])[0])
        if first == columns_MK.shape[1]:
            return np.zeros((len(self.members), 0))
        return stacked_ends(self.records, self.places)[:, first:]


def pair_synchronizing(
    ledger: Ledger,
    fleet: Fleet,
    name: tuple[str, str],
    ranks: tuple[int, ...],
    owners: Mapping[int, CollectiveRecord],
) -> Paired | None:
    """Executions of a group whose members are known.

    Args:
        ledger: Where it is written down what does not pair, and why.
        fleet: The window.
        name: Group and kind.
        ranks: Global ranks of the members.
        owners: Records by worker.

    Returns:
        None where they do not pair.
    """
    present = {fleet.ranks[worker]: worker for worker in owners}
    members = [present[rank] for rank in ranks if rank in present]
    records = [owners[worker] for worker in members]
    places, reason = pair_executions(records, exit_of(fleet, name[0])) if members else ([], "")
    ledger.refuse(reason)
    is_partial = False
    untraced = [rank for rank in ranks if rank not in fleet.known_ranks]
    is_confirmed = fleet.is_recorded and len(records) > 1 and not reason
    is_confirmed = is_confirmed and stacked_ends(records, places).shape[1] >= FEWEST_VERIFIED
    if untraced and len(members) == len(ranks) - len(untraced) and is_confirmed:
        listed = ", ".join(map(str, untraced[:_MOST_LISTED])) + (", ..." if len(untraced) > _MOST_LISTED else "")
        whom = f"{len(untraced)} of {len(ranks)} members of process group {name[0]!r} ({listed})"
        ledger.notes.append(
            f"the comparison has no trace of {whom}: in its {name[1]} blame is judged among the others only"
        )
    elif len(members) < len(ranks):
        absent = f"{len(ranks) - len(members)} of {len(ranks)} members of process group {name[0]!r}"
        apart = f", and what the others show does not pair ({reason})" if is_contradiction(reason) else ""
        ledger.notes.append(f"{absent} show no {name[1]}{apart}: nobody is blamed for it")
        by_number = not fleet.is_recorded and all(record.paired_by == "sequence" for record in records)
        is_partial = len(members) > 1 and not reason and by_number
        if not is_partial:
            return None
    if reason:
        ledger.notes.append(f"{name[1]} in process group {name[0]!r} does not pair ({reason}): nobody is blamed for it")
        return None
    return Paired(name=name, members=tuple(members), records=records, places=places, is_partial=is_partial)


def exit_of(fleet: Fleet, group: str) -> float | None:
    """Return how unevenly members may leave by their ends; None where ends confirm and refuse no pairing.

    Online, sequence numbers pair, and the library's threads write ends down when they get a core.
    """
    return fleet.carriers.uneven_exit(group) if fleet.is_recorded else None


def pair_unnamed(
    ledger: Ledger, fleet: Fleet, name: tuple[str, str], owners: Mapping[int, CollectiveRecord]
) -> Paired | None:
    """Pair executions of a group that no trace describes; None unless all workers show it and it pairs."""
    members = sorted(owners)
    records = [owners[worker] for worker in members]
    places, reason = pair_by_order(records, fleet.carriers.uneven_exit(name[0]))
    ledger.refuse(reason)
    world = max(len(fleet.ranks), *(pattern.worker.world_size for pattern in fleet.patterns))
    if not reason and len(members) < world:
        reason = f"its members are unknown, and only {len(members)} of {world} workers show it"
    if reason:
        which = f"process group {name[0]!r}" if name[0] else "a process group without a name"
        ledger.notes.append(f"{name[1]} in {which} does not pair ({reason}): nobody is blamed for it")
        return None
    return Paired(name=name, members=tuple(members), records=records, places=places)


def book_together(ledger: Ledger, fleet: Fleet, paired: Sequence[Paired]) -> None:
    """Book the waiting in matched executions, in one go for groups that are like each other.

    In a single recorded iteration it is booked once all kinds of a group are known: executions of all kinds of a group
    take the place of iterations.
    """
    alike: dict[tuple[object, ...], list[Paired]] = defaultdict(list)
    for at, one in enumerate(paired):
        first = one.records[0]
        shape = one.name[1], one.is_partial, len(one.members), first.executions, first.iteration
        alike[(at,) if fleet.is_recorded or not one.is_whole() else shape].append(one)
    single: dict[tuple[str, tuple[int, ...]], list[tuple[Matched, Timed | None]]] = defaultdict(list)
    for some in alike.values():
        step = max(_AT_ONCE // max(len(some[0].members) * some[0].places[0].size, 1), 1)
        for start in range(0, len(some), step):
            for matched, timed in _book(ledger, fleet, some[start : start + step]):
                single[matched.group, matched.members].append((matched, timed))
    for parts in single.values():
        often_M = np.concatenate([part.nearly_last for part, _ in parts], axis=1).mean(axis=1)
        kept_M = is_often(often_M, often_M.size)
        for part, timed in parts:
            _enter_matched(ledger, msgspec.structs.replace(part, share=part.share * kept_M[:, None]), timed)


def _book(ledger: Ledger, fleet: Fleet, parts: Sequence[Paired]) -> list[tuple[Matched, Timed | None]]:
    """Judge and book groups that are like each other, or one; return what is to be booked later."""
    columns = [part.columns(ledger) for part in parts]
    ends = [part.chained_ends(ledger, columns_MK) for part, columns_MK in zip(parts, columns, strict=True)]
    differ = any(not np.array_equal(columns[0], one) for one in columns) or len({end_MK.shape for end_MK in ends}) > 1
    if differ:
        return [later for part in parts for later in _book(ledger, fleet, [part])]
    columns_MK, names = columns[0], [part.name for part in parts]
    duration_GMK, critical_GMK = (
        np.stack([stacked(part.records, part.places, name) for part in parts])
        for name in ("duration_us", "critical_us")
    )
    end_MK = np.zeros((columns_MK.shape[0], 0))
    if fleet.is_recorded:
        end_MK = stacked_ends(parts[0].records, parts[0].places)
    is_single = end_MK.shape[1] > 0 and fleet.columns.shape[1] == 1
    site_K = sites_of(columns_MK[0])
    skew_G = exit_skew(duration_GMK, np.asarray([fleet.carriers.skew_floor(name[0]) for name in names]), site_K)
    if end_MK.shape[1] >= FEWEST_VERIFIED:
        skew_G = np.asarray([measured_skew(end_MK, fleet.carriers.skew_floor(names[0][0], is_recorded=True))])
    wait_GMK = waits_in(duration_GMK, critical_GMK)
    share_GMK = np.zeros_like(wait_GMK) if parts[0].is_partial else shares_of_blame(duration_GMK, skew_G)
    if not is_single:
        share_GMK = keep_repeated(share_GMK, wait_GMK, common_column(columns_MK), site_K)
    ledger.transfer_us.update(zip(names, (critical_GMK - wait_GMK).mean(axis=1), strict=True))
    timed = place_in_time([name[0] for name in names], np.stack(ends), duration_GMK, critical_GMK)
    if not end_MK.shape[1]:
        members_GM = np.asarray([part.members for part in parts], dtype=np.intp)
        columns_GMK = np.broadcast_to(columns_MK, (len(parts), *columns_MK.shape))
        ledger.enter(members_GM, wait_GMK, share_GMK, columns_GMK, timed)
        return []
    matched = Matched(
        group=names[0][0],
        kind=names[0][1],
        members=parts[0].members,
        duration_us=duration_GMK[0],
        wait_us=wait_GMK[0],
        share=share_GMK[0],
        nearly_last=nearly_last(duration_GMK[0], float(skew_G[0])),
        end_us=end_MK,
        columns=columns_MK,
    )
    if is_single:
        return [(matched, timed)]
    _enter_matched(ledger, matched, timed)
    return []


def _enter_matched(ledger: Ledger, part: Matched, timed: Timed | None) -> None:
    """Enter executions of recorded traces, and keep them."""
    counted_K = (part.columns >= 0).all(axis=0)
    part = msgspec.structs.replace(part, share=np.where(counted_K, part.share, 0.0))
    members_M = np.asarray(part.members, dtype=np.intp)
    ledger.enter(members_M[None], part.wait_us[None], part.share[None], part.columns[None], timed)
    ledger.matched.append(part)


def common_column(columns_MK: Places) -> Places:
    """Iteration of each execution, -1 where any member counts it in none. intp [K]."""
    return np.where((columns_MK >= 0).all(axis=0), columns_MK[0], -1)


def place_in_time(groups: Sequence[str], end_GMK: Floats, duration_GMK: Floats, critical_GMK: Floats) -> Timed | None:
    """The last executions of some groups with their places in time; None where there are none.

    Args:
        groups: Names of the process groups.
        end_GMK: See `Paired.chained_ends`. float64 [G, M, K or fewer].
        duration_GMK: float64 [G, M, K].
        critical_GMK: float64 [G, M, K].
    """
    if not end_GMK.shape[2]:
        return None
    duration_GMK, critical_GMK = (one[..., -end_GMK.shape[2] :] for one in (duration_GMK, critical_GMK))
    return Timed(groups, end_GMK, duration_GMK, critical_GMK, duration_GMK.min(axis=1))
