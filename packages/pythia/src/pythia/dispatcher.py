"""From an arriving request to a job, and from a finished one to what is learned: what gateway and simulator share."""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from pythia.profile import Profile, Profiles, Run
from pythia.records import Identifiers, Job, Prediction, Step, remember
from pythia.schedule import Scheduler
from pythia.settings import Settings

#: Seconds over which recent uses are averaged.
WINDOW_S = 60.0
#: Runs, and prefixes with a rate, that are remembered.
MOST = 20_000


class Retention:
    """Values of cached prefixes, from where the running workflows are expected to go.

    A value is the expected uses per step ahead: the sum over running workflows of expected visits divided by distance,
    plus, for a role's shared prefix, the rate of its recent uses, which runs that have not begun yet will need.
    """

    def __init__(self) -> None:
        self._wanted: OrderedDict[str, dict[str, float]] = OrderedDict()
        self._sums: dict[str, float] = {}
        self._uses: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self.step_s = 1.0

    def use(self, group: str, now: float) -> None:
        """Register that a request uses a role's shared prefix."""
        level, then = self._uses.get(group, (0.0, now))
        remember(self._uses, group, (level * math.exp((then - now) / WINDOW_S) + 1.0, now), MOST)

    def want(self, run: str, wanted: Mapping[str, float]) -> set[str]:
        """Replace what one run is expected to use; return the prefixes whose value changed."""
        before = self._wanted.pop(run, {})
        changes = {group: wanted.get(group, 0.0) - before.get(group, 0.0) for group in {*before, *wanted}}
        for group, change in changes.items():
            value = self._sums.pop(group, 0.0) + change
            if value > 1e-9:
                self._sums[group] = value
        if wanted:
            self._wanted[run] = dict(wanted)
        if len(self._wanted) > MOST:
            self.want(next(iter(self._wanted)), {})
        return {group for group, change in changes.items() if abs(change) > 1e-6}

    def wanted(self, group: str) -> float:
        """Return what running workflows are expected to use of a prefix per step ahead."""
        return self._sums.get(group, 0.0)

    def value(self, group: str, now: float) -> float:
        """Return the expected uses of a prefix per step ahead."""
        level, then = self._uses.get(group, (0.0, now))
        rate = level * math.exp((then - now) / WINDOW_S) / WINDOW_S
        return self.wanted(group) + rate * self.step_s


#: Steps ahead that are looked at for prefixes and for replicas that will be kept busy.
AHEAD = 8
#: Least probability of a visit for which a prefix is computed in advance.
LIKELY = 0.5
#: Steps from which on a run counts as one of several steps.
SEVERAL = 1.5


@dataclass(eq=False)
class Arrival:
    """A request with identifiers that the gateway is serving."""

    ids: Identifiers
    run: Run
    place: int
    prediction: Prediction
    job: Job


