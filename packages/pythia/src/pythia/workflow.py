"""Workflows as files: roles, flow and lengths, from which runs are drawn for real agents and for the simulator."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray

from pythia.errors import BadFile
from pythia.records import read_yaml

Tokens = Annotated[int, msgspec.Meta(ge=0, le=10**7)]
Repeats = Annotated[int, msgspec.Meta(ge=0, le=1000)]
ToolSeconds = Annotated[float, msgspec.Meta(ge=0)]


class Role(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One role.

    Attributes:
        prefix: Tokens of its constant instructions.
        input: Tokens that are new in each request.
        output: Median output tokens.
        sigma: Spread of the output length (log-normal).
        reads: Tokens that are taken over from the answers of the stage before, at most.
        model: Model that it asks for; empty for the only one.
    """

    output: Annotated[int, msgspec.Meta(ge=1)]
    prefix: Tokens = 0
    input: Tokens = 0
    sigma: Annotated[float, msgspec.Meta(ge=0, le=3)] = 0.4
    reads: Tokens = 0
    model: str = ""


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of the flow.

    Attributes:
        role: One role, or
        loop: roles that follow each other.
        count: How often, drawn evenly.
        parallel: Whether the repeats run at once.
        tool_s: Seconds that a tool takes after each step, drawn evenly.
        chance: Probability that the part happens at all.
    """

    role: str = ""
    loop: tuple[str, ...] = ()
    count: tuple[Repeats, Repeats] = (1, 1)
    parallel: bool = False
    tool_s: tuple[ToolSeconds, ToolSeconds] = (0.0, 0.0)
    chance: Annotated[float, msgspec.Meta(ge=0, le=1)] = 1.0

    @property
    def order(self) -> tuple[str, ...]:
        """The roles of one repeat."""
        return self.loop or (self.role,)


class Workflow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A workflow type.

    Attributes:
        spread: Spread of a factor that all answers of a run share (log-normal): hard tasks are long everywhere.
    """

    name: str
    roles: dict[str, Role]
    flow: list[Part]
    spread: Annotated[float, msgspec.Meta(ge=0, le=3)] = 0.0


class PlannedStep(msgspec.Struct, frozen=True):
    """One step of a run.

    Attributes:
        prefix, history, new: Tokens of the prompt: the role's constant part, what the role saw and said earlier in this
            run, and the rest.
        output: Output tokens.
        tool_s: Seconds until the run goes on after it.
    """

    role: str
    prefix: int
    history: int
    new: int
    output: int
    tool_s: float
    model: str = ""

    @property
    def prompt(self) -> int:
        """Prompt tokens."""
        return self.prefix + self.history + self.new


class Plan(msgspec.Struct, frozen=True):
    """A run that is going to happen: stages one after the other, the steps of a stage at once."""

    workflow_type: str
    name: str
    arrival_s: float
    stages: tuple[tuple[PlannedStep, ...], ...]

    @property
    def steps(self) -> list[PlannedStep]:
        """All steps."""
        return [step for stage in self.stages for step in stage]

    @property
    def work(self) -> int:
        """Output tokens of all steps."""
        return sum(step.output for step in self.steps)


@dataclass
class Times:
    """Times of a set of runs.

    Attributes:
        jct_s: Completion time of each run, in order of arrival. float64 [N]
        ttft_s: Per request: its place in the run, and the time to its first token.
    """

    jct_s: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    ttft_s: list[tuple[int, float]] = field(default_factory=list)

    @property
    def mean_s(self) -> float:
        """Mean completion time; not a number without runs."""
        return float(self.jct_s.mean()) if self.jct_s.size else math.nan

    @property
    def p95_s(self) -> float:
        """95th percentile of the completion time; not a number without runs."""
        return float(np.quantile(self.jct_s, 0.95)) if self.jct_s.size else math.nan

    def later_ttft_s(self) -> float:
        """Median time to the first token of all steps but the first of a run."""
        later = [t for place, t in self.ttft_s if place]
        return float(np.median(later)) if later else math.nan


def read_workflow(path: Path | str) -> Workflow:
    """Read a workflow's YAML file, or a shipped one by its name.

    Raises:
        BadFile: The file is malformed, or its flow names an unknown role.
    """
    place = Path(path)
    if isinstance(path, str) and not place.suffix:
        place = Path(str(resources.files("pythia") / "workflows" / f"{path}.yaml"))
    workflow = read_yaml(place, Workflow)
    for part in workflow.flow:
        unknown = [role for role in part.order if role not in workflow.roles]
        if part.count[0] > part.count[1] or part.tool_s[0] > part.tool_s[1]:
            raise BadFile(place, f"flow: {part.count} and {part.tool_s} must each be [least, most]")
        if unknown or (part.loop and part.role):
            known = sorted(workflow.roles)
            raise BadFile(place, f"flow: give a role of {known} or a loop of them, not {unknown or 'both'}")
    return workflow


def draw(workflow: Workflow, run: str, arrival_s: float, rng: random.Random) -> Plan:
    """Draw one run."""
    factor = rng.lognormvariate(0.0, workflow.spread) if workflow.spread else 1.0
    said: dict[str, int] = {}
    stages: list[tuple[PlannedStep, ...]] = []
    for part in workflow.flow:
        count = rng.randint(*part.count)
        if rng.random() >= part.chance:
            continue
        sequence = [[part.role] * count] if part.parallel else [[role] for role in part.order * count]
        for roles in filter(None, sequence):
            before = sum(step.output for step in stages[-1]) if stages else 0
            steps = []
            for name in roles:
                role = workflow.roles[name]
                output = max(1, round(role.output * factor * rng.lognormvariate(0.0, role.sigma)))
                history, new = said.get(name, 0), role.input + min(role.reads, before)
                tool_s = rng.uniform(*part.tool_s)
                steps.append(PlannedStep(name, role.prefix, history, new, output, tool_s, role.model))
            stages.append(tuple(steps))
            if not part.parallel:
                said[name] = history + new + output
    return Plan(workflow.name, run, arrival_s, tuple(stages))


def arrivals(workflows: list[tuple[Workflow, float]], rate: float, seconds: float, seed: int) -> list[Plan]:
    """Draw the runs that arrive within a time, as a Poisson process.

    Args:
        workflows: Workflows with their shares of the runs.
        rate: Runs per second.
        seconds: How long.
        seed: Of all random numbers.
    """
    rng = random.Random(seed)
    plans: list[Plan] = []
    now = rng.expovariate(rate)
    while now < seconds:
        workflow = rng.choices([w for w, _ in workflows], [share for _, share in workflows])[0]
        plans.append(draw(workflow, f"{seed}-{len(plans)}", now, rng))
        now += rng.expovariate(rate)
    return plans


def mean_work(workflows: list[tuple[Workflow, float]], seed: int = 0, runs: int = 400) -> float:
    """Return the mean output tokens of a run of a mixture."""
    return sum(p.work for p in arrivals(workflows, 1.0, runs, seed)) / runs
