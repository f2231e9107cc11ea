"""How often the verdict is right: every fault x layout x onset x seed, each a real job under `eroica run`.

    python benchmarks/faults.py --out faults.jsonl --part 1/4

Runs that stand in the output file already are skipped, so it can be stopped and started again. Jobs with an odd seed
run the same training under other names, and are not told how long an iteration should take. Lines of the file: "pace"
(a healthy job without Eroica) and "run".
"""

import argparse
import calendar
import importlib.metadata
import json
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from eroica.cli.demo import Story
from eroica.demo.rehearsal import MIDDLE, SETTINGS, running
from eroica.model.verdict import Verdict
from eroica.wire.messages import JobStatus
from injected.expected import EXPECTED, culprit, judge_parts
from injected.rehearsal import Rehearsal
from machine import machine_facts, revision

#: Layouts and their workers: how many, and who may be asked to have a fault (in pipelines, those that read data).
WORKERS = {"ddp": 4, "fsdp2": 4, "pipeline": 2, "dp-pipeline": 4}
ASKED = {"ddp": (2, 0, 1, 3), "fsdp2": (2, 0, 1, 3), "pipeline": (0,), "dp-pipeline": (2, 0)}
#: From the start: the model has been built, the pattern of iterations has not been learned.
START = 5
NEVER = 10**9
#: A job that alarms nobody is asked for a window by then.
HEALTHY_S = 40.0
#: A window that is open when time is up may still be answered.
ANSWER_S = 60.0
#: The pace of a healthy job: so many lines of it after the first, which tells of its start, and not forever.
PACE_LINES, PACE_S = 4, 60.0
#: It holds for so long: the speed of a shared machine varies by a third over a day.
PACE_FRESH_S = 3600.0
WHEN = "%Y-%m-%dT%H:%M:%SZ"
#: Windows that nobody asked for by hand.
TRIGGERED = ("slow", "expected", "early", "blocked")
SMOKE = ("slow-loader", "none")
#: Names of the training's code and others for them: no rule may know them.
RENAMED = {
    "TokenWindows": "CaptionStore",
    "_read_block": "fetch_row",
    "TokenizedText": "Captions",
    "_split_text": "tokenize",
    "TokenScorer": "Ranking",
    "_score_tokens": "rank_words",
    "GradientScale": "Clipper",
    "scale_grad": "clip",
    "TokenIndex": "Lookup",
    "refresh": "swap",
    "StoredTokens": "Archive",
    "_fetch_block": "get_shelf",
    "CountedBatches": "Bigrams",
    "_count_pairs": "bigrams",
    "CheckpointWriter": "Keeper",
    "save_state": "keep",
    "MetricsLog": "Telemetry",
    "log_step": "tell",
    "WeightHistory": "Averages",
    "keep_weights": "remember",
    "GradientNorms": "Totals",
    "reduce_norms": "add_up",
    "EagerExchange": "Averaging",
    "TokenCensus": "Poll",
    "_count_on": "poll",
    "tokens": "captions",
    "reading": "shelves",
    "saving": "keeping",
    "batching": "grouping",
    "watching": "chores",
    "LanguageModel": "Writer",
}


class Case(NamedTuple):
    """One run of the benchmark."""

    fault: str
    layout: str
    onset: str
    seed: int

    @property
    def key(self) -> str:
        """Its name in the file."""
        return f"{self.fault}/{self.layout}/{self.onset}/{self.seed}"

    @property
    def worker(self) -> int:
        """Who is asked to have the fault: another one with another seed."""
        asked = ASKED[self.layout]
        return asked[self.seed % len(asked)]

    @property
    def is_told(self) -> bool:
        """Whether Eroica is told what an iteration should take.

        What slows all workers alike from the start shows no other way; a fault of some must be found without, too,
        which jobs with an odd seed try.
        """
        wanted = EXPECTED[self.fault]
        alike = wanted.scope in ("all", "any")
        return self.onset == "start" and bool(wanted.cause) and (alike or self.seed % 2 == 0)

    @property
    def training_layout(self) -> str:
        """What the training calls its layout."""
        return self.layout.removeprefix("dp-")


