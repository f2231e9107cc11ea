"""Plan the path of each flow so that every link carries the same number of flows, over all jobs.

A flow goes from a source host over its leaf, a spine and the target's leaf to the target host. Its *side* is the port
of the bond at both ends: left to left, right to right. The plan is made in two stages, each the same
problem: first sides, so that each host sends and receives equally much on each port; then, on each side, spines, so
that each link between a leaf and a spine carries equally many flows.

Each problem is an even coloring of a bipartite multigraph, solved by halving the colors: at each halving every row and
every column (a link's end) gives half of its flows, rounded down or up, to the first half. All problems of one level
are one minimum-cost flow, solved by OR-Tools; its cost counts flows that would move.

Source:
    C4, C4P's allocation: QPs spread over healthy spines, even count for each leaf-spine link over all jobs, left to
    left and right to right. The paper names no algorithm; this one is ours. Deviation: where paths are missing the
    shares are proportional to those left, which is even on the sender's side and nearly so on the receiver's.

Suffixes of arrays: P pairs of hosts, C cells (rows of one problem), K colors.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from ortools.graph.python import min_cost_flow  # type: ignore[import-untyped]

from c4p.errors import BadRequest, PlannerError

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
LinkName = tuple[str, str]

#: Cost of a flow too many or too few on a link, and the highest cost of rounding a share to the farther number.
UNEVEN_COST, ROUNDING_COST = 100, 20
#: Cost of moving a flow: as much as four flows too many or too few on a link.
MOVE_COST = 4 * UNEVEN_COST


class LeafPair(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The leaves and spines between the same side of two hosts' bonds.

    Attributes:
        source_leaf: Router (or host, where the spine is its neighbour) before the spine.
        target_leaf: Router (or host) after it.
        spines: Number of a list in the demand's `spines`: routers between them, one for each path. An empty list: this
            side has no path.
    """

    source_leaf: str
    target_leaf: str
    spines: int


