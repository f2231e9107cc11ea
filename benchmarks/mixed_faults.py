"""Two faults at once in real jobs at default settings: are both told, each with its workers and a gain?

    python benchmarks/mixed_faults.py --out benchmarks/results/faults/mixed.jsonl --seeds 0,1

Goes on where it was stopped. Each job is data-parallel, four workers, both faults from iteration 300 on.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from corpus_collect import watch
from eroica.faults.expected import MIXED, judge_mixed, mixed_plans
from eroica.faults.rehearsal import MIDDLE, Rehearsal
from machine import machine_facts, revision

WORKERS = 4
#: Windows with the faults that are waited for.
WINDOWS = 2


def run(name: str, seed: int, directory: Path) -> dict[str, Any]:
    """One job; what was told of each fault by the final verdict."""
    worker = 1 + seed % (WORKERS - 1)
    plans = mixed_plans(name, worker, WORKERS, MIDDLE)
    case = Rehearsal(
        "none", worker, WORKERS, directory,
        layout="ddp", from_iteration=MIDDLE, seed=seed, settings={}, plans=plans,
    )  # fmt: skip
    watch(case, MIDDLE, WINDOWS, blocks=False)
    verdict = case.verdict()
    told = judge_mixed(verdict, name, worker) if verdict is not None else dict.fromkeys((p.name for p in plans), False)
    causes = [one for one in verdict.findings if one.role == "cause"] if verdict is not None else []
    return {
        "key": f"{name}/{seed}",
        "told": told,
        "right": all(told.values()),
        "summary": verdict.summary if verdict is not None else "",
        "causes": [[one.cause, one.function.name, list(one.workers), one.scope, one.gain] for one in causes],
        "plans": [json.loads(plan.to_json()) for plan in plans],
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "revision": revision(),
        "machine": machine_facts(),
        "load": round(os.getloadavg()[0], 2),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="one JSON object a run; appended to")
    parser.add_argument("--faults", default=",".join(MIXED), help="with commas between them")
    parser.add_argument("--seeds", default="0")
    options = parser.parse_args()
    done = set()
    if options.out.exists():
        done = {json.loads(line)["key"] for line in options.out.read_text().splitlines()}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for seed in map(int, options.seeds.split(",")):
        for name in options.faults.split(","):
            if f"{name}/{seed}" in done:
                continue
            with tempfile.TemporaryDirectory(prefix="eroica-mixed-") as directory:
                line = run(name, seed, Path(directory))
            with options.out.open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(
                f"{line['key']}: {'right' if line['right'] else 'WRONG'} {line['told']}: {line['summary']}", flush=True
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