def main() -> int:
    options = read_options()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # the job that runs is ended on the way out
    console = Console()
    again = list(filter(None, options.again.split(",")))
    cases = [case_of(key) for key in again]
    if not again:
        cases = [case for case in all_cases(options) if case.key not in done(options.out)]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console) as progress:
        task = progress.add_task("", total=len(cases))
        for case in cases:
            if options.until and time.strftime("%H:%M") >= options.until:
                break
            progress.update(task, description=case.key)
            line = run_case(case, options)
            append(options.out, line)
            progress.advance(task)
            console.print(one_line(line), markup=False, highlight=False)
    lines = [line for line in read_lines(options.out) if line["kind"] == "run"]
    console.print(table(lines))
    return 0 if all(line["right"] for line in lines) else 1


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="raw results, one JSON object a line; appended to")
    parser.add_argument("--part", default="1/1", help="which part of the runs, as 1/4")
    parser.add_argument("--faults", default="", help="only these, with commas between them")
    parser.add_argument("--layouts", default=",".join(WORKERS), help="with commas between them")
    parser.add_argument("--seeds", default="0", help="numbers with commas between them")
    parser.add_argument("--onset", default="start,middle", help="start, middle or both with a comma")
    parser.add_argument("--again", default="", help="only these runs, by key (slow-loader/ddp/middle/0), known or not")
    parser.add_argument("--smoke", action="store_true", help="two minutes: a fault and none, in one layout")
    parser.add_argument("--until", default="", help="start no run after this time of day, as 07:30")
    parser.add_argument("--time-limit", type=float, default=120.0, help="seconds until a job is stopped without answer")
    parser.add_argument("--keep", type=Path, help="keep the directories of wrong runs here")
    parser.add_argument("--keep-all", action="store_true", help="... and of right ones")
    options = parser.parse_args()
    unknown = sorted(set(filter(None, options.faults.split(","))) - set(EXPECTED))
    if unknown:
        parser.error(f"no fault is called {', '.join(unknown)}; there are {', '.join(EXPECTED)}")
    if not re.fullmatch(r"[1-9]\d*/[1-9]\d*", options.part):
        parser.error(f"--part must look like 1/4, not {options.part!r}")
    return options


def case_of(key: str) -> Case:
    """The run that a key names."""
    fault, layout, onset, seed = key.split("/")
    return Case(fault, layout, onset, int(seed))


def all_cases(options: argparse.Namespace) -> Iterator[Case]:
    """Cases of this part, a round of all faults after another: stopped early, it has seen all of them."""
    names = options.faults.split(",") if options.faults else list(SMOKE if options.smoke else EXPECTED)
    layouts = ["ddp"] if options.smoke else options.layouts.split(",")
    onsets = ["middle", "start"] if options.smoke else sorted(options.onset.split(","))
    wanted = [
        Case(fault, layout, onset, int(seed))
        for seed in options.seeds.split(",")
        for onset in onsets
        for layout in layouts
        for fault in names
        if layout.removeprefix("dp-") in EXPECTED[fault].layouts and onset in EXPECTED[fault].onsets
        if EXPECTED[fault].in_copies or not layout.startswith("dp-")
    ]
    if options.smoke:
        wanted = list({case.fault: case for case in reversed(wanted)}.values())
    number, parts = map(int, options.part.split("/"))
    return iter(wanted[number - 1 :: parts])


def run_case(case: Case, options: argparse.Namespace) -> dict[str, Any]:
    """One job from its start to its end, and what was said about it."""
    with tempfile.TemporaryDirectory(prefix="eroica-faults-") as name:
        directory = Path(name).resolve()
        healthy_s = 0.0
        if case.onset == "start" and EXPECTED[case.fault].cause:
            healthy_s = healthy_pace_s(case, options.out, directory / "pace")
        rename = RENAMED if case.seed % 2 else {}
        rehearsal = Rehearsal(
            case.fault,
            case.worker,
            WORKERS[case.layout],
            directory,
            layout=case.training_layout,
            from_iteration=MIDDLE if case.onset == "middle" else START,
            seed=case.seed,
            expected_iteration_s=healthy_s if case.is_told else 0.0,
            rename=rename,
        )
        began = time.monotonic()
        times = watch(rehearsal, case, options.time_limit)
        line = {**record(case, rehearsal, rename), **times, "healthy_iteration_s": healthy_s or None}
        line["wall_s"] = round(time.monotonic() - began, 1)
        line = json.loads(json.dumps(line).replace(str(directory), "DIR"))
        if options.keep and (options.keep_all or not line["right"]):
            options.keep.mkdir(parents=True, exist_ok=True)
            word = "right" if line["right"] else "wrong"
            directory.rename(options.keep / f"{word}-{case.key.replace('/', '-')}-{time.strftime('%H%M%S')}")
            directory.mkdir()
    return line


