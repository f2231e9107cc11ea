"""Figures 1 to 3: do references and alternatives pass, are mutants killed, how, and what do cheaper checks let through?

Writes one line per text to results/strength.jsonl. Problem texts are not in it, ids and names only.
"""

import argparse
import json
import time
from pathlib import Path

from cloudeval import problems
from cloudeval.match import Reference
from cloudeval.metrics import measure
from cloudeval.strength import validate_problems

OUT = Path(__file__).parent / "results" / "strength.jsonl"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    started = time.monotonic()
    loaded = problems.load(only=options.only)
    found = validate_problems(loaded, options.seed, options.workers)
    references = {problem.id: Reference.parse(problems.draw(problem, options.seed).reference) for problem in loaded}
    with OUT.open("w") as file:
        for item in found.tested:
            variant = item.variant
            line = {"problem": variant.id, "group": variant.group, "runner": variant.runner}
            line |= {"kind": item.kind, "name": item.name}
            line |= {"outcome": item.verdict.outcome, "how": item.verdict.how, "reason": item.verdict.reason[:200]}
            line |= {"seconds": item.verdict.seconds, "attempts": item.verdict.attempts}
            file.write(json.dumps(line | {"metrics": measure(references[variant.id], item.text)}) + "\n")
    print(found.table())
    print(*found.exceptions, sep="\n")
    print(f"{time.monotonic() - started:.0f} s with {options.workers} worker(s)")


if __name__ == "__main__":
    main()
