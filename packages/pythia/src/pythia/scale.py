"""When replicas are started and stopped: a state machine that sees queues and projected load, and returns actions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pythia.schedule import Replica, Scheduler
from pythia.settings import Settings

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

    def wanted(self, scheduler: Scheduler, model: str, projected: Mapping[str, float], now: float) -> tuple[int, str]:
        """Return how many replicas a model should have, and why."""
        settings = self.settings
        launch = settings.models[model].launch
        assert launch is not None
        slots = max(launch.replica.slots, 1)
        active = sum(len(r.active) for r in scheduler.replicas.values() if r.model == model)
        waiting = [job for job in scheduler.waiting.values() if job.model == model]
        have = sum(r.model == model and r.state in ("ready", "starting") for r in scheduler.replicas.values())
        if settings.policy.scale == "reactive":
            late = [job for job in waiting if now - job.arrived >= REACTIVE_WAIT_S]
            number = math.ceil((active + len(waiting)) / slots) if late or not waiting else have
            reason = f"{len(late)} requests have waited"
        else:
            coming = projected.get(model, 0.0)
            number = math.ceil((active + len(waiting) + coming) / slots - 1e-9)
            reason = f"{active} running, {len(waiting)} waiting, {coming:.1f} expected"
        return min(max(number, launch.least), launch.most), reason

    def decide(self, scheduler: Scheduler, projected: Mapping[str, float], now: float) -> list[Action]:
        """Return what to do now. Replicas that were configured by URL are never stopped."""
        actions: list[Action] = []
        for model, described in self.settings.models.items():
            if described.launch is None:
                continue
            mine = [r for r in scheduler.replicas.values() if r.model == model]
            live = [r for r in mine if r.state in ("ready", "starting")]
            number, reason = self.wanted(scheduler, model, projected, now)
            draining = [r for r in mine if r.state == "draining"]
            for _ in range(number - len(live)):
                if draining:
                    draining.pop().state = "ready"  # it was about to go
                elif len(mine) < described.launch.most:
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
