"""Order the executions of one group by time, and measure what its late members cost the others.

Array suffixes: M members of a group, K matched executions in order of time, R members who wait.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.localize.matching import Matched

Floats = NDArray[np.float64]
#: A step began late if its worker lost less than this share of the lateness since then.
_MOST = 0.5
#: Paces within this factor are the same.
_SAME_PACE = 1.15


class Chain(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """All matched executions of one group, in order of time.

    Attributes:
        group: Name of the process group.
        members: Indices of the workers.
        kinds: Kind of each execution.
        duration_us: float64 [M, K].
        wait_us: Critical waiting. float64 [M, K].
        share: Shares of blame. float64 [M, K].
        nearly_last: Who came last or shortly before. bool [M, K].
        arrival_us: Start of each execution on each member's own clock, from the start of its window. float64 [M, K].
        iteration: Iteration of each execution on the first member, -1 = none. intp [K].
        since_us: Time from leaving the execution before, or from the start of the window. float64 [M, K].
    """

    group: str
    members: tuple[int, ...]
    kinds: tuple[str, ...]
    duration_us: Floats
    wait_us: Floats
    share: Floats
    nearly_last: NDArray[np.bool_]
    arrival_us: Floats
    iteration: NDArray[np.intp]
    since_us: Floats


def chain_executions(matched: Sequence[Matched]) -> list[Chain]:
    """Chain the executions of all kinds of each group in the order of their ends; groups without ends are left out."""
    by_group: dict[tuple[str, tuple[int, ...]], list[Matched]] = {}
    for one in matched:
        if one.end_us.shape[1]:
            by_group.setdefault((one.group, one.members), []).append(one)
    ordered = sorted(by_group.items(), key=lambda item: item[0])
    return [_chained(group, members, parts) for (group, members), parts in ordered]


def _chained(group: str, members: tuple[int, ...], parts: Sequence[Matched]) -> Chain:
    end_MK = np.concatenate([part.end_us for part in parts], axis=1)
    order = np.argsort(end_MK[0], kind="stable")
    duration_MK, wait_MK, share_MK, near_MK = (
        np.concatenate([getattr(part, name) for part in parts], axis=1)[:, order]
        for name in ("duration_us", "wait_us", "share", "nearly_last")
    )
    end_MK = end_MK[:, order]
    arrival_MK = end_MK - duration_MK
    before_MK = np.concatenate([np.zeros((len(members), 1)), end_MK[:, :-1]], axis=1)
    kinds = [part.kind for part in parts for _ in range(part.duration_us.shape[1])]
    return Chain(
        group=group,
        members=members,
        kinds=tuple(kinds[at] for at in order),
        duration_us=duration_MK,
        wait_us=wait_MK,
        share=share_MK,
        nearly_last=near_MK,
        arrival_us=arrival_MK,
        iteration=np.concatenate([part.columns[0] for part in parts])[order],
        since_us=np.maximum(arrival_MK - before_MK, 0.0),
    )


def without(chain: Chain, rows: Sequence[int]) -> Chain:
    """The chain as the other members see it."""
    if not rows:
        return chain
    left = [row for row in range(len(chain.members)) if row not in rows]
    arrays = ("duration_us", "wait_us", "share", "nearly_last", "arrival_us", "since_us")
    changes = {name: getattr(chain, name)[left] for name in arrays}
    return msgspec.structs.replace(chain, members=tuple(chain.members[row] for row in left), **changes)


def blame_of(chain: Chain) -> Floats:
    """Waiting laid at each member. float64 [M]."""
    return np.asarray((chain.share * chain.wait_us.sum(axis=0)).sum(axis=1))


def held_up(chain: Chain, rows: Sequence[int], at: NDArray[np.intp]) -> float:
    """Bound the time by which the others could have gone on earlier, summed over iterations, microseconds.

    Over several iterations a waiting member goes on later for it, each time, else its device would fall behind for
    good. In a single iteration a delay may be carried on from one execution to the next, and then counts once.

    Had the late members come with the last of the others, execution k would end earlier by S(k). S(k) is the least
    over the others of (its waiting + S(k - 1), the latter if it went on from leaving the execution before). A member
    that works on while its device waits comes no earlier for it: its pace from arrival to arrival is that of the late
    members, which do not wait. Each iteration counts with its largest S.
    """
    others = [row for row in range(len(chain.members)) if row not in rows]
    most: dict[int, float] = {}
    several = len(np.unique(chain.iteration[chain.iteration >= 0])) > 1
    earlier, last = 0.0, -2
    for place in at.tolist():
        gap_R = np.minimum(
            chain.duration_us[others, place] - chain.duration_us[rows, place].min(), chain.wait_us[others, place]
        )
        follows = place == last + 1 and chain.iteration[place] == chain.iteration[last]
        went_on_R = np.ones(len(others)) if several else _went_on(chain, rows, others, place)
        earlier = float((gap_R + earlier * went_on_R).min()) if follows else gap_R.min()
        earlier, last = max(float(earlier), 0.0), place
        iteration = int(chain.iteration[place])
        most[iteration] = max(most.get(iteration, 0.0), earlier)
    return sum(most.values())


def _went_on(chain: Chain, rows: Sequence[int], others: Sequence[int], place: int) -> Floats:
    """Flag with 1 the others that had to leave the execution before in order to come to this one. float64 [R]."""
    pace_M = chain.arrival_us[:, place] - chain.arrival_us[:, place - 1]
    return np.asarray(pace_M[others] > _SAME_PACE * pace_M[list(rows)].mean(), dtype=np.float64)


def began_late(chain: Chain, rows: list[int], at: NDArray[np.intp]) -> bool:
    """Return whether members were late at the window's first collective, and lost little of that since it began."""
    if at[0] != 0:
        return False
    own, usual = time_since(chain, rows, 0)
    others = [row for row in range(len(chain.members)) if row not in rows]
    waited = float(np.median(chain.duration_us[others, 0]) - chain.duration_us[rows, 0].mean())
    return bool(own - usual < _MOST * waited)


def time_since(chain: Chain, rows: list[int], execution: int) -> tuple[float, float]:
    """Time before an execution on the late members, and on the others (median)."""
    others = [row for row in range(len(chain.members)) if row not in rows]
    return float(chain.since_us[rows, execution].mean()), float(np.median(chain.since_us[others, execution]))
