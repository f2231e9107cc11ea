"""Recorded sessions as plans: TraceLab's rounds, and this package's own log of completed requests."""

from __future__ import annotations

from pathlib import Path

import msgspec

from pythia.errors import BadFile
from pythia.profile import read_log
from pythia.records import Step, read_rows
from pythia.workflow import Plan, PlannedStep

#: Rounds of one session, and seconds of one tool, that are replayed at most.
MOST_ROUNDS, MOST_TOOL_S = 500, 60.0


class _Tool(msgspec.Struct):
    tool_wall_latency_ms: float | None = None
    tool_internal_latency_ms: float | None = None


class _Round(msgspec.Struct):
    session_id: str
    round_index: int
    output_tokens: int | None = 0
    prefix_tokens: int | None = 0
    newly_append_tokens: int | None = 0
    project: str | None = ""
    session_file: str | None = ""
    provider: str | None = ""
    tools: list[_Tool] | None = None


def read_tracelab(path: Path) -> list[Plan]:
    """Read rounds in TraceLab's normalized JSONL, one object a line, as plans of one role, one second apart.

    Its rows have no roles and its session ids repeat across projects and files, so project and file count to the key.

    Raises:
        BadFile: The file or a line is malformed.
    """
    sessions: dict[tuple[str, str, str], list[_Round]] = {}
    for one in read_rows(path, _Round, "TraceLab round"):
        sessions.setdefault((one.project or "", one.session_file or "", one.session_id), []).append(one)
    plans = []
    for i, rounds in enumerate(sessions.values()):
        rounds.sort(key=lambda r: r.round_index)
        stages = []
        for one in rounds[:MOST_ROUNDS]:
            times = ((t.tool_internal_latency_ms, t.tool_wall_latency_ms) for t in one.tools or ())
            waits = [wall if internal is None else internal for internal, wall in times]
            tool_s = min(MOST_TOOL_S, max((w for w in waits if w), default=0.0) / 1000)
            history, new = max(0, one.prefix_tokens or 0), max(1, one.newly_append_tokens or 0)
            stages.append((PlannedStep("agent", 0, history, new, max(1, one.output_tokens or 0), tool_s),))
        plans.append(Plan(rounds[0].provider or "recorded", f"s{i}", float(i), tuple(stages)))
    return plans


def read_steps(path: Path) -> list[Plan]:
    """Read this package's own log as plans: requests that overlapped in time become one stage."""
    runs: dict[tuple[str, str, str], list[Step]] = {}
    for step in read_log(path):
        runs.setdefault((step.tenant, step.workflow_type_id, step.workflow_id), []).append(step)
    origin = min((s.time_s for steps in runs.values() for s in steps), default=0.0)
    plans = []
    for i, steps in enumerate(runs.values()):
        steps.sort(key=lambda s: s.time_s)
        groups: list[list[Step]] = []
        for step in steps:
            if not groups or step.time_s >= max(s.time_s + s.duration_s for s in groups[-1]):
                groups.append([])
            groups[-1].append(step)
        stages = []
        for group, after in zip(groups, [*groups[1:], None], strict=True):
            end = max(s.time_s + s.duration_s for s in group)
            tool_s = max(0.0, after[0].time_s - end) if after else 0.0
            planned = (
                PlannedStep(s.agent_id, 0, 0, max(1, s.prompt_tokens), max(1, s.output_tokens), tool_s, s.model)
                for s in group
            )
            stages.append(tuple(planned))
        plans.append(Plan(steps[0].workflow_type_id, f"r{i}", steps[0].time_s - origin, tuple(stages)))
    return sorted(plans, key=lambda p: p.arrival_s)


def read_recording(path: Path) -> list[Plan]:
    """Read either format, by the members of the first line."""
    first = next(read_rows(path, dict, "recorded request"), None)
    if first is None:
        raise BadFile(path, "is empty; give TraceLab rounds or a log that `pythia serve` wrote")
    return read_tracelab(path) if "round_index" in first else read_steps(path)
