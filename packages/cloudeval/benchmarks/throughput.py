"""Behaviour tests of all references in three styles on one and two workers, and whether the verdicts are the same."""

import argparse
import json
import time
from pathlib import Path

from cloudeval import problems
from cloudeval.workers import run_all

HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3, help="1 for each style")
    options = parser.parse_args()
    variants = [problems.draw(problem, seed) for seed in range(options.rounds) for problem in problems.load()]
    tests = [(variant, variant.answer) for variant in variants]
    result: dict[str, object] = {"tests": len(tests)}
    outcomes = []
    for workers in (1, 2):
        started = time.monotonic()
        verdicts = run_all(tests, workers)
        result[f"seconds, {workers} worker(s)"] = round(time.monotonic() - started, 1)
        result[f"right, {workers} worker(s)"] = sum(verdict.passed for verdict in verdicts)
        result[f"repeated, {workers} worker(s)"] = sum(verdict.attempts > 1 for verdict in verdicts)
        result[f"not right, {workers} worker(s)"] = [
            (variant.id, verdict.reason)
            for variant, verdict in zip(variants, verdicts, strict=True)
            if not verdict.passed
        ]
        outcomes.append([(verdict.outcome, verdict.how) for verdict in verdicts])
    result["same verdicts"] = outcomes[0] == outcomes[1]
    (HERE / "results" / "throughput.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
