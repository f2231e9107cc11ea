"""Reads thousands of damaged trace files, real and made ones: none may end in a traceback, none may take long.

`python benchmarks/fuzz_traces.py [--files 10000] [--seed 1] [--traces DIRECTORY] [--json FILE]`. Each file is a trace
after one to three mishaps (`support.mutations`), read and summarized by `eroica.offline.reading.read_one`. What
was read is put together, diagnosed, printed and written as JSON; now and then two files count as two ranks of one job.
"""

import argparse
import collections
import gzip
import io
import json
import random
import tempfile
import time
import traceback
from pathlib import Path

import msgspec
from rich.console import Console

from eroica.model.trace import TraceSummary
from eroica.model.verdict import Verdict
from eroica.offline.examine import window_of
from eroica.offline.jobs import Span, group
from eroica.offline.reading import read_one
from eroica.pipeline import analyze
from eroica.report.text import render_verdict
from eroica.settings import Settings
from machine import machine_facts
from support.mutations import mutated, small_trace

REAL_SHARE = 0.1
MOST_BYTES = 3_000_000


def real_traces(directory: Path) -> list[bytes]:
    """The texts of the traces in a folder; of large ones the first and the last part, cut between events."""
    texts = []
    for path in sorted(directory.rglob("*.json*")):
        data = path.read_bytes()
        text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
        if len(text) > MOST_BYTES:
            first, last = text.index(b"},\n  {", MOST_BYTES // 2), text.index(b"},\n  {", len(text) - MOST_BYTES // 2)
            text = text[:first] + text[last:]
        texts.append(text)
    return texts


def judge(summaries: list[TraceSummary]) -> None:
    """All that `eroica diagnose` does with what was read; several files also as one recording, whatever their times."""
    spans = list(group([("job", summary) for summary in summaries])[0])
    if len(spans) > 1:
        spans.append(Span("job", "", tuple(summaries)))
    for span in spans:
        patterns = tuple(summary.pattern for summary in span.summaries if summary.pattern is not None)
        expected = max(summary.world_size for summary in span.summaries) or None
        verdict = analyze(span.job, window_of(span), patterns, expected_workers=expected, notes=span.notes)
        render_verdict(verdict, Console(file=io.StringIO(), width=100))
        Verdict.from_json(verdict.to_json())


def as_rank(summary: TraceSummary, rank: int) -> TraceSummary:
    """The same recording as that of another worker."""
    pattern = summary.pattern
    if pattern is not None:
        worker = msgspec.structs.replace(pattern.worker, global_rank=rank)
        pattern = msgspec.structs.replace(pattern, worker=worker)
    return msgspec.structs.replace(summary, rank=rank, path=f"rank{rank}.json", world_size=2, job="", pattern=pattern)


def outcome_of(path: Path, earlier: list[TraceSummary]) -> str:
    """What became of a file; the last one that could be read is kept in `earlier`, and sometimes is a second rank."""
    try:
        summary = read_one(path, -1, Settings())
        judge([summary])
        if earlier and summary.pattern is not None:
            judge([as_rank(earlier[0], 0), as_rank(summary, 1)])
            earlier.clear()
        elif summary.pattern is not None:
            earlier.append(summary)
    except Exception:  # noqa: BLE001  # what this program looks for
        traceback.print_exc()
        return "traceback"
    if summary.pattern is None:
        return "refused"
    return "read with losses" if any("lost" in note or "left out" in note for note in summary.pattern.notes) else "read"


def sweep(files: int, seed: int, originals: list[bytes]) -> dict[str, object]:
    counts: collections.Counter[str] = collections.Counter()
    slowest = (0.0, -1)
    earlier: list[TraceSummary] = []
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "t.json"
        for number in range(files):
            chance = random.Random(f"{seed} {number}")
            real = originals and chance.random() < REAL_SHARE
            data = mutated(chance.choice(originals) if real else small_trace(chance), chance)
            path.write_bytes(data)
            began = time.perf_counter()
            outcome = outcome_of(path, earlier)
            slowest = max(slowest, (time.perf_counter() - began, number))
            counts[f"{'real' if real else 'made'}, {outcome}"] += 1
            if outcome == "traceback":
                kept = Path(tempfile.gettempdir()) / f"eroica-fuzz-{seed}-{number}.json"
                kept.write_bytes(data)
                print(f"kept as {kept}")
    return {"files": files, "seed": seed, "outcomes": dict(sorted(counts.items())), "slowest": slowest}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--traces", type=Path, help="folder of real traces that are damaged as well")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found = sweep(arguments.files, arguments.seed, real_traces(arguments.traces) if arguments.traces else [])
    found["machine"] = machine_facts()
    print(json.dumps(found, indent=2))
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    raise SystemExit(any("traceback" in outcome for outcome in found["outcomes"]))


if __name__ == "__main__":
    main()
