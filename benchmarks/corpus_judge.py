"""Judge every window of the corpus by the present rules, or by those of another revision, and compare two revisions.

    python benchmarks/corpus_judge.py --out now.jsonl
    python benchmarks/corpus_judge.py --against v1.0                  # this checkout against another revision
    python benchmarks/corpus_judge.py --revision A --against B        # two revisions
    python benchmarks/corpus_judge.py --compare old.jsonl now.jsonl   # what was kept of two

A revision is checked out beside this checkout and judged with the same reader and the same settings: the defaults.
"""

from __future__ import annotations

import argparse
import inspect
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from corpus_entry import ENTRIES, CorpusWindow, Entry, Truth, as_record, entry_files, is_among_best, marks, read_entry
from eroica.diagnosis.blocked import diagnose_blockage
from eroica.model.verdict import Verdict
from eroica.model.window import ALONE
from eroica.pipeline import analyze
from eroica.settings import Settings
from machine import revision

HERE = Path(__file__).resolve().parent
Line = dict[str, Any]
#: Variable that names the revision that is judged by, if not this one.
REVISION = "CORPUS_REVISION"
#: Earlier revisions left a baseline window that they did not trust aside.
_KNOWS_DOUBTED = "doubted" in inspect.signature(analyze).parameters
#: What two revisions are compared in.
COMPARED = ("verdict", "cause", "workers", "scope", "function")
#: A gain that is off by more than this share of the true one is far off.
FAR_OFF = 0.4
#: What becomes of a faulty window, best first.
OUTCOMES = ("right", "considered", "undetermined", "missed", "wrong")
#: Gains that differ by more are told.
GAIN_APART = 0.05


def judged(path: Path) -> list[Line]:
    """One line for each window of an entry."""
    entry = read_entry(path)
    return [_line(entry, one, one.truth) for one in entry.windows if one.truth is not None]


def baselines(entry: Entry, one: CorpusWindow) -> tuple[CorpusWindow | None, CorpusWindow | None]:
    """The window that one is compared with, and the baseline window that was not trusted; None where there is none."""
    by_number = {it.window.window_id: it for it in entry.windows}
    return by_number.get(one.compared_with), _doubted(entry, one)


def _doubted(entry: Entry, one: CorpusWindow) -> CorpusWindow | None:
    """The baseline window that was there and was not trusted; None where one was, or there was none."""
    if one.compared_with or one.window.purpose in ALONE:
        return None
    number = one.window.window_id
    earlier = [it for it in entry.windows if it.window.purpose == "baseline" and it.window.window_id < number]
    return earlier[-1] if earlier else None


def _line(entry: Entry, one: CorpusWindow, truth: Truth) -> Line:
    baseline, doubted = baselines(entry, one)
    start = time.perf_counter()
    verdict = verdict_of(entry, one, baseline, doubted)
    found = verdict.cause if verdict is not None else None
    line: Line = {
        "key": f"{entry.name}/{one.window.window_id}",
        "fault": entry.fault,
        "layout": entry.layout,
        "workers_of_job": entry.workers,
        "origin": entry.origin,
        "use": entry.use,
        "settings": entry.settings,
        "purpose": one.window.purpose,
        "is_healthy": truth.verdict == "healthy",
        "true_gain": truth.gain,
        "verdict": verdict.verdict if verdict is not None else "none",
        "cause": found.cause if found is not None else "",
        "scope": found.scope if found is not None else "",
        "workers": list(found.workers) if found is not None else [],
        "function": found.function.name if found is not None else "",
        "gain": found.gain if found is not None else None,
        "confidence": found.confidence if found is not None else None,
        "summary": verdict.summary if verdict is not None else "",
        "seconds": round(time.perf_counter() - start, 3),
    }
    nothing = dict.fromkeys(("verdict", "cause", "workers", "file", "function", "right"), False)
    line["marks"] = as_record(marks(verdict, truth)) if verdict is not None else nothing
    line["is_among_best"] = verdict is not None and is_among_best(verdict, truth)
    return line


def verdict_of(
    entry: Entry, one: CorpusWindow, baseline: CorpusWindow | None, doubted: CorpusWindow | None
) -> Verdict | None:
    """What the rules say of a window; None where there was nothing to judge."""
    if one.blockage is not None:
        return diagnose_blockage(one.blockage, entry.name, Settings())
    before = baseline.worker_patterns() if baseline is not None else ()
    known: dict[str, Any] = {"doubted": doubted.worker_patterns()} if doubted is not None and _KNOWS_DOUBTED else {}
    patterns = one.worker_patterns()
    return analyze(entry.name, one.window, patterns, before, one.workers_expected, one.notes, Settings(), **known)


