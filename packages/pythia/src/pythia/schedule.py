"""Which waiting request goes to which replica and when, and when replicas start and stop: without clock or sockets.

The gateway and the simulator drive the same `Scheduler` and `Scaler`. Events go in (`submit`, `finish`, `cancel`,
replicas that come and go), dispatches come out of `take`, starts and stops out of `decide`.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pythia.records import Job, remember
from pythia.settings import Policy, Settings

#: Waiting requests that may be passed over because no replica has room for them, before the queue waits for room.
MOST_PASSED = 8
#: Share of the limit after which a waiting first step goes first, so that it still meets the limit.
URGENT = 0.8
#: Prefixes whose place is remembered per replica.
MOST_WARM = 50_000
#: Two replicas whose headroom differs by less than this share of a KV cache tie; then the warmer cache decides.
TIE = 0.25


@dataclass(eq=False)
class Replica:
    """A replica as the scheduler sees it.

    Attributes:
        state: "starting", "ready", "draining" (finishes what it has), "sick" (does not answer) or "held" (somebody
            called it sick); these two get nothing new.
        active: Requests that were sent to it and have not ended.
        warm: Tokens of prefixes that it has computed, latest last.
    """

    name: str
    model: str
    slots: int = 0
    kv_tokens: int = 0
    kind: str = "openai"
    state: str = "ready"
    url: str = ""
    active: dict[int, Job] = field(default_factory=dict)
    warm: OrderedDict[object, int] = field(default_factory=OrderedDict)

    @property
    def reserved(self) -> int:
        """Tokens that its requests may fill at most, by their bounds."""
        return sum(j.admitted_tokens for j in self.active.values())

    @property
    def alpha(self) -> float:
        """Probability that one of its requests exceeds its bound (union bound)."""
        return sum(j.alpha for j in self.active.values())

    def size(self, job: Job) -> int:
        """Return the tokens that a job adds at most; a role's prefix counts once while a request of the role runs."""
        running = job.role_group and any(j.role_group == job.role_group for j in self.active.values())
        shared = job.prefix if running else 0
        return max(0, job.prompt - shared) + job.bound

    def fits(self, job: Job, epsilon: float) -> bool:
        """Return whether a slot is free and the bounds of all its requests stay within the KV cache."""
        if self.slots and len(self.active) >= self.slots:
            return False
        if not self.kv_tokens or not self.active:
            return True
        return self.reserved + self.size(job) <= self.kv_tokens and self.alpha + job.alpha <= epsilon * (1 + 1e-9)

    def headroom(self) -> float:
        """Return the expected share of the KV cache that stays free, or of the slots if its size is unknown."""
        if self.kv_tokens:
            return 1 - sum(j.prompt + j.expected for j in self.active.values()) / self.kv_tokens
        return -len(self.active) / (self.slots or 1)

    def known(self, job: Job) -> int:
        """Return how many of the prompt's leading pieces it has computed."""
        return next((i for i in range(len(job.chain), 0, -1) if job.chain[i - 1] in self.warm), 0)

    def admit(self, job: Job) -> None:
        """Count a job that is sent to it."""
        job.replica, job.admitted_tokens = self.name, self.size(job)
        self.active[job.number] = job
        for key, tokens in ((job.role_group, job.prefix), (job.group, job.prompt), *((c, 1) for c in job.chain)):
            if key:
                remember(self.warm, key, tokens, MOST_WARM)


