"""What finished runs teach: an automaton, bounds of output lengths, changes of a workflow, trust in predictions."""

from __future__ import annotations

import itertools
import math
from array import array
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

State = tuple[str, int]
START: State = ("", 0)
END: State = ("", -1)
#: Visits of one role that are told apart; more count as this many. Bounds the number of states.
MOST_VISITS = 24
#: Probability that is assumed for a step that was never seen, for likelihoods only.
UNSEEN = 1e-3


def states(roles: Sequence[str]) -> list[State]:
    """Return the state after each step of a path."""
    visits: dict[str, int] = {}
    found = []
    for role in roles:
        visits[role] = min(visits.get(role, 0) + 1, MOST_VISITS)
        found.append((role, visits[role]))
    return found


class Automaton(msgspec.Struct, dict=True):
    """Counts of steps between states (role, number of its visits), and of the work that followed each.

    Counting visits keeps loops honest: "exactly three reviews" stays three, where a plain Markov chain over roles would
    predict a geometric number. What really remained of past runs includes everything that correlates with the path.

    Attributes:
        edges: Count of each observed step, by its state and the state that followed.
        after: Per state: visits, output tokens and requests that followed (this step excluded), summed up.
    """

    edges: dict[State, dict[State, float]] = {}
    after: dict[State, list[float]] = {}

    def __post_init__(self) -> None:
        self._forecasts: dict[tuple[State, int], dict[str, tuple[float, float]]] = {}

    def learn(self, path: Sequence[tuple[str, int]]) -> None:
        """Add one finished run: its roles in order of arrival, with their output tokens."""
        trail = [START, *states([role for role, _ in path]), END]
        remaining, steps = sum(tokens for _, tokens in path), len(path)
        for i, (state, following) in enumerate(itertools.pairwise(trail)):
            counts = self.edges.setdefault(state, {})
            counts[following] = counts.get(following, 0.0) + 1
            if i:
                remaining -= path[i - 1][1]
                steps -= 1
            sums = self.after.setdefault(state, [0.0, 0.0, 0.0])
            sums[0] += 1
            sums[1] += remaining
            sums[2] += steps
        self._forecasts.clear()

    def known(self, state: State) -> State | None:
        """Return the state itself, or the nearest one of its role with fewer visits; None for an unknown role."""
        role, visits = state
        return next(((role, n) for n in range(visits, 0, -1) if (role, n) in self.edges), None)

    def successors(self, state: State) -> list[tuple[State, float]]:
        """Return the states that may follow, likeliest first, with probabilities."""
        counts = self.edges.get(state, {})
        total = sum(counts.values())
        return sorted(((s, c / total) for s, c in counts.items()), key=lambda pair: (-pair[1], pair[0]))

    def remaining(self, state: State) -> tuple[float, float]:
        """Return expected output tokens and requests that follow a state (its own step excluded)."""
        visits, tokens, steps = self.after.get(state, (0.0, 0.0, 0.0))
        return (tokens / visits, steps / visits) if visits else (0.0, 0.0)

    def forecast(self, state: State, horizon: int) -> dict[str, tuple[float, float]]:
        """Return, per role, the expected visits within the next steps and the expected distance of the first one.

        Args:
            state: Where the run is.
            horizon: Steps to look ahead.
        """
        if (state, horizon) in self._forecasts:
            return self._forecasts[state, horizon]
        spread: dict[State, float] = {state: 1.0}
        visits: dict[str, float] = {}
        weighted: dict[str, float] = {}
        for distance in range(1, horizon + 1):
            following: dict[State, float] = {}
            for here, mass in spread.items():
                for there, probability in self.successors(here):
                    if there != END and mass * probability > 1e-4:
                        following[there] = following.get(there, 0.0) + mass * probability
            for (role, _), mass in following.items():
                before = visits.get(role, 0.0)
                first = min(mass, max(0.0, 1.0 - before))  # only a first visit decides the distance
                weighted[role] = weighted.get(role, 0.0) + first * distance
                visits[role] = before + mass
            spread = following
            if not spread:
                break
        found = {role: (mass, weighted[role] / min(1.0, mass)) for role, mass in visits.items()}
        self._forecasts[state, horizon] = found
        return found

    def likelihood(self, roles: Sequence[str]) -> float:
        """Return the mean log-probability of the steps of a path, its end included."""
        trail = [START, *states(roles), END]
        total = 0.0
        for state, following in itertools.pairwise(trail):
            counts = self.edges.get(state, {})
            total += math.log(max(counts.get(following, 0.0) / sum(counts.values()), UNSEEN) if counts else UNSEEN)
        return total / (len(trail) - 1)

    def role_edges(self) -> dict[tuple[str, str], float]:
        """Return step counts between roles, visits put together; the empty role is start and end."""
        found: dict[tuple[str, str], float] = {}
        for (role, _), counts in self.edges.items():
            for (following, _), count in counts.items():
                found[role, following] = found.get((role, following), 0.0) + count
        return found


