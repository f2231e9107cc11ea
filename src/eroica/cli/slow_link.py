"""`eroica demo --fault slow-link`: a job on three network namespaces as hosts, until the link of one gets slow.

Communication alone says where; the window that follows says what it costs. Linux and root only.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from eroica.cli.story import Story
from eroica.errors import UnavailableError
from eroica.faults.expected import Judgement
from eroica.faults.rehearsal import read_verdict
from eroica.model.verdict import Verdict
from eroica.testing.hosts import Hosts, available
from eroica.testing.node_jobs import end_job, start_job
from eroica.wire.messages import JobStatus, WindowLine

FAULT = "slow-link"
HOSTS, SLOW_HOST, RATE = 3, 1, "40mbit"
#: So long the job must have been healthy, with all that communication remembers of it.
HEALTHY_S, TIME_LIMIT_S, FAREWELL_S = 24.0, 150.0, 40.0
TRAINING = ("--pace-ms", "60", "--width", "128", "--length", "16", "--batch", "4", "--iterations", "100000")
SETTINGS = {
    "communication": "true",
    "baseline_window": "true",
    "baseline_after_iterations": "20",
    "baseline_window_s": "2",
    "window_s": "3",
    "cooldown_s": "10",
}
_OVER = ("done", "failed", "given up")


@dataclass(frozen=True)
class LinkVerdicts:
    """What was said of the link.

    Attributes:
        communication: By communication alone; None where it said nothing.
        final: On the whole job; None where there is none.
        after_s: From the fault to what communication said, seconds.
        window_s: From the fault to the window's verdict, seconds.
    """

    communication: Verdict | None = None
    final: Verdict | None = None
    after_s: float | None = None
    window_s: float | None = None


def judge_link(told: LinkVerdicts) -> Judgement:
    """Whether both named the host whose link is slow, communication first."""
    host = f"node{SLOW_HOST}"
    alone, final = told.communication, told.final
    if alone is None or alone.communication is None or told.after_s is None:
        return Judgement(False, "communication said nothing of the link")
    place = alone.communication.place
    if alone.communication.kind != "communication-slow" or host not in place.hosts:
        return Judgement(False, f"the link of {host} was slow; communication said: {alone.summary}")
    cause = final.cause if final is not None else None
    if cause is None or cause.cause != FAULT or host not in cause.hosts:
        return Judgement(False, f"the link of {host} was slow; the job's verdict: {final and final.summary}")
    if told.window_s is not None and told.window_s <= told.after_s:
        return Judgement(False, f"the window said so first, {told.after_s - told.window_s:.0f} s before communication")
    later = f", the window after {told.window_s:.0f} s" if told.window_s is not None else ""
    said = f"communication named {place.kind} {', '.join(place.hosts)} {told.after_s:.0f} s after the link got slow"
    return Judgement(True, f"{said}{later}")


def rehearse_link(directory: Path, workers: int, say: Callable[[str], Any]) -> tuple[LinkVerdicts, Judgement]:
    """Run the job, slow the link down, wait for communication and for the window, end the job.

    Args:
        directory: For code, output and reports.
        workers: Of the whole job; each host has the same number.
        say: Takes each line of the story.

    Raises:
        UnavailableError: There are no namespaces here.
    """
    possible, why = available()
    if not possible:
        raise UnavailableError(f"the fault {FAULT} needs network namespaces as hosts: {why}")
    directory.mkdir(parents=True, exist_ok=True)
    with Hosts(HOSTS) as hosts:
        jobs = start_job(hosts, directory, *TRAINING, workers=max(1, workers // HOSTS), settings=SETTINGS)
        told = _follow(hosts, directory / "node0" / "report", jobs, say)
        with contextlib.suppress(subprocess.TimeoutExpired):
            end_job(directory, jobs, FAREWELL_S)
        final = read_verdict(directory / "node0" / "report" / "verdict.json")
    told = replace(told, final=final)
    return told, judge_link(told)


def _follow(hosts: Hosts, run: Path, jobs: list[subprocess.Popen[str]], say: Callable[[str], Any]) -> LinkVerdicts:
    """Tell the story until communication and a window have spoken, or time is up."""
    story, told = Story("none"), LinkVerdicts()
    healthy_from: float | None = None
    slow_from: float | None = None
    before: frozenset[int] = frozenset()
    for now, status in _states(run, jobs):
        for line in story.tell(status):
            say(line)
        if healthy_from is None and status.mean_ms and _ended(status.windows, "baseline") is not None:
            healthy_from = now
        if slow_from is None and healthy_from is not None and now - healthy_from >= HEALTHY_S:
            hosts.limit(SLOW_HOST, RATE)
            slow_from, before = now, frozenset(one.window_id for one in status.windows)
            say(f"the link of node{SLOW_HOST} gets slow: {RATE[:-4]} Mbit/s, both directions")
        if slow_from is not None:
            fresh = [one for one in status.windows if one.window_id not in before]
            told = _heard(told, fresh, run, now - slow_from)
        if told.communication is not None and told.window_s is not None:
            break
    return told


def _heard(told: LinkVerdicts, windows: Sequence[WindowLine], run: Path, passed_s: float) -> LinkVerdicts:
    """What is known by now, of windows that came after the fault."""
    line = _ended(windows, "communication")
    if told.communication is None and line is not None:
        verdict = read_verdict(run / "windows" / str(line.window_id) / "verdict.json")
        if verdict is not None:
            told = replace(told, communication=verdict, after_s=passed_s)
    if told.window_s is None and _ended(windows, "slow", "manual") is not None:
        told = replace(told, window_s=passed_s)
    return told


def _states(run: Path, jobs: list[subprocess.Popen[str]]) -> Iterator[tuple[float, JobStatus]]:
    began = time.monotonic()
    while all(job.poll() is None for job in jobs) and time.monotonic() - began < TIME_LIMIT_S:
        with contextlib.suppress(OSError, msgspec.DecodeError):
            yield time.monotonic(), msgspec.json.decode((run / "status.json").read_bytes(), type=JobStatus)
        time.sleep(0.2)


def _ended(windows: Iterable[WindowLine], *purposes: str) -> WindowLine | None:
    """The first window of such a purpose that has ended."""
    return next((one for one in windows if one.purpose in purposes and one.phase in _OVER), None)
