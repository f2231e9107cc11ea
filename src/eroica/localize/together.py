"""Waiting in collectives that nobody leaves before everybody has come.

Array suffixes: M members of a group, K matched executions. All times are microseconds.
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
from eroica.localize.leaving import recorded_skew_floor, skew_floor, uneven_exit
from eroica.localize.ledger import Ledger
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
from eroica.localize.meetings import MeetingBlock
from eroica.model.pattern import CollectiveRecord
from eroica.summarize.series import decode_series

Floats = NDArray[np.float64]
_MOST_LISTED = 8
#: Kinds in which members may bring and get unequally much, and leave once they have theirs.
_UNEVEN = frozenset({"all_to_all"})


def book_synchronizing(
    ledger: Ledger,
    fleet: Fleet,
    name: tuple[str, str],
    ranks: tuple[int, ...],
    owners: Mapping[int, CollectiveRecord],
    timed: Mapping[int, CollectiveRecord],
) -> None:
    """Executions of a group whose members are known.

    Args:
        ledger: Where they are entered.
        fleet: The window.
        name: Group and kind.
        ranks: Global ranks of the members.
        owners: Records by worker, with ends only where these may pair and refuse.
        timed: The same with all ends there are.
    """
    present = {fleet.ranks[worker]: worker for worker in owners}
    members = [present[rank] for rank in ranks if rank in present]
    records = [owners[worker] for worker in members]
    places, reason = pair_executions(records, uneven_exit(fleet.carriers, name[0])) if members else ([], "")
    ledger.refuse(reason)
    untraced = [rank for rank in ranks if rank not in fleet.known_ranks]
    if untraced and not reason and len(members) == len(ranks) - len(untraced) and _is_confirmed(records, places):
        listed = ", ".join(map(str, untraced[:_MOST_LISTED])) + (", ..." if len(untraced) > _MOST_LISTED else "")
        whom = f"{len(untraced)} of {len(ranks)} members of process group {name[0]!r} ({listed})"
        ledger.notes.append(f"there is no trace of {whom}: in its {name[1]} blame is judged among the others only")
    elif len(members) < len(ranks):
        absent = f"{len(ranks) - len(members)} of {len(ranks)} members of process group {name[0]!r}"
        apart = f", and what the others show does not pair ({reason})" if is_contradiction(reason) else ""
        ledger.notes.append(f"{absent} show no {name[1]}{apart}: nobody is blamed for it")
        return
    if reason:
        ledger.notes.append(f"{name[1]} in process group {name[0]!r} does not pair ({reason}): nobody is blamed for it")
        return
    _book(ledger, fleet, name, members, records, places, [timed[worker] for worker in members])


def _is_confirmed(records: Sequence[CollectiveRecord], places: Sequence[NDArray[np.intp]]) -> bool:
    """Whether enough ends of recorded traces agree with a pairing that not all members can vouch for."""
    return len(records) > 1 and stacked_ends(records, places).shape[1] >= FEWEST_VERIFIED


def book_unnamed(ledger: Ledger, fleet: Fleet, name: tuple[str, str], owners: Mapping[int, CollectiveRecord]) -> None:
    """Executions of a group that no trace describes: its members are all workers, or nobody knows them."""
    members = sorted(owners)
    places, reason = pair_by_order([owners[worker] for worker in members], uneven_exit(fleet.carriers, name[0]))
    ledger.refuse(reason)
    world = max(len(fleet.ranks), *(pattern.worker.world_size for pattern in fleet.patterns))
    if not reason and len(members) < world:
        reason = f"its members are unknown, and only {len(members)} of {world} workers show it"
    if reason:
        which = f"process group {name[0]!r}" if name[0] else "a process group without a name"
        ledger.notes.append(f"{name[1]} in {which} does not pair ({reason}): nobody is blamed for it")
        return
    _book(ledger, fleet, name, members, [owners[worker] for worker in members], places)


def _book(
    ledger: Ledger,
    fleet: Fleet,
    name: tuple[str, str],
    members: Sequence[int],
    records: Sequence[CollectiveRecord],
    places: Sequence[NDArray[np.intp]],
    timed: Sequence[CollectiveRecord] = (),
) -> None:
    """Book the waiting in matched executions; in a single recorded iteration once all kinds of the group are known."""
    duration_MK, end_MK = stacked(records, places, "duration_us"), stacked_ends(records, places)
    if name[1] in _UNEVEN:
        duration_MK = without_larger_shares(duration_MK, records, places)
    columns_MK = columns_of_all(ledger, members, records, places)
    site_K = sites_of(columns_MK[0])
    skew = exit_skew(duration_MK, skew_floor(fleet.carriers, name[0]), site_K)
    if end_MK.shape[1] >= FEWEST_VERIFIED:
        skew = measured_skew(end_MK, recorded_skew_floor(fleet.carriers, name[0]))
    ledger.skew[name] = skew
    critical_MK = stacked(records, places, "critical_us")
    wait_MK = waits_in(duration_MK, critical_MK)
    if name[1] not in _UNEVEN:
        ledger.transfer_us[name] = (critical_MK - wait_MK).mean(axis=0)
    share_MK = shares_of_blame(duration_MK, skew)
    alone = fleet.columns.shape[1] == 1 and end_MK.shape[1] > 0
    part = Matched(
        group=name[0],
        kind=name[1],
        members=tuple(members),
        duration_us=duration_MK,
        wait_us=wait_MK,
        share=share_MK if alone else keep_repeated(share_MK, wait_MK, columns_MK, site_K),
        nearly_last=nearly_last(duration_MK, skew) if end_MK.shape[1] else np.zeros(duration_MK.shape, np.bool_),
        end_us=end_MK,
        columns=columns_MK,
    )
    block = block_of(ledger, part, critical_MK, timed or records, places)
    if alone:
        ledger.pending.append((part, block))
    else:
        ledger.book(part, block)


def without_larger_shares(
    duration_MK: Floats, records: Sequence[CollectiveRecord], places: Sequence[NDArray[np.intp]]
) -> Floats:
    """Durations less what members need longer because they move more data than the one that moves least.

    At the rate of whoever was fastest for its size, who did not wait: nobody's own transfer can have been shorter.
    Where sizes are not known, or equal, nothing changes.

    Args:
        duration_MK: Microseconds. float64 [M, K].
        records: One per member; of `elements` what the library writes down, which are those that it sends.
        places: Which executions of each record pair. intp [K] each.
    """
    if not all(record.elements for record in records):
        return duration_MK
    size_MK = np.stack(
        [decode_series(record.elements, np.int64)[at] for record, at in zip(records, places, strict=True)]
    ).astype(np.float64)
    least_K, sizes_known_K = size_MK.min(axis=0), (size_MK > 0).all(axis=0)
    rate_K = (duration_MK / np.maximum(size_MK, 1.0)).min(axis=0)
    return np.asarray(duration_MK - np.where(sizes_known_K, rate_K * (size_MK - least_K), 0.0))


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


def block_of(
    ledger: Ledger,
    part: Matched,
    critical_MK: Floats,
    records: Sequence[CollectiveRecord],
    places: Sequence[NDArray[np.intp]],
) -> MeetingBlock | None:
    """Executions with their places in time, from the first on whose blame is passed on; None where ends are unknown."""
    first = int(ledger.first_chained(part.columns[None])[0])
    end_MK = stacked_ends(records, places)[:, first:]
    if not end_MK.shape[1]:
        return None
    return MeetingBlock(
        members=np.asarray([part.members], dtype=np.intp),
        group=np.asarray([ledger.queue(part.group)]),
        team=np.asarray([ledger.team(part.members)]),
        duration_us=part.duration_us[None, :, first:].copy(),
        critical_us=critical_MK[None, :, first:].copy(),
        end_us=end_MK[None],
        waits=np.ones((1, *end_MK.shape), dtype=np.bool_),
        transfer_us=part.duration_us[None, :, first:].min(axis=1),
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