class Pair(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Flows from one host to another.

    Attributes:
        source: Sending host.
        target: Receiving host.
        flows: How many.
        leaf_pairs: One for each side, the same order at all hosts; none where there are no flows.
    """

    source: str
    target: str
    flows: int
    leaf_pairs: list[LeafPair]


class Demand(msgspec.Struct, frozen=True):
    """All flows of one job.

    Attributes:
        pairs: One for each member, by rank; without flows where the member knows no paths.
        spines: Lists of routers that the pairs' leaf_pairs refer to by number.
    """

    pairs: list[Pair]
    spines: list[list[str]]


class Assignment(msgspec.Struct, frozen=True):
    """The path of each flow of a job, in the order of its pairs.

    Attributes:
        sides: Number of the flow's leaves.
        spines: Its spine.
    """

    sides: list[int]
    spines: list[str]


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan.

    Attributes:
        assignments: The path of each flow, by job.
        moved: Flows that were on another path before, by job.
    """

    assignments: dict[str, Assignment]
    moved: dict[str, int]


def plan(demands: Mapping[str, Demand], before: Mapping[str, Assignment], avoid: Iterable[LinkName] = ()) -> Planned:
    """Plan all jobs; flows stay where they are as far as even counts allow.

    Args:
        demands: Flows by job.
        before: Present paths of jobs that have some.
        avoid: Links (from, to) that no flow is to take: of those that `link_loads` counts.

    Returns:
        The path of each flow. Where all paths of a pair are to be avoided, they are used all the same.

    Raises:
        BadRequest: A demand contradicts itself.
    """
    for name, demand in demands.items():
        check(name, demand, before.get(name))
    return _Table(demands, before, set(avoid)).planned()


def link_loads(demands: Mapping[str, Demand], assignments: Mapping[str, Assignment]) -> dict[LinkName, int]:
    """Return the number of flows on each link (from, to) between hosts, leaves and spines."""
    loads: Counter[LinkName] = Counter()
    for name, demand in demands.items():
        flows = [pair for pair in demand.pairs for _ in range(pair.flows)]
        for pair, side, spine in zip(flows, assignments[name].sides, assignments[name].spines, strict=True):
            leaves = pair.leaf_pairs[side]
            hops = [pair.source, leaves.source_leaf, spine, leaves.target_leaf, pair.target]
            loads.update(link for link in itertools.pairwise(hops) if link[0] != link[1])
    return dict(loads)


def possible_links(demands: Iterable[Demand]) -> set[LinkName]:
    """Links that flows of these demands could take, named as in `link_loads`."""
    links: set[LinkName] = set()
    for demand in demands:
        seen: set[LeafPair] = set()
        for pair in demand.pairs:
            for leaves in pair.leaf_pairs:
                links |= {(pair.source, leaves.source_leaf), (leaves.target_leaf, pair.target)}
                if leaves not in seen:
                    seen.add(leaves)
                    spines = demand.spines[leaves.spines]
                    links |= {(leaves.source_leaf, spine) for spine in spines} | {
                        (spine, leaves.target_leaf) for spine in spines
                    }
    return links


def check(name: str, demand: Demand, before: Assignment | None = None) -> None:
    """Check that a job's demand can be planned, and that its present paths fit it.

    Raises:
        BadRequest: They contradict themselves, or each other.
    """
    some = [bool(spines) for spines in demand.spines]
    for pair in demand.pairs:
        if pair.flows < 0 or (pair.flows and not pair.leaf_pairs):
            raise BadRequest(f"job {name!r}: {pair.source} to {pair.target} has no path, or fewer flows than none")
        has_spine = not pair.flows
        for leaves in pair.leaf_pairs:
            if not 0 <= leaves.spines < len(some):
                raise BadRequest(
                    f"job {name!r}: {pair.source} to {pair.target} names a list of spines that is not there"
                )
            has_spine = has_spine or some[leaves.spines]
        if not has_spine:
            raise BadRequest(f"job {name!r}: {pair.source} to {pair.target} has no spine on any side")
    if before is not None and len(before.sides) != sum(pair.flows for pair in demand.pairs):
        raise BadRequest(f"job {name!r}: the paths that it had do not fit its demand; register it under a new name")


def _numbers(names: Sequence[str]) -> tuple[Ints, dict[str, int]]:
    """Return names as numbers, in order of appearance, and the number of each name."""
    known = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return np.fromiter(map(known.__getitem__, names), np.int64, len(names)), known


class _Table:
    """All jobs as arrays: P pairs, S sides, R leaf pairs (one side of a pair), F flows, K spines, M sets of spines."""

    def __init__(self, demands: Mapping[str, Demand], before: Mapping[str, Assignment], avoid: set[LinkName]) -> None:
        self.demands, self.before = demands, before
        pairs = [pair for demand in demands.values() for pair in demand.pairs]
        self.flows_P = np.array([pair.flows for pair in pairs], dtype=np.int64)
        self.rows_P, _ = _numbers([pair.source for pair in pairs])
        self.columns_P, _ = _numbers([pair.target for pair in pairs])
        leaf_pairs = [leaves for pair in pairs for leaves in pair.leaf_pairs]
        sizes = [len(pair.leaf_pairs) for pair in pairs]
        self.sides = max(sizes, default=1)
        self.pair_R = np.repeat(np.arange(len(pairs)), sizes)
        self.side_R = np.arange(len(leaf_pairs)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        self.source_leaf_R, _ = _numbers([leaves.source_leaf for leaves in leaf_pairs])
        self.target_leaf_R, _ = _numbers([leaves.target_leaf for leaves in leaf_pairs])
        first = 0
        set_R: list[int] = []
        lists: list[list[str]] = []
        for demand in demands.values():
            set_R += [first + leaves.spines for pair in demand.pairs for leaves in pair.leaf_pairs]
            lists += demand.spines
            first += len(demand.spines)
        _, self.spines = _numbers([spine for spines in lists for spine in spines])
        self.mask_MK = np.zeros((len(lists), len(self.spines)), dtype=bool)
        for number, spines in enumerate(lists):
            self.mask_MK[number, [self.spines[spine] for spine in spines]] = True
        self.set_R = np.array(set_R, dtype=np.int64)
        self.whole_R = self.set_R.copy()
        if avoid:
            self._leave_out(avoid, [(pair, leaves) for pair in pairs for leaves in pair.leaf_pairs])

    def _leave_out(self, avoid: set[LinkName], leaf_pairs: Sequence[tuple[Pair, LeafPair]]) -> None:
        """Give leaf pairs with a link to avoid their own sets of spines, which are empty if it is a host's link."""
        sets = [self.mask_MK]
        known: dict[tuple[str, str, int, bool], int] = {}
        ends = {name for link in avoid for name in link}
        for index, (pair, leaves) in enumerate(leaf_pairs):
            if leaves.source_leaf not in ends and leaves.target_leaf not in ends:
                continue
            closed = (pair.source, leaves.source_leaf) in avoid or (leaves.target_leaf, pair.target) in avoid
            key = (leaves.source_leaf, leaves.target_leaf, int(self.set_R[index]), closed)
            if key not in known:
                mask = self.mask_MK[key[2]].copy()
                for spine, number in self.spines.items():
                    if closed or (leaves.source_leaf, spine) in avoid or (spine, leaves.target_leaf) in avoid:
                        mask[number] = False
                known[key] = sum(map(len, sets))
                sets.append(mask[None, :])
            self.set_R[index] = known[key]
        self.mask_MK = np.concatenate(sets)

    def planned(self) -> Planned:
        """Return the plan."""
        if not self.flows_P.sum():
            nothing = {name: Assignment([], []) for name in self.demands}
            return Planned(nothing, dict.fromkeys(nothing, 0))
        old_side_F, old_spine_F = self._old()
        pair_F = np.repeat(np.arange(len(self.flows_P)), self.flows_P)
        side_F = self._sides(pair_F, old_side_F)
        leaves_PS = np.zeros((len(self.flows_P), self.sides), dtype=np.int64)
        leaves_PS[self.pair_R, self.side_R] = np.arange(len(self.pair_R))
        leaves_F = leaves_PS[pair_F, side_F]
        stays_F = np.where(side_F == old_side_F, old_spine_F, -1)
        spine_F = self._spines(leaves_F, stays_F)
        names = np.array(list(self.spines), dtype=object)[spine_F] if len(spine_F) else np.array([], dtype=object)
        moved_F = (old_spine_F >= 0) & ((side_F != old_side_F) | (spine_F != old_spine_F))
        assignments, moved, at = {}, {}, 0
        for name, demand in self.demands.items():
            end = at + sum(pair.flows for pair in demand.pairs)
            assignments[name] = Assignment(side_F[at:end].tolist(), names[at:end].tolist())
            moved[name] = int(moved_F[at:end].sum())
            at = end
        return Planned(assignments, moved)

    def _old(self) -> tuple[Ints, Ints]:
        """Return the side and the spine that each flow has now; -1: none."""
        sides: list[int] = []
        spines: list[int] = []
        for name, demand in self.demands.items():
            had = self.before.get(name)
            if had is None:
                count = sum(pair.flows for pair in demand.pairs)
                sides += [-1] * count
                spines += [-1] * count
            else:
                sides += had.sides
                spines += [self.spines.get(spine, -1) for spine in had.spines]
        side_F = np.array(sides, dtype=np.int64)
        side_F[side_F >= self.sides] = -1  # a side that no pair has any more
        return side_F, np.array(spines, dtype=np.int64)

    def _sides(self, pair_F: Ints, old_F: Ints) -> Ints:
        """Choose the side of each flow. A side's share is the number of its spines."""
        weights_PS = np.zeros((len(self.flows_P), self.sides))
        weights_PS[self.pair_R, self.side_R] = self.mask_MK.sum(axis=1)[self.set_R]
        none = weights_PS.sum(axis=1) == 0
        whole_PS = np.zeros_like(weights_PS)  # all to be avoided: used all the same
        whole_PS[self.pair_R, self.side_R] = self.mask_MK.sum(axis=1)[self.whole_R]
        weights_PS[none] = whole_PS[none]
        now_PS = _count(pair_F, old_F, weights_PS.shape)
        counts_PS = color_evenly(self.rows_P, self.columns_P, self.flows_P, weights_PS, now_PS)
        return _hand_out(pair_F, old_F, counts_PS)

    def _spines(self, leaves_F: Ints, old_F: Ints) -> Ints:
        """Choose the spine of each flow. A cell is all flows of one side with the same leaves and spines."""
        n_spines_M = self.mask_MK.sum(axis=1)
        set_R = np.where(n_spines_M[self.set_R] > 0, self.set_R, self.whole_R)
        set_F = set_R[leaves_F]
        spine_F: Ints = self.mask_MK.argmax(axis=1)[set_F]
        open_F = np.flatnonzero(n_spines_M[set_F] > 1)
        if not len(open_F):
            return spine_F
        spines_K = np.flatnonzero(
            self.mask_MK[np.unique(set_F[open_F])].any(axis=0)
        )  # of those with a choice: the spines
        number = np.full(len(self.spines) + 1, -1)  # the last one for -1
        number[spines_K] = np.arange(len(spines_K))
        leaves_F, old_F = leaves_F[open_F], number[old_F[open_F]]
        key_R = np.zeros(len(self.side_R), dtype=np.int64)
        for column in (self.side_R, self.source_leaf_R, self.target_leaf_R, set_R):
            key_R = key_R * (int(column.max(initial=0)) + 1) + column
        _, sample, cell_F = np.unique(key_R[leaves_F], return_index=True, return_inverse=True)
        leaves_C = leaves_F[sample]
        weights_CK = self.mask_MK[set_R[leaves_C]][:, spines_K].astype(np.float64)
        rows_C = self.source_leaf_R[leaves_C] * self.sides + self.side_R[leaves_C]
        columns_C = self.target_leaf_R[leaves_C] * self.sides + self.side_R[leaves_C]
        now_CK = _count(cell_F, old_F, weights_CK.shape)
        now_CK[weights_CK == 0] = 0
        flows_C = np.bincount(cell_F, minlength=len(leaves_C))
        counts_CK = color_evenly(rows_C, columns_C, flows_C, weights_CK, now_CK)
        spine_F[open_F] = spines_K[_hand_out(cell_F, old_F, counts_CK)]
        return spine_F


def _count(cell_F: Ints, color_F: Ints, shape: tuple[int, ...]) -> Ints:
    """How many flows of each cell have each color; -1 counts for none."""
    some = color_F >= 0
    flat = np.bincount(cell_F[some] * shape[1] + color_F[some], minlength=shape[0] * shape[1])
    return flat.reshape(shape).astype(np.int64)


def _hand_out(cell_F: Ints, old_F: Ints, counts_CK: Ints) -> Ints:
    """Choose the color of each flow: the one it had as long as its cell has such, then the others in turn.

    Args:
        cell_F: Cell of each flow.
        old_F: Color that the flow has now; -1: none.
        counts_CK: Flows of each color in each cell.
    """
    colors = counts_CK.shape[1]
    new_F = np.full(len(cell_F), -1, dtype=np.int64)
    had = np.flatnonzero(old_F >= 0)
    if len(had):
        key = cell_F[had] * colors + old_F[had]
        stays = had[_rank_within(key) < counts_CK.reshape(-1)[key]]
        new_F[stays] = old_F[stays]
        counts_CK = counts_CK - _count(cell_F[stays], old_F[stays], counts_CK.shape)
    cell, color = np.nonzero(counts_CK)
    repeats = counts_CK[cell, color]
    cell, color = np.repeat(cell, repeats), np.repeat(color, repeats)
    turn = np.arange(len(cell)) - np.repeat(np.cumsum(repeats) - repeats, repeats)
    order = np.lexsort((color, turn, cell))  # neighbours get different colors
    rest = np.flatnonzero(new_F < 0)
    rest = rest[np.argsort(cell_F[rest], kind="stable")]
    new_F[rest] = color[order]
    return new_F


def _rank_within(key: Ints) -> Ints:
    """Return the number of equal keys before each."""
    order = np.argsort(key, kind="stable")
    ordered = key[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    lengths = np.diff(np.concatenate([starts, [len(key)]]))
    rank = np.empty(len(key), dtype=np.int64)
    rank[order] = np.arange(len(key)) - np.repeat(starts, lengths)
    return rank


def color_evenly(rows_C: Ints, columns_C: Ints, flows_C: Ints, weights_CK: Floats, now_CK: Ints) -> Ints:
    """Color the flows of each cell so that each row and each column has every color equally often.

    Args:
        rows_C: Row of each cell, such as the leaf that its flows leave from.
        columns_C: Column of each cell, such as the leaf they arrive at.
        flows_C: Flows of each cell.
        weights_CK: Share of each color that a cell should have; 0: must not have it.
        now_CK: Flows that have each color now and would rather keep it.

    Returns:
        Flows of each cell by color, int64 [C, K]. With equal weights each row and column has each color
        floor(d / K) to ceil(d / K) times, d its number of flows.
    """
    result = np.zeros(weights_CK.shape, dtype=np.int64)
    may_CK = weights_CK > 0
    choice_C = may_CK.sum(axis=1) > 1
    only = np.flatnonzero(~choice_C)
    result[only, may_CK[only].argmax(axis=1)] = flows_C[only]
    used_K = np.flatnonzero(may_CK[choice_C].any(axis=0))
    if len(used_K):
        some = np.ix_(choice_C, used_K)
        result[some] = _color(rows_C[choice_C], columns_C[choice_C], flows_C[choice_C], weights_CK[some], now_CK[some])
    return result


def _color(rows_C: Ints, columns_C: Ints, flows_C: Ints, weights_CK: Floats, now_CK: Ints) -> Ints:
    """`color_evenly` where each cell has a choice and each color is some cell's."""
    cells, colors = weights_CK.shape
    result = np.zeros((cells, colors), dtype=np.int64)
    fair_CK = flows_C[:, None] * weights_CK / weights_CK.sum(axis=1, keepdims=True)
    share, had = _sums(weights_CK), _sums(now_CK)
    ends = [_End(names_C, fair_CK, now_CK) for names_C in (rows_C, columns_C)]
    at = np.flatnonzero(flows_C)
    count = flows_C[at]
    low, high = np.zeros(len(at), dtype=np.int64), np.full(len(at), colors, dtype=np.int64)
    while len(at):
        done = high - low == 1
        np.add.at(result, (at[done], low[done]), count[done])
        at, count, low, high = at[~done], count[~done], low[~done], high[~done]
        if not len(at):
            break
        middle = (low + high) // 2
        cut = _Cut(
            at, low, middle, high, count,
            share[at, middle] - share[at, low], share[at, high] - share[at, middle],
            had[at, middle] - had[at, low], had[at, high] - had[at, middle],
        )  # fmt: skip
        first = _halve(cut, ends)
        low, high = np.concatenate([low, middle]), np.concatenate([middle, high])
        at, count = np.concatenate([at, at]), np.concatenate([first, count - first])
        some = count > 0
        at, count, low, high = at[some], count[some], low[some], high[some]
    return result


def _sums(values_CK: NDArray[Any]) -> NDArray[Any]:
    """Return the sums of the first 0, 1, ... K colors, [C, K + 1]."""
    return np.concatenate([np.zeros((len(values_CK), 1), values_CK.dtype), np.cumsum(values_CK, axis=1)], axis=1)


@dataclass(frozen=True, slots=True)
class _Cut:
    """One level of halving: colors `low` to `high` of cell `at` are cut at `middle`; `count` flows are given out."""

    at: Ints
    low: Ints
    middle: Ints
    high: Ints
    count: Ints
    first: Floats  # shares of the two halves
    second: Floats
    had_first: Ints  # flows that have a color of each half now
    had_second: Ints


class _End:
    """Rows (or columns) of a problem, and the bounds of each color in each row.

    Where flows have colors already, a row may keep them unevenly, up to the largest even count, so that a job that
    goes moves nobody; an uneven count costs less than a move.
    """

    def __init__(self, names_C: Ints, fair_CK: Floats, now_CK: Ints) -> None:
        _, self.of_C = np.unique(names_C, return_inverse=True)
        count = int(self.of_C.max()) + 1
        fair_EK = np.zeros((count, fair_CK.shape[1]))
        np.add.at(fair_EK, self.of_C, fair_CK)
        self.most = _sums(np.ceil(fair_EK - 1e-6).astype(np.int64))
        self.settled = np.bincount(self.of_C, weights=now_CK.sum(axis=1), minlength=count) > 0

    def bounds(self, cut: _Cut, base: Ints, rest: Floats) -> tuple[Ints, _Bounds]:
        """Return the row of each cell in this level, and the bounds of the flows from each row to its first half."""
        end = self.of_C[cut.at]
        _, sample, group = np.unique(end * (self.most.shape[1] + 1) + cut.low, return_index=True, return_inverse=True)
        size = len(sample)
        fair = np.bincount(group, weights=rest, minlength=size)
        given = np.bincount(group, weights=base, minlength=size).astype(np.int64)
        total = np.bincount(group, weights=cut.count, minlength=size).astype(np.int64)
        low, high = np.floor(fair + 1e-6).astype(np.int64), np.ceil(fair - 1e-6).astype(np.int64)
        row, a, b, c = end[sample], cut.low[sample], cut.middle[sample], cut.high[sample]
        most = np.maximum(self.most[row, b] - self.most[row, a] - given, high)
        least = np.clip(total - (self.most[row, c] - self.most[row, b]) - given, 0, low)
        settled = self.settled[row]
        up = np.rint(ROUNDING_COST * (2.0 * (fair - low) - 1.0)).astype(np.int64)
        return group, _Bounds(np.where(settled, least, low), low, high, np.where(settled, most, high), up)


@dataclass(frozen=True, slots=True)
class _Bounds:
    """Bounds of the flow out of each node: `least` to `most`; its share lies between `low` and `high`.

    `up` is what it costs to round the share down rather than up: negative where down is nearer.
    """

    least: Ints
    low: Ints
    high: Ints
    most: Ints
    up: Ints

    def slack(self) -> list[tuple[Ints, Ints]]:
        """Return the arcs for what a node keeps of `most`: capacity and cost."""
        uneven = np.full(len(self.up), UNEVEN_COST)
        return [(self.most - self.high, -uneven), (self.high - self.low, self.up), (self.low - self.least, uneven)]


def _halve(cut: _Cut, ends: Sequence[_End]) -> Ints:
    """Return the number of flows of each cell that go to the first half of its colors.

    Each row and column gives its fair share, rounded down or up. That can always be done: the fair shares
    themselves are a flow, and a network with whole capacities has a whole one.
    """
    count, first, second = cut.count, cut.first, cut.second
    fair = count * first / (first + second)
    forced = (first == 0) | (second == 0)
    fresh = (cut.had_first == 0) & (cut.had_second == 0)
    whole = np.where(fresh, np.floor(fair + 1e-9), 0).astype(np.int64)
    base = np.where(first == 0, 0, np.where(second == 0, count, whole))
    room = np.where(forced, 0, np.where(fresh, np.ceil(fair - 1e-9).astype(np.int64) - base, count))
    rest = np.where(forced, 0.0, fair - base)
    stay, go = np.minimum(cut.had_first, count), np.maximum(count - cut.had_second, 0)
    low = np.where(fresh, 0, np.minimum(stay, go))
    high = np.where(fresh, room, np.maximum(stay, go))
    solve = np.flatnonzero(room > 0)
    if len(solve):
        rows, columns = (end.bounds(cut, base, rest) for end in ends)
        bands = [(low, -MOVE_COST), (high - low, 0), (room - high, MOVE_COST)]
        base = base + _minimum_cost(rows, columns, bands, solve)
    return base


def _minimum_cost(
    rows: tuple[Ints, _Bounds], columns: tuple[Ints, _Bounds], bands: list[tuple[Ints, int]], solve: Ints
) -> Ints:
    """Return the flow of each cell, from its row to its column, at the least cost.

    Args:
        rows: Row of each cell, and what may leave each row.
        columns: Column of each cell, and what may come to each column.
        bands: Capacity of each cell and the cost of one flow, in order of cost.
        solve: Cells that have some capacity.
    """
    row, row_bounds = rows
    column, column_bounds = columns
    first_column = len(row_bounds.most)
    sink = first_column + len(column_bounds.most)  # takes what rows keep
    source = sink + 1  # gives what columns lack
    total = int(column_bounds.most.sum())
    tails, heads, capacities, costs, places = [], [], [], [], []

    def add(tail: Ints, head: Ints, capacity: Ints, cost: Ints | int) -> None:
        tails.append(tail)
        heads.append(head)
        capacities.append(capacity)
        costs.append(np.broadcast_to(cost, len(tail)))

    for capacity, cost in bands:
        some = solve[capacity[solve] > 0]
        places.append(some)
        add(row[some], column[some] + first_column, capacity[some], cost)
    for kept, price in row_bounds.slack():
        some = np.flatnonzero(kept)
        add(some, np.full(len(some), sink), kept[some], price[some])
    for lacked, price in column_bounds.slack():
        some = np.flatnonzero(lacked)
        add(np.full(len(some), source), some + first_column, lacked[some], price[some])
    add(np.array([source]), np.array([sink]), np.array([total]), 0)

    network = min_cost_flow.SimpleMinCostFlow()
    arcs = network.add_arcs_with_capacity_and_unit_cost(*map(np.concatenate, (tails, heads, capacities, costs)))
    supplies = np.concatenate([row_bounds.most, -column_bounds.most, [-int(row_bounds.most.sum())], [total]])
    network.set_nodes_supplies(np.arange(len(supplies)), supplies)
    status = network.solve()
    if status != network.OPTIMAL:
        raise PlannerError(f"the flow problem of {len(solve)} cells was not solved: {status}")
    flows = network.flows(arcs)
    result = np.zeros(len(row), dtype=np.int64)
    at = 0
    for some in places:
        result[some] += flows[at : at + len(some)]
        at += len(some)
    return result
