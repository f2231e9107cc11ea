"""Make windows for the corpus: real jobs at default settings, one fault each, several windows of each job.

    python benchmarks/corpus_collect.py [--faults a,b] [--layouts ddp,fsdp2] [--seeds 0,1] [--until 07:30]

A job that is healthy first is asked for a window by hand before its fault begins; it ends after `--windows` windows
with the fault. Entries that exist already are skipped, so it can be stopped and started again.
"""

from __future__ import annotations

import argparse
import re
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from corpus_entry import ENTRIES, HEALTHY, SUFFIX, Entry, Truth, write_entry
from corpus_keep import NEVER, kept_run
from eroica.demo.rehearsal import running
from eroica.errors import EroicaError
from eroica.wire.messages import JobStatus, WindowLine
from faults import ASKED, RENAMED, START, WORKERS, Case
from injected.expected import EXPECTED, Expectation, culprit
from injected.rehearsal import Rehearsal

#: First iteration with a fault that begins in the middle: behind the baseline window and one that is asked for by hand.
ONSET = 350
#: A window by hand before that: the job has been at its usual pace for a while.
BY_HAND_AT = 170
#: Seconds until a job ends after its fault began, whatever was seen of it, and before, on a slow machine.
LONGEST_S, LONGEST_BEFORE_S = 100.0, 240.0
#: Nothing was noticed for so long: a window by hand is asked for.
QUIET_S = 45.0
#: Between two windows that are asked for by hand.
APART_S = 12.0
OVER = ("done", "failed", "given up", "passed", "restarted")


def truth_of(wanted: Expectation, case: Case, rename: dict[str, str]) -> Truth:
    """What is true while the fault is there."""
    if not wanted.cause:
        return HEALTHY
    workers = (culprit(case.fault, case.worker),) if wanted.scope == "some" else ()
    function = rename.get(wanted.function, wanted.function)
    return Truth(
        verdict=wanted.verdict, causes=tuple(sorted(wanted.causes)), scope=wanted.scope, workers=workers,
        function=function, file=_renamed(wanted.file, rename),
    )  # fmt: skip


def _renamed(file: str, rename: dict[str, str]) -> str:
    return re.sub(r"\w+", lambda word: rename.get(word[0], word[0]), file)


def collect(case: Case, directory: Path, windows: int) -> tuple[Entry, float | None]:
    """One job with so many windows of its fault; seconds from onset to the first answer that nobody asked for."""
    wanted = EXPECTED[case.fault]
    rename = RENAMED if case.seed % 2 else {}
    onset = START if case.onset == "start" else ONSET
    rehearsal = Rehearsal(
        case.fault, case.worker, WORKERS[case.layout], directory,
        layout=case.training_layout, from_iteration=onset, seed=case.seed, rename=rename, settings={},
    )  # fmt: skip
    answered_s = watch(rehearsal, onset if wanted.cause else NEVER, windows, wanted.blocked)
    entry = kept_run(
        rehearsal.run, name=name_of(case), origin="benchmark", fault=case.fault, layout=case.layout,
        truth=truth_of(wanted, case, rename), onset=onset if wanted.cause else None,
    )  # fmt: skip
    return entry, answered_s


def watch(rehearsal: Rehearsal, onset: int, windows: int, blocks: bool) -> float | None:
    """Let the job run, and ask for windows by hand where none would come."""
    answered_s: float | None = None
    began = asked = time.monotonic()
    until = began + (LONGEST_S if onset >= NEVER else LONGEST_BEFORE_S)
    has_begun = onset >= NEVER
    with rehearsal.log.open("wb") as log, running(rehearsal, log) as job:
        while job.poll() is None and time.monotonic() < until:
            time.sleep(0.5)
            now, status = time.monotonic(), rehearsal.status()
            if status is None:
                continue
            if not has_begun and status.iteration >= onset:
                has_begun, until, began = True, now + LONGEST_S, now
            seen = [line for line in status.windows if _shows(line, onset, blocks)]
            if answered_s is None and any(line.phase == "done" and line.purpose != "manual" for line in seen):
                answered_s = now - began
            if sum(line.phase in OVER for line in seen) >= (1 if blocks else windows):
                break
            if blocks or any(line.phase not in OVER for line in status.windows):
                continue
            before = onset - BY_HAND_AT if onset < NEVER else 0
            calm = before > 0 and BY_HAND_AT <= status.iteration < onset - before / 2 and not _by_hand(status)
            late = has_begun
            if calm or (late and now - asked > (APART_S if seen or onset >= NEVER else QUIET_S)):
                rehearsal.ask_for_window()
                asked = now
            elif not has_begun:
                asked = now
    return answered_s


def _by_hand(status: JobStatus) -> bool:
    return any(line.purpose == "manual" for line in status.windows)


def _shows(line: WindowLine, onset: int, blocks: bool) -> bool:
    """Whether a window shows the fault, or, of a healthy job, anything."""
    if blocks:
        return line.purpose == "blocked"
    if onset >= NEVER:
        return True
    return bool(line.first_iteration) and line.first_iteration >= onset and line.purpose != "baseline"


def name_of(case: Case) -> str:
    """Name of an entry."""
    return f"{case.fault}-{case.layout}-{case.onset}-{case.seed}"


def cases(options: argparse.Namespace) -> Iterator[Case]:
    """All that is asked for: a round of all faults after another."""
    names = options.faults.split(",") if options.faults else list(EXPECTED)
    for seed in map(int, options.seeds.split(",")):
        for layout in options.layouts.split(","):
            for fault in names:
                wanted = EXPECTED[fault]
                onset = "middle" if "middle" in wanted.onsets else "start"
                fits = layout.removeprefix("dp-") in wanted.layouts and (
                    wanted.in_copies or not layout.startswith("dp-")
                )
                if fits and layout in ASKED:
                    yield Case(fault, layout, onset, seed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", default="", help="with commas between them; default all")
    parser.add_argument("--layouts", default=",".join(WORKERS))
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--windows", type=int, default=3, help="with the fault, of each job")
    parser.add_argument("--most", type=int, default=10**6, help="jobs")
    parser.add_argument("--until", default="", help="start no job after this time of day, as 07:30")
    parser.add_argument("--out", type=Path, default=ENTRIES)
    options = parser.parse_args()
    made = 0
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    for case in cases(options):
        if made >= options.most or (options.until and time.strftime("%H:%M") >= options.until):
            break
        if (options.out / f"{name_of(case)}{SUFFIX}").exists():
            continue
        made += 1
        began = time.monotonic()
        said: Any = ""
        with tempfile.TemporaryDirectory(prefix="eroica-corpus-") as name:
            try:
                entry, answered_s = collect(case, Path(name).resolve(), options.windows)
                path = write_entry(entry, options.out)
                said = f"{len(entry.windows)} windows, {path.stat().st_size / 1e3:.0f} KB"
                said += f", answer after {answered_s:.1f} s" if answered_s is not None else ", no answer by itself"
            except (EroicaError, OSError) as error:
                said = f"nothing kept: {error}"
        print(f"{name_of(case)}: {said}, {time.monotonic() - began:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