def watch(rehearsal: Rehearsal, case: Case, limit_s: float) -> dict[str, Any]:
    """Let the job run until there is an answer; seconds from onset to trigger, and from trigger to verdict."""
    expected, onset = EXPECTED[case.fault], rehearsal.from_iteration
    story, asked, started = Story(rehearsal), False, time.monotonic()
    seen: dict[str, float] = {}
    loads = [os.getloadavg()[0]]
    with rehearsal.log.open("wb") as log, running(rehearsal, log) as job:
        while job.poll() is None and time.monotonic() - started < limit_s + (ANSWER_S if "trigger" in seen else 0.0):
            time.sleep(0.25)
            now, status = time.monotonic(), rehearsal.status()
            if status is not None:
                note(seen, status, onset, now)
                if story.concluded(status):
                    break
            quiet = not expected.cause or now - seen.get("onset", now) > HEALTHY_S
            if quiet and not expected.blocked and not asked and now - started > HEALTHY_S:
                asked = rehearsal.ask_for_window()
        loads.append(os.getloadavg()[0])
        ended_early = job.poll() is not None
    trigger, verdict = seen.get("trigger"), seen.get("verdict")
    return {
        "onset_to_trigger_s": _span(seen.get("onset"), trigger),
        "trigger_to_verdict_s": _span(trigger, verdict),
        "asked_by_hand": asked,
        "ended_early": ended_early,
        "load": [round(load, 2) for load in loads],
        "paces_ms": paces(rehearsal.log),
    }


def note(seen: dict[str, float], status: JobStatus, onset: int, now: float) -> None:
    """Write down when something was first seen."""
    if status.iteration >= onset:
        seen.setdefault("onset", now)
    for line in status.windows:
        if line.purpose not in TRIGGERED or (line.last_iteration and line.last_iteration < onset):
            continue
        seen.setdefault("trigger", now)
        if line.phase == "done":
            seen.setdefault("verdict", now)


def _span(first: float | None, last: float | None) -> float | None:
    return None if first is None or last is None else round(last - first, 2)


def record(case: Case, rehearsal: Rehearsal, rename: dict[str, str]) -> dict[str, Any]:
    """The final verdict and its parts; where nothing is wrong, a cause in any window is an alarm."""
    verdicts = [verdict for verdict in (read_final(rehearsal), *rehearsal.verdicts()) if verdict is not None]
    expected = EXPECTED[case.fault]
    if not expected.cause:
        verdicts = sorted(verdicts, key=lambda verdict: verdict.cause is None)
    verdict = verdicts[0] if verdicts else None
    parts = dict.fromkeys(("verdict", "cause", "workers", "file", "function"), False)
    if verdict is not None:
        parts = judge_parts(_in_old_names(verdict, rename), case.fault, case.worker)
    if not expected.cause:
        right = verdict is not None and verdict.cause is None
    else:
        right = all(parts[name] for name in ("verdict", "cause", "workers", "file"))
    return {
        "kind": "run",
        "key": case.key,
        **case._asdict(),
        "worker": culprit(case.fault, case.worker),
        "expected": {
            "verdict": expected.verdict,
            "causes": sorted(filter(None, expected.causes)),
            "scope": expected.scope,
            "function": rename.get(expected.function, expected.function),
        },
        "said": said(verdict),
        "parts": parts,
        "right": right,
        "renamed": bool(rename),
        "expected_iteration_s": rehearsal.expected_iteration_s or None,
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "eroica": importlib.metadata.version("eroica"),
        "revision": revision(),
        "machine": machine_facts(),
        "settings": SETTINGS,
    }


def read_final(rehearsal: Rehearsal) -> Verdict | None:
    """What `--json` wrote, else the verdict that stands in the run directory."""
    try:
        return Verdict.from_json(rehearsal.final.read_bytes())
    except (OSError, msgspec.DecodeError):
        return rehearsal.verdict()


def _in_old_names(verdict: Verdict, rename: dict[str, str]) -> Verdict:
    """The verdict as if the code had not been renamed: what is expected is written in those names."""
    if not rename:
        return verdict
    text, back = verdict.to_json().decode(), {new: old for old, new in rename.items()}
    return Verdict.from_json(re.sub(r"\w+", lambda word: back.get(word[0], word[0]), text))


