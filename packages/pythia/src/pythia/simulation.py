"""A discrete-event simulation of replicas behind the gateway's own dispatcher.

Replicas run iterations: all decoding sequences get one token, and prompts are prefilled in chunks beside them. An
iteration takes a fixed time, a time per decoding sequence and per prefilled token. Between
two events the batch does not change, so many iterations are taken in one leap. Everything that decides (profiles,
order, routing, retention, scaling) is the code that the gateway runs.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable, Set
from dataclasses import dataclass, field

import msgspec
import numpy as np

from pythia.dispatcher import Arrival, Dispatcher
from pythia.profile import Profiles
from pythia.records import Identifiers, Step
from pythia.schedule import Replica, Scaler
from pythia.settings import REACTIVE, Launch, Model, Policy, Settings
from pythia.settings import Replica as ReplicaSettings
from pythia.workflow import Plan, PlannedStep, Times, Workflow, arrivals, mean_work

#: Seconds for which `ttl` keeps a prefix after its last use.
TTL_S = 4.0


class Engine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Speed and size of one replica; times in seconds.

    Attributes:
        fixed_s: An iteration by itself.
        sequence_s: Per decoding sequence of an iteration.
        prefill_s: Per prefilled token.
        batch_tokens: Tokens of one iteration at most.
        slots: Sequences at once.
        kv_tokens: Tokens of the KV cache.
        start_s: Time from starting a replica to its first answer.
    """

    fixed_s: float = 0.02
    sequence_s: float = 0.0005
    prefill_s: float = 0.00005
    batch_tokens: int = 512
    slots: int = 8
    kv_tokens: int = 16_384
    start_s: float = 15.0


@dataclass(eq=False)
class _Sequence:
    step: PlannedStep
    live: _Live
    arrival: Arrival
    prefill: int = 0
    left: int = 0
    hit: int = 0
    first_s: float = -1.0
    private: int = 0
    preempted: int = 0


@dataclass(eq=False)
class _Entry:
    tokens: int
    used: float


@dataclass(eq=False)
class _Live:
    plan: Plan
    stage: int = 0
    open: int = 0
    resumes: float = 0.0
    done: int = 0


