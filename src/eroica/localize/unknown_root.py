"""Book waiting in broadcasts, reduces, gathers and scatters whose root no record names.

Which member waits for which depends on the root, and on the tree or the ring that carries the data; a member that
nobody waits for leaves early. But where all members but one wait, they wait for that one: a late root of a broadcast,
or of two members the later one. In other executions no member is blamed.

Array suffixes: M members of a group, K matched executions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from eroica.localize.blame import exit_skew, keep_repeated, sites_of
from eroica.localize.fleet import Fleet
from eroica.localize.ledger import Ledger
from eroica.localize.matching import SKEW_FLOOR_OTHER_US, Matched, skew_floor, stacked, waits_in
from eroica.localize.synchronizing import Paired, block_of, chained_ends, columns_of_all, common_column
from eroica.model.pattern import CollectiveRecord

Floats = NDArray[np.float64]
Places = NDArray[np.intp]


def book_untold(
    ledger: Ledger,
    fleet: Fleet,
    name: tuple[str, str],
    members: Sequence[int],
    places: Sequence[Places],
    records: Sequence[CollectiveRecord],
) -> Floats | None:
    """Enter the executions in which all but one wait.

    Args:
        ledger: Where they are entered.
        fleet: The window.
        name: Group and kind.
        members: Indices of all members.
        places: Positions of the matched executions, of each member.
        records: Of each member.

    Returns:
        Critical time of each member that is explained so, microseconds; None for nothing. float64 [M].
    """
    duration_MK, critical_MK = (stacked(records, places, one) for one in ("duration_us", "critical_us"))
    columns_MK = columns_of_all(ledger, members, records, places)
    site_K = sites_of(columns_MK[0])
    floor_us = max(skew_floor(fleet.carriers, name[0]), SKEW_FLOOR_OTHER_US)  # a hop of the data is no waiting
    share_MK = _last_of_all(duration_MK, float(exit_skew(duration_MK[None], floor_us, site_K)[0]))
    wait_MK = waits_in(duration_MK, critical_MK)
    share_MK = keep_repeated(share_MK[None], wait_MK[None], common_column(columns_MK), site_K)[0]
    told_K = share_MK.any(axis=0)
    if not told_K.any():
        return None
    part = Matched(
        group=name[0],
        kind=name[1],
        members=tuple(members),
        duration_us=duration_MK[:, told_K],
        wait_us=wait_MK[:, told_K],
        share=share_MK[:, told_K],
        nearly_last=np.zeros((len(members), int(told_K.sum())), np.bool_),
        end_us=np.zeros((len(members), 0)),
        columns=columns_MK[:, told_K],
    )
    told = Paired(
        name=name,
        members=part.members,
        records=records,
        places=[at[told_K] for at in places],
        timed=records,
    )
    ends_MK = chained_ends(ledger, told, part.columns)
    block = block_of(ledger, [told], ends_MK[None], part.duration_us[None], critical_MK[None, :, told_K])
    ledger.book(part, block)
    return np.asarray(critical_MK[:, told_K].sum(axis=1))


def _last_of_all(duration_MK: Floats, skew_us: float) -> Floats:
    """1 for the member that all others are seen to wait for, else 0. float64 [M, K]."""
    shortest_2K = np.partition(duration_MK, 1, axis=0)[:2]
    clear_K = shortest_2K[1] - shortest_2K[0] > skew_us
    return np.asarray((np.arange(duration_MK.shape[0])[:, None] == duration_MK.argmin(axis=0)) & clear_K, np.float64)