class Scheduler:
    """Queues and replicas.

    Attributes:
        replicas: By name. Requests of one that is removed count no longer.
        unit: Output tokens of a usual request, the unit of distance.
        worst_wait: Longest wait of a first step of several.
    """

    def __init__(self, policy: Policy, settings: Settings) -> None:
        self.policy, self.settings = policy, settings
        self.replicas: dict[str, Replica] = {}
        self.waiting: dict[int, Job] = {}
        self.queues: dict[str, list[tuple[tuple[float, ...], int]]] = {}  # sorted by `key`
        self.homes: OrderedDict[str, str] = OrderedDict()
        self.unit = 1.0
        self.worst_wait = 0.0
        self._counts = itertools.count()

    def key(self, job: Job) -> tuple[float, ...]:
        """Return a job's place in the queue, smallest first. It does not depend on the time of asking.

        Ageing is linear and equal for all jobs, so two jobs never change places while they wait.
        """
        if self.policy.order == "fcfs":
            return (job.arrived,)
        if self.policy.order == "session":
            return (job.session_arrived, job.arrived)
        if self.policy.order == "las":
            return (job.attained, job.arrived)
        if self.policy.order == "oracle":
            return (job.truth, job.arrived)
        return (job.session_arrived / self.settings.age_s - self.score(job), job.arrived)

    def score(self, job: Job) -> float:
        """Return the base priority, 0 to w_completion + w_unblock.

        Completion is the paper's 1/E[remaining distance], in requests of usual length, capped at 1: at the end of a run
        it would grow without limit.
        """
        completion = min(1.0, self.unit / max(job.remaining, 1.0))
        return self.settings.w_completion * completion + self.settings.w_unblock * job.unblock

    def submit(self, job: Job) -> None:
        """Put a request into its queue."""
        self.waiting[job.number] = job
        job.place = self.key(job)
        bisect.insort(self.queues.setdefault(job.model, []), (job.place, job.number))
        self.unit += 0.02 * ((job.expected or self.unit) - self.unit) if self.unit > 1 else max(job.expected - 1, 0)

    def finish(self, job: Job) -> None:
        """Forget a request, whether it waits, runs or has ended."""
        if job.number in self.waiting:
            self._leave(job)
        elif job.replica in self.replicas:
            self.replicas[job.replica].active.pop(job.number, None)

    def _leave(self, job: Job) -> None:
        del self.waiting[job.number]
        queue = self.queues[job.model]
        del queue[bisect.bisect_left(queue, (job.place, job.number))]

    def take(self, now: float) -> list[tuple[Job, Replica]]:
        """Return the requests to send now, with their replicas."""
        found: list[tuple[Job, Replica]] = []
        for model in list(self.queues):
            while (pair := self._next(model, now)) is not None:
                job, replica = pair
                self._leave(job)
                job.dispatched = now
                if job.first:
                    self.worst_wait = max(self.worst_wait, now - job.arrived)
                replica.admit(job)
                remember(self.homes, job.session, replica.name, MOST_WARM)
                found.append(pair)
        return found

    def ready(self, model: str) -> list[Replica]:
        """Return the replicas of a model that take requests."""
        return [r for r in self.replicas.values() if r.state == "ready" and r.model == model]

    def _next(self, model: str, now: float) -> tuple[Job, Replica] | None:
        if self.policy.hold and all(r.slots and len(r.active) >= r.slots for r in self.ready(model)):
            return None
        if self.policy.order == "pythia":
            oldest = next((j for j in self.waiting.values() if j.first and j.model == model), None)  # by arrival
            if oldest is not None and now - oldest.arrived >= URGENT * self.settings.limit_s:
                replica = self.choose(oldest)
                return (oldest, replica) if replica else None
        for _, number in self.queues[model][: MOST_PASSED + 1]:
            job = self.waiting[number]
            replica = self.choose(job)
            if replica is not None:
                return job, replica
            if now - job.arrived >= URGENT * self.settings.limit_s:
                break  # room that becomes free is kept for it
        return None

    def choose(self, job: Job) -> Replica | None:
        """Return the replica for a request; None if it must wait."""
        route, ready = self.policy.route, self.ready(job.model)
        if self.policy.hold:
            epsilon = self.settings.epsilon if route == "pythia" else 2.0
            ready = [r for r in ready if r.fits(job, epsilon)]
        home = self.replicas.get(self.homes.get(job.session, "")) if route == "sticky" else None
        if home is not None and home.state == "ready" and home.model == job.model:
            ready = [r for r in ready if r is home]
        if not ready:
            return None
        if route == "round_robin":
            return ready[next(self._counts) % len(ready)]
        if route == "pythia":
            rooms = {r.name: r.headroom() for r in ready}
            tied = [r for r in ready if rooms[r.name] >= max(rooms.values()) - TIE]
            warm = {r.name: r.warm.get(job.group, r.warm.get(job.role_group, 0)) for r in tied}
            return min(tied, key=lambda r: (-warm[r.name], -rooms[r.name], r.name))
        known = {r.name: r.known(job) if route == "prefix" else 0 for r in ready}
        return min(ready, key=lambda r: (-known[r.name], len(r.active), r.name))


#: Seconds that requests must have waited before reactive scaling starts a replica.
REACTIVE_WAIT_S = 1.0


@dataclass(frozen=True)
class Action:
    """Start, drain or stop one replica."""

    kind: Literal["start", "drain", "stop"]
    model: str
    name: str
    reason: str = ""


class Scaler:
    """Decides about the replicas of all models that have `launch`.

    Attributes:
        unneeded: Since when each replica has not been needed.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.unneeded: dict[str, float] = {}
        self._names = itertools.count()

    def decide(self, scheduler: Scheduler, projected: Mapping[str, float], now: float) -> list[Action]:
        """Return what to do now. Replicas that were configured by URL are never stopped."""
        actions: list[Action] = []
        reactive = self.settings.policy.scale == "reactive"
        for model, described in self.settings.models.items():
            launch = described.launch
            if launch is None:
                continue
            mine = [r for r in scheduler.replicas.values() if r.model == model]
            live = [r for r in mine if r.state in ("ready", "starting")]
            waits = [now - job.arrived for job in scheduler.waiting.values() if job.model == model]
            load = sum(len(r.active) for r in mine) + len(waits)
            coming = 0.0 if reactive else projected.get(model, 0.0)
            number = math.ceil((load + coming) / max(launch.replica.slots, 1) - 1e-9)
            if reactive and waits and max(waits) < REACTIVE_WAIT_S:
                number = len(live)
            number = min(max(number, launch.least), launch.most)
            reason = f"{load} running or waiting, {coming:.1f} expected"
            draining = [r for r in mine if r.state == "draining"]
            for _ in range(number - len(live)):
                if draining:
                    draining.pop().state = "ready"  # it was about to go
                elif len(mine) < launch.most:
                    name = f"{model or 'replica'}-started-{next(self._names)}"
                    actions.append(Action("start", model, name, reason))
            self._shrink(live, number, model, now, actions)
            for replica in mine:
                if replica.state == "draining" and not replica.active:
                    self.unneeded.pop(replica.name, None)
                    actions.append(Action("stop", model, replica.name, "drained"))
        return actions

    def _shrink(self, live: list[Replica], number: int, model: str, now: float, actions: list[Action]) -> None:
        """Drain replicas that have not been needed for long enough, the emptiest first."""
        patience = self.settings.keep_alive_s if self.settings.policy.scale == "reactive" else self.settings.cool_s
        started = sorted((r for r in live if "-started-" in r.name), key=lambda r: (len(r.active), r.name))
        surplus = {r.name for r in started[: max(0, len(live) - number)]}
        for replica in started:
            if replica.name not in surplus:
                self.unneeded.pop(replica.name, None)
            elif now - self.unneeded.setdefault(replica.name, now) >= patience and replica.state == "ready":
                replica.state = "draining"
                actions.append(Action("drain", model, replica.name, f"{number} of {len(live)} needed"))
