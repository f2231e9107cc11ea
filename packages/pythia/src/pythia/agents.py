"""Real agents: asyncio tasks that run plans against an OpenAI-compatible server over HTTP."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import msgspec
import numpy as np

from pythia.errors import EngineError
from pythia.workflow import Plan, PlannedStep, Times

ALPHABET = "abcdefghijklmnopqrstuvwxyz     "
LINE = 64


class Record(msgspec.Struct, frozen=True):
    """One request that an agent has sent; times in seconds from the start.

    Attributes:
        place: Number of requests of the run before it.
        first: When the first token came; the end if none came.
        error: What went wrong; empty if nothing did.
    """

    run: str
    role: str
    place: int
    sent: float
    first: float
    ended: float
    output_tokens: int
    error: str = ""


@dataclass
class Outcome(Times):
    """Results of a set of runs. Times are of runs and requests that succeeded.

    Attributes:
        failed: Runs with a request that failed.
        late_s: Largest lateness of a run's first request; large values mean that the sender was the limit.
    """

    failed: int = 0
    records: list[Record] = field(default_factory=list)
    late_s: float = 0.0


def words(name: str, length: int) -> str:
    """Return a text of so many characters that depends on its name only, in lines."""
    rng = random.Random(name)
    text = "".join(rng.choices(ALPHABET, k=length))
    return "\n".join(text[i : i + LINE - 1] for i in range(0, length, LINE))[:length]


class _Agents:
    """Runs plans against one server."""

    def __init__(self, url: str, model: str, identifiers: bool, key: str, variant: str) -> None:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        limits = httpx.Limits(max_connections=None, keepalive_expiry=0.5)
        self.client = httpx.AsyncClient(base_url=url, headers=headers, timeout=600.0, limits=limits, trust_env=False)
        self.model, self.identifiers, self.variant = model, identifiers, variant
        self.records: list[Record] = []
        self.began = time.perf_counter()
        self.late_s = 0.0

    @property
    def now(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self.began

    async def run(self, plan: Plan) -> float | None:
        """Run a plan from its arrival on; return when it ended, or None if a request failed."""
        await asyncio.sleep(max(0.0, plan.arrival_s - self.now))
        self.late_s = max(self.late_s, self.now - plan.arrival_s)
        memory: dict[str, list[dict[str, str]]] = {}
        answers: list[str] = []
        place = 0
        for stage in plan.stages:
            final = stage is plan.stages[-1]
            steps = []
            for i, step in enumerate(stage):
                asked = "\n".join([*answers, words(f"{plan.name}/{place}", step.new)])[: step.new]
                own = memory.setdefault(step.role, []) if len(stage) == 1 and step.history else []
                if step.history and not own:  # recorded sessions begin with what they had already
                    own.append({"role": "user", "content": words(f"{plan.name}/before", step.history)})
                ids = {"workflow_type_id": plan.workflow_type, "workflow_id": plan.name, "agent_id": step.role}
                metadata = {**ids, "final": final and i == len(stage) - 1}
                steps.append(self._step(step, place, metadata, [*own, {"role": "user", "content": asked}]))
                place += 1
            found = await asyncio.gather(*steps)
            if any(memories is None for memories in found):
                return None
            answers = [memories[-1]["content"] for memories in found if memories]
            if len(stage) == 1 and found[0]:
                memory[stage[0].role] = found[0]
        return self.now

    async def _step(
        self, step: PlannedStep, place: int, metadata: dict[str, Any], messages: list[dict[str, str]]
    ) -> list[dict[str, str]] | None:
        """Send a request and let its tool run; return the messages with the answer, or None if it failed."""
        start = words(f"{self.variant}{metadata['workflow_type_id']}/{step.role}", step.prefix)
        sent = [{"role": "system", "content": start}, *messages] if start else messages
        body = {"model": step.model or self.model, "messages": sent, "max_tokens": step.output, "stream": True}
        if self.identifiers:
            body["app_metadata"] = metadata
        began, first, error = self.now, 0.0, ""
        pieces: list[str] = []
        try:
            async with self.client.stream("POST", "/v1/chat/completions", json=body) as answer:
                if answer.status_code != 200:
                    raise ValueError(f"{answer.status_code}: {(await answer.aread())[:200].decode('utf-8', 'replace')}")
                async for line in answer.aiter_lines():
                    if not line.startswith("data: ") or line == "data: [DONE]":
                        continue
                    event = json.loads(line[6:])
                    if "error" in event:
                        raise ValueError(event["error"].get("message", ""))
                    found = [choice.get("delta", {}).get("content") for choice in event.get("choices", [])]
                    pieces += [text for text in found if text]
                    first = first or (self.now if pieces else 0.0)
        except (httpx.HTTPError, ValueError) as problem:
            error = f"{type(problem).__name__}: {problem}"
        run, ended = metadata["workflow_id"], self.now
        self.records.append(Record(run, step.role, place, began, first or ended, ended, len(pieces), error))
        if error:
            return None
        await asyncio.sleep(step.tool_s)
        return [*messages, {"role": "assistant", "content": "".join(pieces)}]


async def drive(
    plans: Sequence[Plan], url: str, model: str, *, identifiers: bool = True, key: str = "", variant: str = ""
) -> Outcome:
    """Run plans against a server, each from its time on, whatever the others do (open loop).

    Args:
        plans: The runs.
        url: Gateway or engine.
        model: Model of the steps that name none.
        identifiers: Whether requests carry them, in `app_metadata`.
        key: API key.
        variant: Another one gives other texts, which no cache knows.

    Raises:
        EngineError: The server cannot be reached.
    """
    agents = _Agents(url, model, identifiers, key, variant)
    async with agents.client:
        try:
            await agents.client.get("/v1/models", timeout=10.0)
        except httpx.HTTPError as error:
            problem = f"{url} cannot be reached ({type(error).__name__}); is `pythia serve` running there?"
            raise EngineError(problem) from error
        agents.began = time.perf_counter()
        ends = await asyncio.gather(*(agents.run(plan) for plan in plans))
    times = [end - plan.arrival_s for plan, end in zip(plans, ends, strict=True) if end is not None]
    ttft = [(r.place, r.first - r.sent) for r in agents.records if not r.error]
    return Outcome(np.array(times), ttft, len(plans) - len(times), agents.records, agents.late_s)