def said(verdict: Verdict | None) -> dict[str, Any]:
    """What is kept of a verdict."""
    if verdict is None:
        return {"verdict": "none"}
    found = verdict.cause
    kept: dict[str, Any] = {
        "verdict": verdict.verdict,
        "summary": verdict.summary,
        "before_ms": verdict.iteration.baseline_ms,
        "now_ms": verdict.iteration.current_ms,
        "findings": [(one.role, one.cause, list(one.workers), one.scope, one.gain) for one in verdict.findings[:6]],
        "notes": list(verdict.coverage.notes[:6]),
        "cost": {
            "stall_s": verdict.cost.window_stall_s,
            "summarize_s": verdict.cost.summarize_s,
            "raw_bytes": verdict.cost.raw_bytes,
            "pattern_bytes": verdict.cost.pattern_bytes,
        },
    }
    if found is not None:
        kept |= {"cause": found.cause, "workers": list(found.workers), "scope": found.scope, "gain": found.gain}
        kept |= {"function": found.function.name, "stack": list(found.function.stack[-3:])}
        kept |= {"confidence": found.confidence, "evidence": list(found.evidence[:6])}
    return kept


def healthy_pace_s(case: Case, out: Path, directory: Path) -> float:
    """Iteration of the same job without fault and without Eroica; measured anew every hour, for machines vary."""
    wanted = EXPECTED[case.fault]
    fault, job = (case.fault, wanted.job) if wanted.calm_job is None else ("none", wanted.calm_job)
    key = f"pace/{case.layout}/{' '.join(job)}"
    paced = [line for line in read_lines(out) if line["key"] == key and is_fresh(line.get("when", ""))]
    if paced:
        return float(paced[-1]["seconds"])
    directory.mkdir()
    layout = case.training_layout
    calm = Rehearsal(fault, 0, WORKERS[case.layout], directory, layout=layout, from_iteration=NEVER, job=job)
    until = time.monotonic() + PACE_S
    with calm.log.open("wb") as log, running(calm, log, watched=False):
        while time.monotonic() < until and len(paces(calm.log)) <= PACE_LINES:
            time.sleep(0.5)
    found = sorted(paces(calm.log)[1:])
    if not found:
        return 0.0  # the run tells nothing to Eroica, and no gain can be compared
    seconds = round(found[len(found) // 2] / 1000, 5)
    line = {"kind": "pace", "key": key, "seconds": seconds, "paces_ms": found, "machine": machine_facts()}
    append(out, {**line, "when": time.strftime(WHEN, time.gmtime())})
    return seconds


def is_fresh(when: str) -> bool:
    """Whether a pace was measured so recently that the machine is likely to be as fast still."""
    return bool(when) and time.time() - calendar.timegm(time.strptime(when, WHEN)) < PACE_FRESH_S


def paces(log: Path) -> list[float]:
    """Milliseconds an iteration, as the training printed them."""
    text = log.read_text(encoding="utf-8", errors="replace")
    return [float(pace) for pace in re.findall(r"(\S+) ms/iteration", text)]


def read_lines(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []


def done(out: Path) -> set[str]:
    return {line["key"] for line in read_lines(out)}


def append(out: Path, line: dict[str, Any]) -> None:
    with out.open("a") as file:
        file.write(json.dumps(line) + "\n")


def one_line(line: dict[str, Any]) -> str:
    what = line["said"]
    found = (
        f"{what['cause']} on {what['scope']} {what['workers']}, {what['function']}" if "cause" in what else "no cause"
    )
    wrong = (
        "" if line["right"] else f" (wrong: {', '.join(name for name, right in line['parts'].items() if not right)})"
    )
    word = "right" if line["right"] else "WRONG"
    return f"{line['key']}: {word}{wrong}: {what['verdict']}, {found}, {line['wall_s']:.0f} s"


def table(lines: list[dict[str, Any]]) -> Table:
    """Right and total of each fault, and what was said where it was wrong."""
    result = Table(
        "fault", "right", "verdict", "cause", "workers", "function", "s to trigger", "s to verdict", "wrong answers"
    )
    for fault in sorted({line["fault"] for line in lines}, key=list(EXPECTED).index):
        mine = [line for line in lines if line["fault"] == fault]
        parts = [f"{sum(line['parts'][part] for line in mine)}" for part in ("verdict", "cause", "workers", "function")]
        wrong = sorted({line["said"].get("cause", line["said"]["verdict"]) for line in mine if not line["right"]})
        spans = [middle([line[name] for line in mine]) for name in ("onset_to_trigger_s", "trigger_to_verdict_s")]
        right = f"{sum(line['right'] for line in mine)}/{len(mine)}"
        result.add_row(fault, right, *parts, *spans, ", ".join(wrong))
    result.add_row("all", f"{sum(line['right'] for line in lines)}/{len(lines)}", *[""] * 7, style="bold")
    return result


def middle(values: list[float | None]) -> str:
    known = sorted(value for value in values if value is not None)
    return f"{known[len(known) // 2]:.1f}" if known else "–"


if __name__ == "__main__":
    sys.exit(main())