def judge_all(directory: Path, processes: int) -> list[Line]:
    """Every window of every entry, in order of their names."""
    files = list(entry_files(directory))
    lines: list[Line] = []
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for done, found in enumerate(pool.imap(judged, files), 1):
            lines.extend(found)
            if sys.stderr.isatty():
                print(f"\r{done} of {len(files)} runs, {len(lines)} windows", end="", file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    return lines


def outcome(line: Line) -> str:
    """What became of a faulty window, or run: one of `OUTCOMES`.

    "right": verdict, cause, workers and file. "considered": undetermined, but the true cause, on the right workers, is
    one of the two likeliest hypotheses, or what an undetermined verdict shows first. "undetermined": without it.
    "missed": called healthy, or nothing was said. "wrong": another cause, other workers or another place.
    """
    found = line["marks"]
    if found["right"]:
        return "right"
    shown = found["cause"] and found["workers"] and found["file"]
    if line["verdict"] == "undetermined" and (shown or not line.get("cause")):
        return "considered" if shown or line.get("is_among_best") else "undetermined"
    return "wrong" if line.get("cause") else "missed"


def figures(lines: Sequence[Line]) -> dict[str, Any]:
    """What a set of judged windows amounts to.

    Returns:
        "windows"; of "faulty" ones how many have each outcome (see `outcome`): "right", "considered", "undetermined",
        "missed", "wrong"; of "healthy" ones "alarms"; "brier" of the confidence in causes; "gain_error" (median) and
        "gain_worst", shares of the iteration; "gain_off" (median), the same as a share of the true gain, and
        "gain_far", how many of "gains" are off by more than 40 % of it.
    """
    faulty, healthy = _split(lines)
    outcomes = [outcome(line) for line in faulty]
    named = [line for line in lines if line["cause"] and line["confidence"] is not None]
    gains = [
        (line["gain"], line["true_gain"])
        for line in faulty
        if line["marks"]["right"] and line["gain"] is not None and line["true_gain"] is not None
    ]
    errors = [abs(told - true) for told, true in gains]
    off = [abs(told - true) / true for told, true in gains if true > 0]
    return {
        "windows": len(lines),
        "faulty": len(faulty),
        **{name: outcomes.count(name) for name in OUTCOMES},
        "healthy": len(healthy),
        "alarms": sum(not line["marks"]["right"] for line in healthy),
        "brier": _mean((line["confidence"] - line["marks"]["right"]) ** 2 for line in named),
        "gain_error": round(statistics.median(errors), 3) if errors else None,
        "gain_worst": round(max(errors), 3) if errors else None,
        "gain_off": round(statistics.median(off), 3) if off else None,
        "gain_far": sum(one > FAR_OFF for one in off),
        "gains": len(off),
    }


def _split(lines: Iterable[Line]) -> tuple[list[Line], list[Line]]:
    faulty: list[Line] = []
    healthy: list[Line] = []
    for line in lines:
        (healthy if line["is_healthy"] else faulty).append(line)
    return faulty, healthy


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return round(statistics.fmean(known), 4) if known else None


def groups(lines: Sequence[Line], name: str) -> dict[str, list[Line]]:
    """Lines by one of their fields."""
    found: dict[str, list[Line]] = {}
    for line in lines:
        found.setdefault(str(line[name]), []).append(line)
    return dict(sorted(found.items()))


def show(lines: Sequence[Line]) -> None:
    """Figures of all, by fault and by layout, and each window that is not right."""
    for name in ("use", "layout", "fault"):
        print(f"\nby {name}")
        for key, mine in groups(lines, name).items():
            print(f"  {key:28}{_in_words(figures(mine))}")
    print()
    for line in lines:
        if not line["marks"]["right"]:
            print(f"not right: {line['key']} ({line['purpose']}): {line['summary'] or line['verdict']}")
    print(f"\nall {_in_words(figures(lines))}")


def _in_words(found: Mapping[str, Any]) -> str:
    parts = [f"{found['right']} of {found['faulty']} faulty right"] if found["faulty"] else []
    named = {
        "considered": "undetermined with the right one of the two best",
        "undetermined": "undetermined",
        "missed": "called healthy",
    }
    parts += [f"{found[name]} {words}" for name, words in named.items() if found[name]]
    parts += [f"{found['wrong']} wrong"] if found["wrong"] else []
    parts += [f"{found['alarms']} alarms in {found['healthy']} healthy"] if found["healthy"] else []
    parts += [f"Brier {found['brier']}"] if found["brier"] is not None else []
    if found["gain_error"] is not None:
        parts.append(f"gain error {found['gain_error']} (worst {found['gain_worst']})")
        parts.append(f"{found['gain_off'] or 0:.1%} of the gain, {found['gain_far']} of {found['gains']} beyond 40 %")
    return ", ".join(parts)


def compare(old: Sequence[Line], new: Sequence[Line]) -> int:
    """Print what differs between two revisions; returns how many windows were right before and are not now."""
    before = {line["key"]: line for line in old}
    lost = 0
    for line in new:
        was = before.get(line["key"])
        if was is None:
            continue
        apart = [name for name in COMPARED if was[name] != line[name]]
        if abs((was["gain"] or 0.0) - (line["gain"] or 0.0)) > GAIN_APART:
            apart.append("gain")
        if not apart:
            continue
        change = {(True, False): "LOST", (False, True): "won"}.get((was["marks"]["right"], line["marks"]["right"]), "")
        lost += change == "LOST"
        print(f"{change:5}{line['key']}: " + "; ".join(f"{name} {was[name]!r} -> {line[name]!r}" for name in apart))
    both = [line for line in new if line["key"] in before]
    print(f"\nbefore {_in_words(figures([before[line['key']] for line in both]))}\nnow    {_in_words(figures(both))}")
    return lost


def at_revision(name: str, out: Path, options: argparse.Namespace) -> int:
    """Run this script on the code of another revision; returns its status."""
    root = HERE.parent
    with tempfile.TemporaryDirectory(prefix="eroica-corpus-") as directory:
        code = Path(directory) / "code"
        subprocess.run(["git", "worktree", "add", "--detach", "--quiet", str(code), name], cwd=root, check=True)
        try:
            command = [sys.executable, __file__, "--out", str(out), "--entries", str(options.entries)]
            environment = {**os.environ, REVISION: name, "PYTHONPATH": str(code / "src")}
            return subprocess.run(command, env=environment, check=False).returncode
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(code)], cwd=root, check=True)