#: Answers that are kept per role: enough for ε = 5 % on 64 slots (1,279), about 8 KB.
KEPT = 2048


def rank(n: int, alpha: float) -> int | None:
    """Return the rank k (from 1) of the order statistic that a new value exceeds with probability at most alpha.

    Of n + 1 exchangeable values each is equally likely to be the last one, so the k-th of n is exceeded with
    probability 1 − k/(n+1). None if even the largest does not suffice (n < 1/alpha − 1).
    """
    k = math.ceil((n + 1) * (1 - alpha) - 1e-9)
    return k if 0 < k <= n else None


class Lengths:
    """The latest output lengths of one role, and bounds from them."""

    __slots__ = ("_bounds", "seen", "total", "values")

    def __init__(self, values: array[int] | None = None, seen: int = 0) -> None:
        self.values = values if values is not None else array("I")
        self.seen = max(seen, len(self.values))
        self.total = float(sum(self.values))
        self._bounds: dict[float, int | None] = {}

    def add(self, tokens: int) -> None:
        """Add one length; beyond KEPT the oldest goes."""
        self.values.append(tokens)
        self.total += tokens
        self.seen += 1
        if len(self.values) > KEPT:
            self.total -= self.values.pop(0)
        self._bounds.clear()

    @property
    def mean(self) -> float:
        """Mean length; 0 without history."""
        return self.total / len(self.values) if self.values else 0.0

    def bound(self, alpha: float) -> int | None:
        """Return the bound that a new length exceeds with probability at most alpha; None if history is too thin."""
        if alpha not in self._bounds:
            k = rank(len(self.values), alpha)
            self._bounds[alpha] = None if k is None else int(np.partition(self.values, k - 1)[k - 1])
        return self._bounds[alpha]


#: Sum of log-likelihood ratios from which a change counts as noticed. Four to ten odd runs suffice.
#: Without a change a false alarm comes at most about once in e^7 ≈ 1,100 runs.
ALARM = 7.0
#: Share of odd runs that is noticed as a change.
CHANGED = 0.6


class Drift(msgspec.Struct):
    """Watches finished runs for a change: one-sided CUSUMs over odd events.

    Attributes:
        levels: Present sum per kind of event; never below 0.
    """

    levels: dict[str, float] = {}

    def add(self, events: Mapping[str, tuple[bool, float]], runs: int) -> str:
        """Add one finished run; return what has changed, or an empty text.

        Args:
            events: Per kind of event: whether the run was odd, and the usual share of odd runs.
            runs: Runs from which the limits of odd were estimated, as quantiles. Fewer runs allow more odd ones.
        """
        for kind, (odd, share) in events.items():
            usual = share + 2 * math.sqrt(share * (1 - share) / max(runs, 1))
            ratio = CHANGED / usual if odd else (1 - CHANGED) / (1 - usual)
            self.levels[kind] = max(0.0, self.levels.get(kind, 0.0) + math.log(ratio))
        return ", ".join(kind for kind, level in self.levels.items() if level >= ALARM)


class Trust(msgspec.Struct):
    """How right recent predictions were: exponentially weighted means over about 40 steps.

    Attributes:
        hits: Share of steps whose role was the likeliest.
        hoped: Share that the profile itself expected to hit.
        error: Mean |log(predicted / actual)| of the remaining tokens.
        bias: Mean log(predicted / actual).
        steps: Steps counted so far.
    """

    hits: float = 0.0
    hoped: float = 0.0
    error: float = 0.0
    bias: float = 0.0
    steps: int = 0

    def add(self, hit: bool, hoped: float, predicted: float, actual: float) -> None:
        """Compare one prediction with what happened."""
        self.steps += 1
        rate = max(1 / 40, 1 / self.steps)
        ratio = math.log((predicted + 1) / (actual + 1))
        self.hits += rate * (hit - self.hits)
        self.hoped += rate * (hoped - self.hoped)
        self.error += rate * (abs(ratio) - self.error)
        self.bias += rate * (ratio - self.bias)

    @property
    def earned(self) -> bool:
        """Whether predictions may decide the order of requests.

        The profile must hit at least 80 % as often as it expects itself, predict remaining work within a factor of
        e ≈ 2.7 on average, and not be off by a factor of 2 in one direction.
        """
        return self.steps >= 10 and self.hits >= 0.8 * self.hoped and self.error <= 1.0 and abs(self.bias) <= 0.7
