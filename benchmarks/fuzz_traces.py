"""Reads thousands of damaged trace files, real and made ones: none may end in a traceback, none may take long.

`python benchmarks/fuzz_traces.py [--files 10000] [--seed 1] [--traces DIRECTORY] [--json FILE]`. Each file is a trace
after one to three mishaps (`eroica.testing.mutations`), read and summarized by `eroica.offline.reading.read_one`.
"""

import argparse
import collections
import gzip
import json
import random
import tempfile
import time
import traceback
from pathlib import Path

from eroica.offline.reading import read_one
from eroica.settings import Settings
from eroica.testing.mutations import mutated, small_trace
from machine import machine_facts

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


def outcome_of(path: Path) -> str:
    try:
        summary = read_one(path, -1, Settings())
    except Exception:  # noqa: BLE001  # what this program looks for
        traceback.print_exc()
        return "traceback"
    if summary.pattern is None:
        return "refused"
    return "read with losses" if any("lost" in note or "left out" in note for note in summary.pattern.notes) else "read"


def sweep(files: int, seed: int, originals: list[bytes]) -> dict[str, object]:
    counts: collections.Counter[str] = collections.Counter()
    slowest = (0.0, -1)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "t.json"
        for number in range(files):
            chance = random.Random(f"{seed} {number}")
            real = originals and chance.random() < REAL_SHARE
            data = mutated(chance.choice(originals) if real else small_trace(chance), chance)
            path.write_bytes(data)
            began = time.perf_counter()
            outcome = outcome_of(path)
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