def against(options: argparse.Namespace) -> int:
    """Judge by two revisions and print what differs; returns how many windows the later one lost."""
    with tempfile.TemporaryDirectory(prefix="eroica-corpus-") as directory:
        old, new = Path(directory) / "old.jsonl", options.out or Path(directory) / "new.jsonl"
        status = at_revision(options.against, old, options)
        status = status or (
            at_revision(options.revision, new, options) if options.revision else judge_here(new, options)
        )
        if status:
            raise SystemExit(status)
        return compare(read_lines(old), read_lines(new))


def judge_here(out: Path | None, options: argparse.Namespace) -> int:
    """Judge by the rules of this checkout, or those that the environment brings; returns 0."""
    began = time.monotonic()
    lines = judge_all(options.entries, options.processes)
    code = os.environ.get(REVISION) or revision()
    if out:
        out.write_text("".join(json.dumps(line | {"revision": code}) + "\n" for line in lines))
    show(lines)
    print(f"{len(lines)} windows in {time.monotonic() - began:.0f} s, revision {code}")
    return 0


def read_lines(path: Path) -> list[Line]:
    """What `--out` wrote."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="one JSON object a window")
    parser.add_argument("--entries", type=Path, default=ENTRIES)
    parser.add_argument("--revision", help="judge by the rules of this commit")
    parser.add_argument("--against", help="judge by those of this commit, too, and print what differs")
    parser.add_argument("--compare", nargs=2, type=Path, metavar=("OLD", "NEW"))
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    if options.compare:
        return 1 if compare(*map(read_lines, options.compare)) else 0
    if options.against:
        return 1 if against(options) else 0
    if options.revision:
        if not options.out:
            parser.error("--revision wants --out, or --against to compare with")
        return at_revision(options.revision, options.out, options)
    return judge_here(options.out, options)


if __name__ == "__main__":
    sys.exit(main())
