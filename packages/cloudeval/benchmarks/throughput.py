"""Behaviour tests of all references in three styles on one and two workers, and whether the verdicts are the same."""

import argparse
import json
import time
from pathlib import Path

from cloudeval import problems
from cloudeval.workers import Task, run_all

HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3, help="1 for each style")
    options = parser.parse_args()
    variants = [problems.draw(problem, seed) for seed in range(options.rounds) for problem in problems.load()]
    tests = [Task(number, variant, variant.answer) for number, variant in enumerate(variants)]
    result: dict[str, object] = {"tests": len(tests)}
    outcomes = []
    for workers in (1, 2):
        started = time.monotonic()
        done = run_all(tests, workers)
        result[f"seconds, {workers} worker(s)"] = round(time.monotonic() - started, 1)
        result[f"right, {workers} worker(s)"] = sum(item.verdict.passed for item in done)
        result[f"repeated, {workers} worker(s)"] = sum(item.verdict.attempts > 1 for item in done)
        result[f"not right, {workers} worker(s)"] = [
            (tests[item.number].variant.id, item.verdict.reason) for item in done if not item.verdict.passed
        ]
        outcomes.append([(item.number, item.verdict.outcome, item.verdict.how) for item in done])
    result["same verdicts"] = outcomes[0] == outcomes[1]
    (HERE / "results" / "throughput.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
