"""What windows opened by hand say of healthy jobs: none of them may name a cause.

    python benchmarks/healthy_windows.py --out benchmarks/results/faults/windows.jsonl --windows 300

Real jobs under `eroica run`, one after another; in each, windows are opened with `eroica profile` until it has its
share. Half of the jobs share the machine: a program beside them needs a core for a third of a second every second. Jobs
that stand in the output file already are skipped. Lines: "window".
"""

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from eroica.demo.rehearsal import SETTINGS, read_verdict, running
from faults import WORKERS, append, read_lines, said
from injected.hosts import Strangers
from injected.rehearsal import Rehearsal
from machine import machine_facts, revision

#: Healthy behaviours, each in all layouts.
BEHAVIOURS = ("none", "evaluation", "checkpoints", "learning-rate")
#: What somebody else does on a busy machine: seconds of work, seconds of sleep.
BUSY_S, IDLE_S = 0.33, 0.67
START_S = 120.0
WINDOW_S = 90.0
#: A request that no window has followed by then is made again.
RETRY_S = 5.0
OVER = ("done", "failed", "given up")


class Case(NamedTuple):
    """One job."""

    behaviour: str
    layout: str
    busy: bool

    @property
    def key(self) -> str:
        """Its name in the file."""
        return f"{self.behaviour}/{self.layout}/{'busy' if self.busy else 'alone'}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="raw results, one JSON object a line; appended to")
    parser.add_argument("--windows", type=int, default=300, help="of all jobs together")
    parser.add_argument("--keep", type=Path, help="keep the directories of jobs with a wrong window here")
    parser.add_argument("--until", default="", help="start no job after this time of day, as 07:30")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    cases = [Case(what, layout, busy) for busy in (False, True) for what in BEHAVIOURS for layout in WORKERS]
    each = -(-options.windows // len(cases))
    lines = {line["key"]: line for line in read_lines(options.out) if line["kind"] == "window"}
    known = Counter(line["job"] for line in lines.values())
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns) as progress:
        task = progress.add_task("", total=each * len(cases))
        for case in cases:
            if options.until and time.strftime("%H:%M") >= options.until:
                break
            progress.update(task, description=case.key)
            if known[case.key] >= each:
                progress.advance(task, each)
                continue
            for line in windows_of(case, each, options.keep):
                append(options.out, line)
                progress.advance(task)
    lines = [line for line in read_lines(options.out) if line["kind"] == "window"]
    alarms = [line for line in lines if not line["right"]]
    print(f"{len(lines)} windows, {len(alarms)} with a cause")
    for line in alarms:
        print(f"  {line['key']}: {line['said']['summary']}")
    return 1 if alarms else 0


def windows_of(case: Case, count: int, keep: Path | None) -> Iterator[dict[str, Any]]:
    """Verdicts of one job's windows, as they come; the directory of a job with a wrong one can be kept."""
    strangers, all_right = Strangers(), True
    with tempfile.TemporaryDirectory(prefix="eroica-windows-") as name:
        directory = Path(name).resolve()
        job = Rehearsal(
            case.behaviour, 0, WORKERS[case.layout], directory, layout=case.layout.removeprefix("dp-"), from_iteration=0
        )
        try:
            if case.busy:
                strangers.start(busy_s=BUSY_S, idle_s=IDLE_S)
            with job.log.open("wb") as log, running(job, log):
                ready = wait_for_baseline(job)
                for number in range(1, count + 1):
                    line = record(case, number, open_window(job) if ready else said(None))
                    all_right &= line["right"]
                    yield line
        finally:
            strangers.end()
        if keep is not None and not all_right:
            shutil.copytree(directory, keep / f"{case.key.replace('/', '-')}-{time.strftime('%H%M%S')}", symlinks=True)


def wait_for_baseline(job: Rehearsal) -> bool:
    """Whether the job trains, and its first window is over."""
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        status = job.status()
        if status is not None and any(line.purpose == "baseline" and line.phase == "done" for line in status.windows):
            return True
        time.sleep(0.25)
    return False


def open_window(job: Rehearsal) -> dict[str, Any]:
    """Ask for a window and wait for what is said of it; while another one is open, that one is what is answered."""
    end, asked_at = time.monotonic() + WINDOW_S, -RETRY_S
    known = {line.window_id for line in (job.status() or _NOTHING).windows}
    while time.monotonic() < end:
        lines = (job.status() or _NOTHING).windows
        mine = [line for line in lines if line.window_id not in known and line.purpose == "manual"]
        if mine and mine[0].phase in OVER:
            return said(read_verdict(job.run / "windows" / str(mine[0].window_id) / "verdict.json"))
        if not mine and all(line.phase in OVER for line in lines) and time.monotonic() - asked_at >= RETRY_S:
            job.ask_for_window()
            asked_at = time.monotonic()
        time.sleep(0.25)
    return said(None)


class _NOTHING:
    windows: tuple[Any, ...] = ()


def record(case: Case, number: int, what: dict[str, Any]) -> dict[str, Any]:
    """One window's line."""
    return {
        "kind": "window",
        "key": f"{case.key}/{number}",
        "job": case.key,
        **case._asdict(),
        "said": what,
        "right": what["verdict"] != "none" and "cause" not in what,
        "load": round(os.getloadavg()[0], 2),
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "revision": revision(),
        "machine": machine_facts(),
        "settings": SETTINGS,
    }


if __name__ == "__main__":
    sys.exit(main())
