"""A probabilistic automaton over (role, number of its visits), learned from finished runs.

Counting visits keeps loops honest: "exactly three reviews" stays three, where a plain Markov chain over roles would
predict a geometric number. Each state also keeps what really remained of the run from there on, so that expected
remaining work includes everything that correlates with the path.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import msgspec

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
    """Counts of steps between states, and of the work that followed each.

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
        while visits > 0 and (role, visits) not in self.edges:
            visits -= 1
        return (role, visits) if (role, visits) in self.edges else None

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
        key = (state, horizon)
        if key not in self._forecasts:
            self._forecasts[key] = self._walk(state, horizon)
        return self._forecasts[key]

    def _walk(self, state: State, horizon: int) -> dict[str, tuple[float, float]]:
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
        return {role: (mass, weighted[role] / min(1.0, mass)) for role, mass in visits.items()}

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
