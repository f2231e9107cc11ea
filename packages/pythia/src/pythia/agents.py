"""Real agents: asyncio tasks that run plans against an OpenAI-compatible server over HTTP."""

from __future__ import annotations

import asyncio
import json
import math
import random
import time
from collections.abc import Sequence
from pathlib import Path

import httpx
import msgspec

from pythia.errors import EngineError
from pythia.workflow import Plan, PlannedStep

ALPHABET = "abcdefghijklmnopqrstuvwxyz     "
LINE = 64


class Record(msgspec.Struct, frozen=True):
    """One request that an agent has sent; times in seconds from the start.

    Attributes:
        place: Number of requests of the run before it.
        first: When the first token came; the end if none came.
        error: What went wrong; empty if nothing did.
    """

    workflow_type: str
    run: str
    role: str
    place: int
    sent: float
    first: float
    ended: float
    prompt_tokens: int
    output_tokens: int
    error: str = ""


class Outcome(msgspec.Struct, frozen=True):
    """What happened to a set of runs.

    Attributes:
        jct_s: Completion time of each run that succeeded.
        failed: Runs with a request that failed.
        late_s: Largest lateness of a run's first request; large values mean that the sender was the limit.
    """

    jct_s: dict[str, float]
    failed: int
    records: list[Record]
    late_s: float

    def quantile(self, q: float) -> float:
        """Return a quantile of the completion times."""
        times = sorted(self.jct_s.values())
        return times[min(len(times) - 1, math.ceil(q * len(times)) - 1)] if times else math.nan

    @property
    def mean_s(self) -> float:
        """Mean completion time."""
        return sum(self.jct_s.values()) / len(self.jct_s) if self.jct_s else math.nan

    def later_ttft_s(self) -> float:
        """Median time to the first token of all steps but the first of a run."""
        times = sorted(r.first - r.sent for r in self.records if r.place and not r.error)
        return times[len(times) // 2] if times else math.nan


def words(name: str, length: int) -> str:
    """Return a text of so many characters that depends on its name only, in lines."""
    rng = random.Random(name)
    text = "".join(rng.choices(ALPHABET, k=length))
    return "\n".join(text[i : i + LINE - 1] for i in range(0, length, LINE))[:length]


class Agents:
    """Runs plans against one server."""

    def __init__(self, url: str, model: str, *, identifiers: str = "body", key: str = "", variant: str = "") -> None:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        limits = httpx.Limits(max_connections=None, keepalive_expiry=0.5)
        self.client = httpx.AsyncClient(base_url=url, headers=headers, timeout=600.0, limits=limits, trust_env=False)
        self.model, self.identifiers, self.variant = model, identifiers, variant
        self.records: list[Record] = []
        self.began = 0.0
        self.late_s = 0.0

    async def drive(self, plans: Sequence[Plan]) -> Outcome:
        """Start each run at its time, whatever the others do (open loop), and wait for all."""
        async with self.client:
            self.began = time.perf_counter()
            ends = await asyncio.gather(*(self._run(plan) for plan in plans))
        times = {p.name: end - p.arrival_s for p, end in zip(plans, ends, strict=True) if end is not None}
        return Outcome(times, len(plans) - len(times), self.records, self.late_s)

    @property
    def now(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self.began

    async def _run(self, plan: Plan) -> float | None:
        await asyncio.sleep(max(0.0, plan.arrival_s - self.now))
        self.late_s = max(self.late_s, self.now - plan.arrival_s)
        memory: dict[str, list[dict[str, str]]] = {}
        answers: list[str] = []
        place = 0
        for stage in plan.stages:
            last = stage is plan.stages[-1]
            steps = [
                self._step(plan, step, place + i, memory, answers, last and i == len(stage) - 1, len(stage) > 1)
                for i, step in enumerate(stage)
            ]
            found = await asyncio.gather(*steps)
            place += len(stage)
            if any(text is None for text in found):
                return None
            answers = [text for text in found if text is not None]
        return self.now

    async def _step(
        self,
        plan: Plan,
        step: PlannedStep,
        place: int,
        memory: dict[str, list[dict[str, str]]],
        answers: list[str],
        final: bool,
        together: bool,
    ) -> str | None:
        before = [] if together or not step.history else memory.get(step.role, [])
        read = "\n".join(answers)
        asked = (
            words(f"{plan.name}/{place}", step.new)
            if not read
            else (read + "\n" + words(f"{plan.name}/{place}", step.new))[: step.new]
        )
        start = (
            [{"role": "system", "content": words(f"{self.variant}{plan.workflow_type}/{step.role}", step.prefix)}]
            if step.prefix
            else []
        )
        if step.history and not before:  # recorded sessions begin with what they had already
            before = [{"role": "user", "content": words(f"{plan.name}/before", step.history)}]
        messages = [*start, *before, {"role": "user", "content": asked}]
        body: dict[str, object] = {
            "model": step.model or self.model,
            "messages": messages,
            "max_tokens": step.output,
            "stream": True,
        }
        ids = {"workflow_type_id": plan.workflow_type, "workflow_id": plan.name, "agent_id": step.role}
        headers = {}
        if self.identifiers == "body":
            body["app_metadata"] = {**ids, "final": final}
        elif self.identifiers == "headers":
            headers = {f"x-{k.replace('_', '-')}": v for k, v in ids.items()} | {"x-workflow-final": str(final).lower()}
        sent, first, text, error, count = self.now, 0.0, "", "", 0
        try:
            async with self.client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer:
                if answer.status_code != 200:
                    raise ValueError(f"{answer.status_code}: {(await answer.aread())[:200].decode('utf-8', 'replace')}")
                async for line in answer.aiter_lines():
                    if not line.startswith("data: ") or line == "data: [DONE]":
                        continue
                    event = json.loads(line[6:])
                    error = event.get("error", {}).get("message", "") if "error" in event else error
                    for choice in event.get("choices", []):
                        text += choice.get("delta", {}).get("content") or ""
                        count += bool(choice.get("delta", {}).get("content"))
                        first = first or (self.now if count else 0.0)
        except (httpx.HTTPError, ValueError) as problem:
            error = f"{type(problem).__name__}: {problem}"
        ended = self.now
        prompt = sum(len(m["content"]) + 1 for m in messages)
        self.records.append(
            Record(plan.workflow_type, plan.name, step.role, place, sent, first or ended, ended, prompt, count, error)
        )
        if error:
            return None
        if not together:
            memory[step.role] = [*before, messages[-1], {"role": "assistant", "content": text}]
        await asyncio.sleep(step.tool_s)
        return text


async def drive(
    plans: Sequence[Plan], url: str, model: str, *, identifiers: str = "body", key: str = "", variant: str = ""
) -> Outcome:
    """Run plans against a server; another `variant` gives other texts, which no cache knows.

    Raises:
        EngineError: The server cannot be reached.
    """
    async with httpx.AsyncClient(trust_env=False) as client:
        try:
            await client.get(url + "/v1/models", timeout=10.0)
        except httpx.HTTPError as error:
            raise EngineError(
                f"{url} cannot be reached ({type(error).__name__}); is `pythia serve` running there?"
            ) from error
    return await Agents(url, model, identifiers=identifiers, key=key, variant=variant).drive(plans)


def write_records(records: Sequence[Record], path: Path) -> None:
    """Write one JSON object a line."""
    path.write_bytes(b"".join(msgspec.json.encode(r) + b"\n" for r in records))
