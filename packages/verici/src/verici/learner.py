"""From a labelled history to forecasts and constraints: relabelling, the choice of a learner, the tree's paths."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from verici.errors import NotEnoughHistory
from verici.explain import condition_words
from verici.features import COARSE, PAIRS, PRODUCTS, VALUES, Candidates, candidates, summaries, values_of
from verici.filter import train
from verici.history import Files
from verici.model import Condition, Constraint, History, Key
from verici.relabel import consecutive, relabel
from verici.store import FORMAT, Model, Weights
from verici.tree import Learner, Node, fit, leaf_of, leaves

#: Labelled builds, and failed ones among them, below which nothing is learned.
FEWEST_BUILDS, FEWEST_FAILED = 12, 2
#: In the choice of a learner, a false alarm costs as much as this many failures found. The goal of 0.85 precision
#: would be 5.7; 3 leaves room for failures that are flipped labels.
FALSE_ALARM = 3.0


class Options(msgspec.Struct, frozen=True):
    """How to learn: which learner, with relabelling or without, by which templates.

    With `refine`, templates are added one by one while that mends the tree (MiGAR); else all are used from the start.
    """

    learner: Learner = "evidence"
    relabel: bool = False
    levels: tuple[int, ...] = (COARSE, VALUES, PAIRS)
    refine: bool = True


#: What the choice on the past tries; the first one wins ties.
CHOICES = (Options("evidence", False), Options("evidence", True), Options("paper", True))
CLEAN_CHOICES = (Options("paper", True), Options("paper", False))
#: Estimated share of misleading labels up to which a pure leaf of few builds is believed. Travis: 0.09.
CLEAN = 0.03
Rows = NDArray[np.intp]
LAUNCH_LEVELS = (COARSE, VALUES, PAIRS, PRODUCTS)


class Builds(msgspec.Struct, frozen=True):
    """A history with labels, made ready for learning once.

    `rows` are the labelled commits in order, `edges` consecutive ones of them. `summaries` has a number for each row
    that is equal for equal constants. `failed_N` is False where there is no label.
    """

    history: History
    rows: Rows
    failed_N: NDArray[np.bool_]
    edges: tuple[tuple[int, int], ...]
    summaries: dict[int, int]

    def require_enough(self) -> None:
        """Do nothing if these builds can teach something.

        Raises:
            NotEnoughHistory: There are too few builds, or too few failed ones.
        """
        count, failed = len(self.rows), int(self.failed_N[self.rows].sum())
        if count < FEWEST_BUILDS or failed < FEWEST_FAILED:
            need = f"at least {FEWEST_BUILDS} and {FEWEST_FAILED} are needed"
            raise NotEnoughHistory(f"{count} labelled builds or jobs, {failed} failed; {need}")


def prepare(history: History, failed: Mapping[str, bool]) -> Builds:
    """Return the history with its labels, by full commit id."""
    where = {commit.id: row for row, commit in enumerate(history.commits)}
    rows = [row for commit, row in where.items() if commit in failed]
    edges = consecutive({commit.id: commit.parents for commit in history.commits}, where.keys() & failed.keys())
    failed_N = np.array([failed.get(commit, False) for commit in where], dtype=np.bool_)
    steps = tuple((where[one], where[other]) for one, other in edges)
    return Builds(history, np.array(rows, dtype=np.intp), failed_N, steps, dict(enumerate(summaries(history))))


class Teacher:
    """Learns trees from growing parts of one history; candidates are enumerated once for each set of templates."""

    def __init__(self, builds: Builds) -> None:
        self.builds = builds
        self._candidates: dict[tuple[int, ...], Candidates] = {}

    def candidates(self, options: Options) -> Candidates:
        """Return the candidate predicates of these options."""
        if options.levels not in self._candidates:
            self._candidates[options.levels] = candidates(self.builds.history, options.levels)
        return self._candidates[options.levels]

    def labels(self, rows: Rows, options: Options) -> NDArray[np.bool_]:
        """Return the results of these builds, relabelled if the options say so; others stay False."""
        failed = {int(row): bool(self.builds.failed_N[row]) for row in rows}
        if options.relabel:
            failed = relabel(failed, self.builds.edges, self.builds.summaries)
        result = np.zeros_like(self.builds.failed_N)
        result[list(failed)] = list(failed.values())
        return result

    def tree(self, rows: Rows, options: Options) -> Node:
        """Return the tree that these builds teach."""
        known = set(rows.tolist())
        edges = [edge for edge in self.builds.edges if edge[0] in known and edge[1] in known]
        found, failed_N = self.candidates(options), self.labels(rows, options)

        def grown(levels: Sequence[int]) -> Node:
            return fit(found, rows, failed_N, edges, options.learner, levels)

        base = 1 if options.learner == "evidence" else 2  # the paper's own features are values
        return _refined(grown, options.levels, base) if options.refine else grown(options.levels)


def _refined(grown: Callable[[Sequence[int]], Node], levels: Sequence[int], base: int) -> Node:
    """Return the tree after misclassification guided refinement (MiGAR, our reconstruction).

    It begins with the coarsest templates and adds the template that lowers the cost most, until none does. The cost is
    the number of misclassified builds plus the number of conditions on failing paths: a tree that is grown until it
    misclassifies nothing would never ask for a pair that says the same in one condition.
    """
    used, left = list(levels[:base]), list(levels[base:])
    best = grown(used)
    while left:
        tried = [(grown([*used, level]), level) for level in left]
        tree, level = min(tried, key=lambda one: (cost(one[0]), one[1]))
        if cost(tree) >= cost(best):
            break
        best = tree
        used.append(level)
        left.remove(level)
    return best


def cost(root: Node) -> int:
    """Return how many training rows the tree predicts wrongly, plus the conditions that predict failures."""
    found = leaves(root)
    wrong = sum(len(leaf.rows) - leaf.failed if leaf.fails else leaf.failed for leaf, _ in found)
    return wrong + sum(len(path) for leaf, path in found if leaf.fails)


class Forecast(msgspec.Struct, frozen=True):
    """What was predicted of one build before its result was known; `risk` is the expected share of failures, 0–1."""

    row: int
    fails: bool
    risk: float
    failed: bool
    conditions: tuple[Condition, ...] = ()

    @property
    def keys(self) -> set[Key]:
        """Return the constants that the message names."""
        return {key for one in self.conditions for key in one.predicate.keys}


def walk_forward(
    teacher: Teacher, options: Options, start: float = 0.5, refit: int = 1, until: int | None = None
) -> list[Forecast]:
    """Predict each build from the builds before it.

    The first share `start` of the builds is only learned from. The tree is learned anew after `refit` builds; the
    paper's protocol is 1. `until` is the number of builds that are used, from the first.
    """
    rows, found = teacher.builds.rows[:until], teacher.candidates(options)
    forecasts: list[Forecast] = []
    root: Node | None = None
    for number in range(max(1, int(len(rows) * start)), len(rows)):
        if root is None or number % refit == 0:
            root = teacher.tree(rows[:number], options)
        row = int(rows[number])
        leaf, path = leaf_of(root, found.truth_NP[row])
        conditions = conditions_of(found, path) if leaf.fails else ()
        forecasts.append(Forecast(row, leaf.fails, leaf.risk, bool(teacher.builds.failed_N[row]), conditions))
    return forecasts


def conditions_of(found: Candidates, path: Iterable[tuple[int, bool]]) -> tuple[Condition, ...]:
    """Return a tree's path as conditions, each with the predicates that always had the same truth as its own."""
    return tuple(Condition(found.predicates[column][0], side, found.predicates[column][1:]) for column, side in path)