class Dispatcher:
    """Profiles, scheduler and retention of one gateway."""

    def __init__(self, settings: Settings, profiles: Profiles) -> None:
        self.settings, self.profiles = settings, profiles
        self.scheduler = Scheduler(settings.policy, settings)
        self.retention = Retention()
        self.usual_run = 0.0
        self._numbers = itertools.count(1)

    def plain(self, model: str, prompt: int, most: int | None, now: float) -> Job:
        """Return the job of a request without identifiers: a run of its own, of usual length."""
        number = next(self._numbers)
        bound = self._bound(None, most)
        return Job(number, f"#{number}", now, now, prompt, bound, remaining=self.usual_run, model=model)

    def arrive(self, ids: Identifiers, tenant: str, model: str, prompt: int, most: int | None, now: float) -> Arrival:
        """Register a request and return its job with all that is predicted.

        Args:
            ids: Its identifiers.
            tenant: Salted hash of its API key.
            model: Model that it asks for.
            prompt: Prompt tokens, counted or estimated.
            most: Its `max_tokens`.
            now: Present time in seconds.
        """
        slots = max((r.slots for r in self.scheduler.replicas.values() if r.model == model), default=0)
        alpha = self.settings.alpha(slots)
        run, place, prediction = self.profiles.begin(ids, tenant, now, alpha)
        profile = self.profiles.of(run)
        if prediction.ordinary:
            self.usual_run += 0.02 * (prediction.ordinary - self.usual_run) if self.usual_run else prediction.ordinary
        bound = self._bound(prediction.bound, most)
        role_group = "\0".join((*run.type_key, ids.agent_id, model))
        job = Job(
            next(self._numbers), run.key, now, run.started_s, prompt, bound,
            expected=prediction.expected,
            remaining=prediction.remaining if prediction.trusted else self.usual_run,
            first=place == 0 and (not prediction.on_path or prediction.steps > SEVERAL),
            attained=run.attained, model=model, role_group=role_group, group=f"{role_group}\0{run.key}",
            alpha=alpha if prediction.bound is not None and bound == prediction.bound else 0.0,
        )  # fmt: skip
        template = profile.templates.get(ids.agent_id) if profile is not None and place else None
        if template is not None:
            job.prefix = int(template.constant_share * prompt)
        if prediction.trusted and profile is not None and self.settings.w_unblock:
            job.unblock = self._unblock(profile, run, ids.agent_id, model)
        self.retention.use(role_group, now)
        return Arrival(ids, run, place, prediction, job)

    def _bound(self, predicted: int | None, most: int | None) -> int:
        """Return the output bound that is counted: the predicted one, `max_tokens`, or what is assumed."""
        bounds = [b for b in (predicted, most) if b is not None]
        return min(bounds) if bounds else self.settings.assumed_output

    def _ahead(self, run: Run, role: str, horizon: int) -> dict[str, tuple[float, float]]:
        """Return, per role, the expected visits after the run's latest step of a role, and their distance."""
        profile = self.profiles.of(run)
        state = profile.automaton.known((role, run.trails.get(role, 1))) if profile else None
        return profile.automaton.forecast(state, horizon) if profile and state else {}

    def _unblock(self, profile: Profile, run: Run, role: str, own: str) -> float:
        """Return how soon this run brings work to other models whose replicas are about to be idle, 0 to 1."""
        idle = {model for model in set(profile.models.values()) - {own} if self._idle(model)}
        ahead = self._ahead(run, role, AHEAD) if idle else {}
        return min(1.0, sum(min(1.0, v) / d for r, (v, d) in ahead.items() if profile.models.get(r, "") in idle))

    def _idle(self, model: str) -> bool:
        waits = any(job.model == model for job in self.scheduler.waiting.values())
        return not waits and any(2 * len(r.active) < r.slots for r in self.scheduler.ready(model))

    def wanted(self, arrival: Arrival) -> dict[str, float]:
        """Return the value of each prefix that the run is expected to use after this step."""
        profile = self.profiles.of(arrival.run)
        if profile is None or not arrival.prediction.trusted:
            return {}
        values: dict[str, float] = {}
        for following, (visits, distance) in self._ahead(arrival.run, arrival.ids.agent_id, AHEAD).items():
            group = self._group(arrival, profile, following)
            values[group] = visits / distance
            if following in arrival.run.trails:
                values[f"{group}\0{arrival.run.key}"] = visits / distance
        return values

    @staticmethod
    def _group(arrival: Arrival, profile: Profile, role: str) -> str:
        """Return the key of the prefix that all runs of a role share."""
        return "\0".join((*arrival.run.type_key, role, profile.models.get(role, arrival.job.model)))

    def next_prefix(self, arrival: Arrival) -> tuple[str, str] | None:
        """Return (prefix, model) of the role that probably comes next, if it is another one."""
        p, profile = arrival.prediction, self.profiles.of(arrival.run)
        unlikely = not p.next_role or p.next_probability < LIKELY or p.next_role == arrival.ids.agent_id
        if profile is None or not p.trusted or unlikely:
            return None
        return self._group(arrival, profile, p.next_role), profile.models.get(p.next_role, arrival.job.model)

    def depart(self, arrival: Arrival, step: Step | None, now: float) -> set[str]:
        """Register the end of a request; return the prefixes whose value changed.

        Args:
            arrival: What `arrive` returned.
            step: The completed request; None if it failed or was cancelled.
            now: Present time in seconds.
        """
        self.scheduler.finish(arrival.job)
        if step is not None and arrival.job.dispatched >= 0:
            self.retention.step_s += 0.02 * (now - arrival.job.dispatched - self.retention.step_s)
        changed = self.retention.want(arrival.run.key, {} if arrival.run.final else self.wanted(arrival))
        self.profiles.end(arrival.run, arrival.place, step, now)
        return changed | {arrival.job.group}

    def expire(self, now: float) -> set[str]:
        """Finish idle runs; return the prefixes whose value changed."""
        changed: set[str] = set()
        for run in self.profiles.expire(now):
            changed |= self.retention.want(run.key, {})
        return changed

    def projected(self) -> dict[str, float]:
        """Return, per model, the requests that running workflows are expected to send within the horizon."""
        loads: dict[str, float] = {}
        for run in self.profiles.open.values():
            profile = self.profiles.of(run)
            if run.roles and profile is not None and not profile.thin and profile.trust.earned:
                for role, (visits, _) in self._ahead(run, run.roles[-1], self.settings.horizon).items():
                    model = profile.models.get(role, "")
                    loads[model] = loads.get(model, 0.0) + visits
        return loads
