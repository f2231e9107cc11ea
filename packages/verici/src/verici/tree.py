"""Learn a decision tree over predicates; every path to a failing leaf is a constraint.

Two learners share the tree. `paper` grows until the leaves are pure, by Gini gain; a mixed leaf predicts a pass.
`evidence` (ours) splits only while that shortens the description of the labels: bits saved on the labels must exceed
the bits that it takes to name the predicate. So one flipped label among thousands of predicates teaches nothing.

Letters: N builds, P predicates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from verici.features import Candidates

Floats = NDArray[np.float64]
Learner = Literal["evidence", "paper"]

#: Bits that a split must save beyond naming its predicate. 3 bits: odds of 8 to 1 that the split is no accident.
MARGIN_BITS = 3.0
#: Depth at which growing stops. The papers' messages hold two keywords in the mean.
MOST_DEPTH = {"evidence": 4, "paper": 12}


class Node(msgspec.Struct):
    """A node of the tree: the training rows that reach it, how many failed, and the predicate that splits them.

    A leaf has column -1 and a prediction.
    """

    rows: NDArray[np.intp]
    failed: int
    column: int = -1
    yes: Node | None = None
    no: Node | None = None
    fails: bool = False

    @property
    def risk(self) -> float:
        """Return the share of failures that a new build at this node is expected to have."""
        return (self.failed + 0.5) / (len(self.rows) + 1)


def fit(
    learned: Candidates,
    rows: NDArray[np.intp],
    failed_N: NDArray[np.bool_],
    edges: Sequence[tuple[int, int]] = (),
    learner: Learner = "evidence",
    levels: Sequence[int] = (0, 1, 2, 3),
) -> Node:
    """Return the tree learned from these rows; the same input always gives the same tree.

    Args:
        learned: Candidate predicates over the whole history; those that `rows` cannot state yet are left out.
        rows: Builds to learn from.
        failed_N: Result of each build of the history, after relabelling; only `rows` are read.
        edges: Consecutive builds as (earlier, later) rows. Of predicates with equal gain the tree takes the one that
            changed together with the result most often.
        learner: `evidence` or `paper`.
        levels: Templates whose predicates may be used.
    """
    last = int(rows.max()) if len(rows) else -1
    open_P = np.isin(learned.level_P, levels) & (learned.known_P <= last)
    usable = np.flatnonzero(open_P & learned.truth_NP[rows].any(axis=0))
    truth = learned.truth_NP[:, usable].astype(np.float32)
    root = _Grower(truth, usable, failed_N, edges, learned.level_P[usable], learner).grow(rows, 0)
    return root if learner == "paper" else _prune(root)


def _prune(node: Node) -> Node:
    """Return the tree without splits whose two sides predict the same."""
    if not (node.yes and node.no):
        return node
    node.yes, node.no = _prune(node.yes), _prune(node.no)
    if node.yes.column < 0 and node.no.column < 0 and node.yes.fails == node.no.fails:
        return Node(node.rows, node.failed, fails=node.yes.fails)
    return node


def _together(truth: NDArray[np.float32], failed_N: NDArray[np.bool_], edges: Sequence[tuple[int, int]]) -> Floats:
    """Return for each predicate how often it changed together with the result, less how often it changed alone."""
    if not edges:
        return np.zeros(truth.shape[1])
    before, after = np.array(edges).T
    steps = truth[after] - truth[before]
    turns = failed_N[after].astype(np.float32) - failed_N[before].astype(np.float32)
    both = np.abs(turns @ steps)
    return np.asarray(2 * both - np.abs(steps).sum(axis=0), dtype=np.float64)


class _Grower:
    def __init__(
        self, truth: NDArray[np.float32], usable: NDArray[np.intp], failed_N: NDArray[np.bool_],
        edges: Sequence[tuple[int, int]], level_P: NDArray[np.int32], learner: Learner,
    ) -> None:  # fmt: skip
        self.truth, self.usable, self.failed_N, self.edges, self.learner = truth, usable, failed_N, edges, learner
        self.logs = np.cumsum(np.log2(np.maximum(np.arange(len(failed_N) + 2), 1)))  # log2 of each factorial
        self.cost_P = _naming_bits(level_P)

    def grow(self, rows: NDArray[np.intp], depth: int) -> Node:
        failed = int(self.failed_N[rows].sum())
        node = Node(rows, failed)
        mixed = 0 < failed < len(rows) and depth < MOST_DEPTH[self.learner]
        best = self._best(rows, failed) if mixed else -1
        if best >= 0:
            node.column, side = int(self.usable[best]), self.truth[rows, best] > 0
            node.yes = self.grow(rows[side], depth + 1)
            node.no = self.grow(rows[~side], depth + 1)
        elif self.learner == "paper":
            node.fails = failed == len(rows) > 0
        else:
            node.fails = depth > 0 and 2 * failed > len(rows)
        return node

    def _best(self, rows: NDArray[np.intp], failed: int) -> int:
        """Return the column of the best split of these rows, -1 if none is good enough."""
        part = self.truth[rows]
        bad = self.failed_N[rows].astype(np.float32)
        n1 = part.sum(axis=0).astype(np.intp)
        k1 = (bad @ part).astype(np.intp)
        n0, k0 = len(rows) - n1, failed - k1
        splits = (n1 > 0) & (n0 > 0)
        if not splits.any():
            return -1
        n, k = np.array(len(rows)), np.array(failed)
        if self.learner == "paper":
            gain = self._mix(n, k) - self._mix(n1, k1) - self._mix(n0, k0)
        else:
            gain = self._code(n, k) - self._code(n1, k1) - self._code(n0, k0) - self.cost_P - MARGIN_BITS
        gain[~splits] = -np.inf
        top = gain.max()
        if top <= 1e-9:
            return -1
        ties = np.flatnonzero(gain >= top - 1e-9)
        if len(ties) > 1:
            ties = ties[[np.argmax(_together(self.truth[:, ties], self.failed_N, self.edges))]]
        return int(ties[0])

    @staticmethod
    def _mix(n: NDArray[np.intp], k: NDArray[np.intp]) -> Floats:
        """Return half the Gini impurity of n results with k failures, times n."""
        return np.asarray(k * (n - k) / np.maximum(n, 1))

    def _code(self, n: NDArray[np.intp], k: NDArray[np.intp]) -> Floats:
        """Return the bits of n results with k failures, whose rate is not known (uniform prior)."""
        return np.asarray(np.log2(n + 1) + self.logs[n] - self.logs[k] - self.logs[n - k])


def _naming_bits(level_P: NDArray[np.int32]) -> Floats:
    """Return the bits that name each predicate: first its template, then which one of that template."""
    counts = np.bincount(level_P, minlength=1)
    templates = max(1, int((counts > 0).sum()))
    return np.asarray(np.log2(np.maximum(counts[level_P], 1)) + np.log2(templates))


def leaf_of(node: Node, truth_P: NDArray[np.bool_]) -> tuple[Node, tuple[tuple[int, bool], ...]]:
    """Return the leaf that a state reaches, and the predicates and sides on the way."""
    path: list[tuple[int, bool]] = []
    while node.yes and node.no:
        side = bool(truth_P[node.column])
        path.append((node.column, side))
        node = node.yes if side else node.no
    return node, tuple(path)


def leaves(node: Node, path: tuple[tuple[int, bool], ...] = ()) -> list[tuple[Node, tuple[tuple[int, bool], ...]]]:
    """Return all leaves with their paths, in a fixed order."""
    if not (node.yes and node.no):
        return [(node, path)]
    return leaves(node.yes, (*path, (node.column, True))) + leaves(node.no, (*path, (node.column, False)))