class _Replica:
    """One engine: a queue, a batch and a cache of prefixes."""

    def __init__(self, engine: Engine, world: _World) -> None:
        self.engine, self.world = engine, world
        self.queue: deque[_Sequence] = deque()
        self.batch: list[_Sequence] = []
        self.cache: dict[str, _Entry] = {}
        self.cached = 0
        self.version = 0
        self.start = self.length = 0.0
        self.turns = 0
        self.chunk = 0
        self.preemptions = 0

    @property
    def free(self) -> int:
        """Tokens that neither a running sequence nor a cached prefix holds."""
        return self.engine.kv_tokens - sum(s.private for s in self.batch) - self.cached

    def add(self, sequence: _Sequence, now: float) -> None:
        self.queue.append(sequence)
        if not self.batch:
            self.begin(now)
        elif self.turns > 1 and len(self.batch) < self.engine.slots:
            done = max(1, math.ceil((now - self.start) / self.length - 1e-9))
            if done < self.turns:
                self.turns = done
                self.schedule()

    def schedule(self) -> None:
        self.version += 1
        version = self.version
        at = self.start + self.turns * self.length
        self.world.push(at, lambda now: self.iterate(now) if self.version == version else None)

    def begin(self, now: float, *, admit: bool = True) -> None:
        """Admit from the queue and plan the next leap."""
        if admit:
            self.admit(now)
        if not self.batch:
            return
        e = self.engine
        decoding = [s for s in self.batch if not s.prefill]
        prefilling = next((s for s in self.batch if s.prefill), None)
        self.chunk = 0
        turns = min((s.left for s in decoding), default=1 << 30)
        if prefilling is not None:
            self.chunk = max(1, min(prefilling.prefill, e.batch_tokens - len(decoding)))
            turns = min(turns, max(1, prefilling.prefill // self.chunk))
        if decoding and self.free < len(decoding) * turns:
            self.evict(len(decoding) * turns - self.free, now)
            if self.free < len(decoding):
                self.preempt(now)
                self.begin(now, admit=not self.batch)
                return
            turns = max(1, min(turns, self.free // len(decoding)))
        self.turns, self.start = turns, now
        self.length = e.fixed_s + e.sequence_s * len(decoding) + e.prefill_s * self.chunk
        self.schedule()

    def iterate(self, now: float) -> None:
        """Apply the leap that ends now."""
        prefilling = next((s for s in self.batch if s.prefill), None)
        for sequence in [s for s in self.batch if not s.prefill]:
            self.token(sequence, self.turns, now)
        if prefilling is not None and prefilling in self.batch:
            prefilling.prefill = max(0, prefilling.prefill - self.chunk * self.turns)
            if not prefilling.prefill:
                self.token(prefilling, 1, now)
        self.begin(now)

    def token(self, sequence: _Sequence, count: int, now: float) -> None:
        if sequence.first_s < 0:
            sequence.first_s = now
        sequence.left -= count
        sequence.private += count
        if sequence.left <= 0:
            self.finish(sequence, now)

    def admit(self, now: float) -> None:
        e = self.engine
        while self.queue and len(self.batch) < e.slots:
            sequence = self.queue[0]
            step, job = sequence.step, sequence.arrival.job
            role, own = self.cache.get(job.role_group), self.cache.get(job.group)
            hit = min(role.tokens, step.prefix) if role else 0
            history = min(own.tokens, step.history) if own and hit == step.prefix else 0
            generated = step.output - sequence.left
            private = step.history + step.new + generated
            needed = private + step.prefix - hit - history
            self.evict(needed - self.free, now, {job.group, job.role_group})
            if needed > self.free and self.batch:
                return
            self.queue.popleft()
            if history and own is not None:
                self.cached -= own.tokens
                del self.cache[job.group]
            if job.role_group:
                role = self.cache.setdefault(job.role_group, _Entry(0, now))
                self.cached += step.prefix - role.tokens
                role.tokens, role.used = step.prefix, now
            sequence.private = private
            sequence.hit = hit + history
            sequence.prefill = max(1, step.prompt + generated - sequence.hit)
            self.batch.append(sequence)
            if not sequence.preempted:
                self.world.result.hit += sequence.hit
                self.world.result.prompt += step.prompt

    def finish(self, sequence: _Sequence, now: float) -> None:
        job, step = sequence.arrival.job, sequence.step
        self.batch.remove(sequence)
        if job.group:
            old = self.cache.pop(job.group, None)
            self.cached -= old.tokens if old else 0
            tokens = step.history + step.new + step.output
            if tokens <= self.free:
                self.cache[job.group] = _Entry(tokens, now)
                self.cached += tokens
        self.world.finished(sequence, now)

    def preempt(self, now: float) -> None:
        """Put one sequence back into the queue; its tokens are computed again later."""
        if self.world.policy.order == "pythia":
            victim = max(self.batch, key=lambda s: self.world.scheduler.key(s.arrival.job))
        else:
            victim = self.batch[-1]
        if len(self.batch) == 1:
            victim.left = 1  # it does not fit at all: cut short
        self.batch.remove(victim)
        victim.preempted += 1
        self.preemptions += 1
        self.queue.appendleft(victim)

    def evict(self, tokens: int, now: float, spare: Set[str] = frozenset()) -> None:
        """Drop cached prefixes that nothing in the batch uses, least valuable first, until so many tokens are free."""
        if tokens <= 0:
            return
        tokens += self.engine.kv_tokens // 32  # some at once, so that not every iteration has to choose
        used = spare | {s.arrival.job.role_group for s in self.batch}
        free = [(self.world.value(g, entry, now), g) for g, entry in self.cache.items() if g not in used]
        for _, group in sorted(free):
            if tokens <= 0:
                return
            entry = self.cache[group]
            taken = min(tokens, entry.tokens)
            entry.tokens -= taken
            self.cached -= taken
            tokens -= taken
            if not entry.tokens:
                del self.cache[group]

    def prefetch(self, group: str, tokens: int, now: float) -> None:
        """Compute a role's prefix while the engine idles; a request that arrives meanwhile cancels it."""
        entry = self.cache.get(group)
        missing = tokens - (entry.tokens if entry else 0)
        worth = self.world.dispatcher.retention.value(group, now)
        less = sum(c.tokens for g, c in self.cache.items() if self.world.value(g, c, now)[0] < worth)
        if missing <= 0 or self.batch or missing > self.free + less:
            return
        version = self.version

        def end(at: float) -> None:
            if self.version != version:
                return
            entry = self.cache.setdefault(group, _Entry(0, at))
            missing = tokens - entry.tokens
            self.evict(missing - self.free, at, {group})
            entry.tokens, entry.used = tokens, at
            self.cached += missing
            self.world.result.prefetched += missing

        self.world.push(now + self.engine.fixed_s + missing * self.engine.prefill_s, end)


@dataclass
class Result(Times):
    """What happened.

    Attributes:
        waits_s, waits_first_s: Waits in the gateway, of all requests and of first steps of several.
        ends_s: When each request ended.
        hit, prompt: Prompt tokens found in a cache, and all.
        missed: Answers longer than their predicted bound.
    """

    waits_s: list[float] = field(default_factory=list)
    waits_first_s: list[float] = field(default_factory=list)
    ends_s: list[float] = field(default_factory=list)
    hit: int = 0
    prompt: int = 0
    requests: int = 0
    preemptions: int = 0
    prefetched: int = 0
    missed: int = 0
    bounded: int = 0

    @property
    def hit_share(self) -> float:
        """Share of prompt tokens found in a cache."""
        return self.hit / max(self.prompt, 1)


class _World:
    """Events, replicas and the gateway's dispatcher."""

    def __init__(self, settings: Settings, engine: Engine, profiles: Profiles) -> None:
        self.settings, self.policy, self.engine = settings, settings.policy, engine
        self.dispatcher = Dispatcher(settings, profiles)
        self.scheduler = self.dispatcher.scheduler
        self.scaler = Scaler(settings)
        self.events: list[tuple[float, int, Callable[[float], None]]] = []
        self.counter = itertools.count()
        self.replicas: dict[str, _Replica] = {}
        self.sequences: dict[int, _Sequence] = {}
        self.uses: dict[str, deque[float]] = {}
        self.ends: dict[str, float] = {}
        self.result = Result()

    def push(self, time: float, event: Callable[[float], None]) -> None:
        """Let something happen at a time."""
        heapq.heappush(self.events, (time, next(self.counter), event))

    def start(self, model: str, name: str, now: float, *, ready: bool) -> None:
        """Start a replica."""
        e = self.engine
        replica = Replica(name, model, e.slots, e.kv_tokens, "pythia", "ready" if ready else "starting")
        self.scheduler.replicas[name] = replica
        self.replicas[name] = _Replica(e, self)
        if not ready:
            self.push(now + e.start_s, lambda _: setattr(replica, "state", "ready"))

    def tick(self, now: float, runs: int) -> None:
        """Do what the gateway does every second."""
        self.dispatcher.expire(now)
        projected = self.dispatcher.projected()
        if self.policy.scale != "off":
            for action in self.scaler.decide(self.scheduler, projected, now):
                if action.kind == "start":
                    self.start(action.model, action.name, now, ready=False)
                elif action.kind == "stop":
                    del self.scheduler.replicas[action.name]
        if len(self.ends) < runs:
            self.push(now + 1.0, lambda t: self.tick(t, runs))

    def value(self, group: str, entry: _Entry, now: float) -> tuple[float, float]:
        """Return a cached prefix's worth; the least goes first."""
        cache = self.policy.cache
        if cache == "pythia":
            return self.dispatcher.retention.value(group, now), entry.used
        of_one_run = group.count("\0") > 3
        if cache == "ttl":
            return float(of_one_run and entry.used + TTL_S > now), entry.used
        if cache == "kvflow":
            return 0.0 if of_one_run else self.dispatcher.retention.wanted(group), entry.used
        if cache == "belady":
            uses = self.uses.get(group)
            while uses and uses[0] < now:
                uses.popleft()
            return (-uses[0] if uses else -math.inf), entry.used
        return 0.0, entry.used

    def finished(self, sequence: _Sequence, now: float) -> None:
        """Count a finished request, and go on with its run."""
        step, live, arrival, result = sequence.step, sequence.live, sequence.arrival, self.result
        ids = arrival.ids
        result.ttft_s.append((live.done, sequence.first_s - sequence.arrival.job.arrived))
        result.ends_s.append(now)
        live.done += 1
        bound = arrival.prediction.bound
        result.bounded += bound is not None
        result.missed += bound is not None and step.output > bound
        spent = now - sequence.arrival.job.arrived
        names = (ids.workflow_type_id, ids.workflow_id, ids.agent_id)
        done = Step(*names, sequence.arrival.job.arrived, step.output, step.prompt, spent, step.model, final=ids.final)
        self.dispatcher.depart(arrival, done, now)
        live.resumes = max(live.resumes, now + step.tool_s)
        live.open -= 1
        if not live.open:
            live.stage += 1
            if live.stage < len(live.plan.stages):
                self.push(live.resumes, lambda t: self.stage(live, t))
            else:
                self.ends[live.plan.name] = now

    def stage(self, live: _Live, now: float) -> None:
        """Send the requests of a run's next stage."""
        plan = live.plan
        steps = plan.stages[live.stage]
        live.open, live.resumes = len(steps), now
        last = live.stage == len(plan.stages) - 1
        truth = float(sum(s.output for stage in plan.stages[live.stage :] for s in stage))
        for i, step in enumerate(steps):
            ids = Identifiers(plan.workflow_type, plan.name, step.role, last and i == len(steps) - 1)
            arrival = self.dispatcher.arrive(ids, "", step.model, step.prompt, None, now)
            job = arrival.job
            job.prefix, job.truth = step.prefix, truth
            job.chain = (hash(job.role_group), hash(job.group)) if step.history else (hash(job.role_group),)
            self.sequences[job.number] = _Sequence(step, live, arrival, left=step.output)
            self.result.requests += 1
            self.scheduler.submit(job)

    def dispatch(self, now: float) -> None:
        """Send what can be sent."""
        for job, replica in self.scheduler.take(now):
            sequence = self.sequences.pop(job.number)
            self.result.waits_s.append(now - job.arrived)
            if sequence.live.stage == 0 and len(sequence.live.plan.stages) > 1:
                self.result.waits_first_s.append(now - job.arrived)
            self.replicas[replica.name].add(sequence, now)
            following = self.dispatcher.next_prefix(sequence.arrival) if self.policy.prefetch else None
            if following is not None:
                group, model = following
                role = sequence.arrival.prediction.next_role
                prefix = next((s.prefix for s in sequence.live.plan.steps if s.role == role), 0)
                for idle in self.scheduler.ready(model):
                    self.replicas[idle.name].prefetch(group, prefix, now)

    def foresee(self, plans: list[Plan]) -> None:
        """Note when each prefix would be used without queueing, for Belady's oracle."""
        for plan in plans:
            at = plan.arrival_s
            for stage in plan.stages:
                for step in stage:
                    role = "\0".join(("", plan.workflow_type, step.role, step.model))
                    run = "\0".join(("", plan.workflow_type, plan.name))
                    for group in (role, f"{role}\0{run}"):
                        self.uses.setdefault(group, deque()).append(at)
                at += max(s.output * self.engine.fixed_s + s.tool_s for s in stage)
        self.uses = {group: deque(sorted(times)) for group, times in self.uses.items()}


#: Policies to compare; the first one is what others are measured against.
POLICIES = {
    "fcfs+least": REACTIVE,
    "round robin": Policy("fcfs", "round_robin", False, "lru", False),
    "sticky": Policy("fcfs", "sticky", False, "lru", False),
    "prefix-aware": Policy("fcfs", "prefix", False, "lru", False),
    "fcfs held": Policy("fcfs", "least", True, "lru", False),
    "by session": Policy("session", "least", True, "lru", False),
    "las": Policy("las", "least", True, "lru", False),
    "ttl": Policy("session", "least", True, "ttl", False),
    "kvflow": Policy("session", "least", True, "kvflow", False),
    "belady": Policy("session", "least", True, "belady", False),
    "pythia order": Policy("pythia", "least", True, "lru", False),
    "pythia route": Policy("session", "pythia", True, "lru", False),
    "pythia cache": Policy("fcfs", "least", False, "pythia", True),
    "pythia": Policy(),
    "oracle": Policy("oracle", "pythia", True, "pythia", True),
}


def trained(mixture: list[tuple[Workflow, float]], engine: Engine, runs: int, seed: int = 99) -> Profiles:
    """Return profiles that have seen so many runs on a fleet without load."""
    profiles = Profiles()
    if runs:
        plans = arrivals(mixture, 1.0, runs, seed)
        simulate(plans, REACTIVE, engine, profiles=profiles, models={"": 64})
    return profiles


def tokens_per_s(mixture: list[tuple[Workflow, float]], engine: Engine, replicas: int, runs: int = 300) -> float:
    """Return the output tokens per second that a fleet serves while its queue never empties."""
    plans = [msgspec.structs.replace(p, arrival_s=0.0) for p in arrivals(mixture, 1.0, runs, 5)]
    result = simulate(plans, POLICIES["by session"], engine, models={"": replicas})
    return 0.8 * sum(plan.work for plan in plans) / float(np.quantile(result.ends_s, 0.8))


def loaded(
    mixture: list[tuple[Workflow, float]], engine: Engine, replicas: int, load: float, seconds: float, seed: int,
    rate: float | None = None,
) -> list[Plan]:  # fmt: skip
    """Return runs whose work, over the time in which they arrive, is a share of what the fleet can serve.

    Args:
        mixture: Workflows with their shares.
        engine: Each replica.
        replicas: Their number.
        load: The share.
        seconds: How long runs arrive.
        seed: Of all random numbers.
        rate: Output tokens per second that the fleet serves, if known (`tokens_per_s`).
    """
    rate = rate or tokens_per_s(mixture, engine, replicas)
    plans = arrivals(mixture, load * rate / mean_work(mixture, runs=2000), seconds, seed)
    stretch = sum(p.work for p in plans) / (load * rate * seconds)
    return [msgspec.structs.replace(p, arrival_s=p.arrival_s * stretch) for p in plans]


def simulate(
    plans: list[Plan],
    policy: Policy,
    engine: Engine,
    *,
    profiles: Profiles | None = None,
    models: dict[str, int] | None = None,
    **changes: object,
) -> Result:
    """Run plans through a fleet.

    Args:
        plans: Runs, by arrival.
        policy: What decides.
        engine: Each replica.
        profiles: What is known beforehand; they go on learning.
        models: Replicas by model; {"": 8} without one.
        changes: Settings by name, where they differ from the defaults.
    """
    models = models or {"": 8}
    described = ReplicaSettings("http://simulated", engine.slots, engine.kv_tokens)
    launch = Launch(["simulated"], described, most=max(models.values()))
    settings = Settings({name: Model([described], launch) for name in models}, policy=policy)
    world = _World(msgspec.structs.replace(settings, **changes), engine, profiles or Profiles())
    for model, count in models.items():
        for i in range(count if policy.scale == "off" else 0):
            world.start(model, f"{model or 'replica'}-{i}", 0.0, ready=True)
    if policy.cache == "belady":
        world.foresee(plans)
    for plan in plans:
        world.push(plan.arrival_s, functools.partial(world.stage, _Live(plan)))
    world.push(0.0, lambda now: world.tick(now, len(plans)))
    while world.events:
        now, _, event = heapq.heappop(world.events)
        event(now)
        world.dispatch(now)
    result = world.result
    result.jct_s = np.array([world.ends[p.name] - p.arrival_s for p in plans])
    result.preemptions = sum(r.preemptions for r in world.replicas.values())
    return result