def noise_of(builds: Builds, until: int | None = None) -> float:
    """Return the estimated share of misleading labels: half the share of contradictions.

    A contradiction is a pair of consecutive builds with equal constants and different results. Half of one
    is added to one more pair, so that few pairs do not pass for clean ones.
    """
    known = set(builds.rows[:until].tolist())
    equal = [
        builds.failed_N[one] != builds.failed_N[other]
        for one, other in builds.edges
        if {one, other} <= known and builds.summaries[one] == builds.summaries[other]
    ]
    return float((sum(equal) + 0.5) / (len(equal) + 1) / 2) if equal else 0.0


def choose(
    teacher: Teacher, until: int | None = None, refit: int = 4, levels: tuple[int, ...] = (COARSE, VALUES, PAIRS)
) -> Options:
    """Return the options that would have served best on the past, by walk-forward from its first quarter.

    A later choice must beat an earlier one by more than a false alarm, since the labels of the past mislead, too.
    Where labels hardly contradict each other, only the paper's learner is tried: two failed builds say something there.
    """
    choices = CLEAN_CHOICES if noise_of(teacher.builds, until) <= CLEAN else CHOICES
    best, top = choices[0], -np.inf
    for one in choices:
        options = msgspec.structs.replace(one, levels=levels)
        forecasts = walk_forward(teacher, options, 0.25, refit, until)
        hits = sum(forecast.fails and forecast.failed for forecast in forecasts)
        alarms = sum(forecast.fails and not forecast.failed for forecast in forecasts)
        if hits - FALSE_ALARM * alarms > top + FALSE_ALARM:
            best, top = options, hits - FALSE_ALARM * alarms
    return best


def learn(
    history: History,
    failed: Mapping[str, bool],
    files: Files | None = None,
    options: Options | None = None,
    levels: tuple[int, ...] = (COARSE, VALUES, PAIRS),
) -> Model:
    """Return the constraints that a labelled history teaches.

    Args:
        history: Commits and constants.
        failed: Full commit id to whether its build failed.
        files: Which files the history was read from; `check` reads the same ones.
        options: How to learn; None lets the past decide.
        levels: Templates of predicates, if the past decides.

    Raises:
        NotEnoughHistory: There are too few builds, or too few failed ones.
    """
    builds = prepare(history, failed)
    builds.require_enough()
    teacher = Teacher(builds)
    options = options or choose(teacher, levels=levels)
    root = teacher.tree(builds.rows, options)
    labels = teacher.labels(builds.rows, options)
    found = teacher.candidates(options)
    failing = [(conditions_of(found, path), leaf) for leaf, path in leaves(root) if leaf.fails and path]
    constraints = tuple(_constraint(builds, conditions, leaf, labels) for conditions, leaf in failing)
    count, bad = len(builds.rows), int(builds.failed_N[builds.rows].sum())
    relabelled, weights = bad - int(labels[builds.rows].sum()), _past_messages(teacher, options)
    return Model(FORMAT, count, bad, options.learner, relabelled, files or Files(), constraints, weights)


def _constraint(builds: Builds, conditions: tuple[Condition, ...], leaf: Node, labels: NDArray[np.bool_]) -> Constraint:
    ids = [commit.id for commit in builds.history.commits]
    rows = [int(row) for row in leaf.rows if labels[row]]
    inside = set(leaf.rows.tolist())
    fixes = {row: fix_of(builds, row, inside) for row in rows}
    fixed = {ids[row]: ids[fix] for row, fix in fixes.items() if fix is not None}
    failed = tuple(ids[row] for row in rows)
    return Constraint(conditions, failed, len(leaf.rows) - leaf.failed, fixed, len(rows) < WEAK)


#: Failed builds below which a constraint is marked as weak.
WEAK = 2


def fix_of(builds: Builds, row: int, inside: Collection[int] = ()) -> int | None:
    """Return the nearest labelled descendant that passed, outside of a leaf; None if there is none."""
    children: dict[int, list[int]] = defaultdict(list)
    for one, other in builds.edges:
        children[one].append(other)
    waiting, seen = deque([row]), {row}
    while waiting:
        for child in children[waiting.popleft()]:
            if not builds.failed_N[child] and child not in inside:
                return child
            if child not in seen:
                seen.add(child)
                waiting.append(child)
    return None


def _past_messages(teacher: Teacher, options: Options) -> Weights | None:
    """Train the message filter on what would have been said in the past: did the fix change what it named?"""
    said = [one for one in walk_forward(teacher, options, 0.5, 8) if one.fails]
    fixed = [(one, fix) for one in said if (fix := fix_of(teacher.builds, one.row)) is not None]
    messages = [" and ".join(condition_words(condition) for condition in one.conditions) for one, _ in fixed]
    return train(messages, [is_hit(teacher.builds.history, one.keys, one.row, fix) for one, fix in fixed])


def is_hit(history: History, keys: Iterable[Key], row: int, fix: int) -> bool:
    """Return True if one of these constants differs between a failing build and its fix."""
    states = [values_of(history.commits[one], history.constants) for one in (row, fix)]
    return any(states[0].get(key) != states[1].get(key) for key in keys)
