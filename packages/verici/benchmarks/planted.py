"""The exam with planted rules on 14 real histories: walk-forward on the second half, all ways to learn.

    python benchmarks/planted.py --json benchmarks/results/planted.json [--seconds 280]
    python benchmarks/planted.py --json FILE --kind mismatch --way "evidence, without relabelling"

It goes on where it was stopped; one line of the results is one trial.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import shipped
from planting import Planted, flip, natural_rules, walked_rules
from verici.evaluate import majority, metadata, random_keys
from verici.features import COARSE, PAIRS, VALUES
from verici.learner import Builds, Forecast, Options, Teacher, choose, noise_of, prepare, walk_forward
from verici.model import History, Key

RULES = {"bad version": 7, "threshold": 7, "mismatch": 6}
NATURAL, NO_RULE = 10, 5
#: Builds after which a tree is learned anew: the chosen way, the others.
REFIT, WAYS_REFIT = 3, 8
WAYS = {
    "evidence, with relabelling": Options("evidence", True),
    "evidence, without relabelling": Options("evidence", False),
    "evidence, without pairs": Options("evidence", False, (COARSE, VALUES)),
    "paper, with relabelling": Options("paper", True, (COARSE, VALUES), False),
    "paper, without relabelling": Options("paper", False, (COARSE, VALUES), False),
    "paper, with pairs": Options("paper", True, (COARSE, VALUES, PAIRS)),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument(
        "--part", default="1/1", help="such as 2/3: parts run beside each other, each with its own file"
    )
    parser.add_argument("--kind", choices=[*RULES, "none", "natural"], help="only these trials")
    parser.add_argument("--way", choices=list(WAYS), help="only this way, which takes a tenth of the time")
    arguments = parser.parse_args()
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    lines = arguments.json.read_text().splitlines() if arguments.json.exists() else []
    done = {json.loads(line)["trial"] for line in lines}
    began = time.monotonic()
    with arguments.json.open("a") as out:
        for trial, history, rule in trials(done, arguments.part, arguments.kind):
            if time.monotonic() - began > arguments.seconds:
                print("stopped; run again to go on")
                return
            out.write(json.dumps({"trial": trial, **attempt(history, rule, trial, arguments.way)}) + "\n")
            out.flush()
    report([json.loads(line) for line in arguments.json.read_text().splitlines()])


def trials(done: set[str], part: str, only: str | None) -> Iterator[tuple[str, History, Planted | None]]:
    """Yield what has not been tried yet, of one kind or of all, all repositories in turn."""
    which, parts = map(int, part.split("/"))
    data = dict(list(shipped.read().items())[which - 1 :: parts])
    for number in range(max(NO_RULE, *RULES.values())):
        for repo, (history, _) in data.items():
            for kind, count in RULES.items():
                name = f"{repo} {kind} {number}"
                if number < count and name not in done and only in (None, kind):
                    yield name, history, next(walked_rules(history, kind, name))
            name = f"{repo} none {number}"
            if number < NO_RULE and name not in done and only in (None, "none"):
                yield name, history, None
    for repo, (history, _) in data.items():
        if only not in (None, "natural") or all(f"{repo} natural {number}" in done for number in range(NATURAL)):
            continue
        fitting = natural_rules(history, repo)
        random.Random(repo).shuffle(fitting)
        for number, rule in enumerate(fitting[:NATURAL]):
            name = f"{repo} natural {number}"
            if name not in done:
                yield name, history, rule


def attempt(history: History, rule: Planted | None, name: str, only: str | None = None) -> dict[str, object]:
    """Return the counts of every way, or of one, on one labelled history."""
    truth = rule.truth if rule else {commit.id: False for commit in history.commits}
    history = rule.history if rule else history
    builds = prepare(history, rule.labels if rule else flip(truth, name))
    teacher = Teacher(builds)
    half = len(builds.rows) // 2
    chosen = WAYS[only] if only else choose(teacher, half, refit=8)
    keys = set(rule.rule.keys) if rule else set()
    ids = [commit.id for commit in history.commits]
    first = {later for earlier, later in builds.edges if truth[ids[later]] and not truth[ids[earlier]]}
    found = {}
    if not only:
        found["chosen by the past"] = counts(builds, walk_forward(teacher, chosen, refit=REFIT), truth, keys, first)
    for way in [only] if only else WAYS:
        found[way] = counts(builds, walk_forward(teacher, WAYS[way], refit=WAYS_REFIT), truth, keys, first)
    if not only:
        found["majority"] = counts(builds, majority(builds), truth, keys, first)
        found["metadata"] = counts(builds, metadata(builds), truth, keys, first)
    return {
        "kind": "none" if rule is None else "natural" if rule.natural else rule.kind,
        "chosen": [chosen.learner, chosen.relabel],
        "noise": round(noise_of(builds, half), 3),
        "ways": found,
    }


def counts(
    builds: Builds, forecasts: list[Forecast], truth: dict[str, bool], keys: set[Key], first: set[int]
) -> dict[str, int]:
    """Count alarms against the rule's truth and against the flipped labels, and messages that name the constant."""
    ids = [commit.id for commit in builds.history.commits]
    found: Counter[str] = Counter()
    for one in forecasts:
        bad = truth[ids[one.row]]
        found[{(True, True): "tp", (True, False): "fp", (False, True): "fn", (False, False): "tn"}[one.fails, bad]] += 1
        found["seen_failed"] += one.failed
        found["seen_tp"] += one.fails and one.failed
        found["first"] += one.row in first
        found["first_found"] += one.row in first and one.fails
        if one.fails and bad and one.conditions:
            own = {key for condition in one.conditions for key in condition.predicate.keys}
            alike = {key for condition in one.conditions for other in condition.also for key in other.keys}
            found["named"] += bool(own & keys)
            found["named_or_alike"] += bool((own | alike) & keys)
            found["file"] += bool({key.path for key in own} & {key.path for key in keys})
            found["chance"] += bool(set(random_keys(builds, one)) & keys)
            found["keywords"] += len(one.conditions)
            found["messages"] += 1
    return dict(found)


def report(rows: list[dict]) -> None:
    """Print one table for each kind of trial."""
    for title, kinds in (
        ("planted: all", set(RULES)), *((f"planted: {kind}", {kind}) for kind in RULES), ("natural rules", {"natural"}),
        ("no rule", {"none"}),
    ):  # fmt: skip
        chosen = [row for row in rows if row["kind"] in kinds]
        if not chosen:
            continue
        print(f"\n{title}: {len(chosen)} trials; chosen: {Counter(tuple(row['chosen']) for row in chosen)}")
        print(
            f"{'':32} precision recall    F1 alarms | first | named chance  alike   file keywords |"
            " against labels: precision recall"
        )
        for way in chosen[0]["ways"]:
            total = sum((Counter(row["ways"][way]) for row in chosen), Counter())
            print(f"{way:32} {line(total)}")


def line(total: Counter[str]) -> str:
    """Return the rates of summed counts."""

    def share(part: str, *whole: str) -> float:
        return total[part] / max(1, sum(total[one] for one in whole))

    f1 = 2 * total["tp"] / max(1, 2 * total["tp"] + total["fp"] + total["fn"])
    accuracy = (total["tp"] + total["tn"]) / max(1, sum(total[one] for one in ("tp", "fp", "tn", "fn")))
    return (
        f"{share('tp', 'tp', 'fp'):9.3f} {share('tp', 'tp', 'fn'):6.3f} {f1:5.3f} {share('fp', 'fp', 'tn'):6.2%} |"
        f" {share('first_found', 'first'):5.2f} | {share('named', 'messages'):5.2f}"
        f" {share('chance', 'messages'):6.2f} {share('named_or_alike', 'messages'):6.2f}"
        f" {share('file', 'messages'):6.2f}"
        f" {share('keywords', 'messages'):8.1f} |"
        f" {share('seen_tp', 'tp', 'fp'):9.3f} {share('seen_tp', 'seen_failed'):6.3f} | accuracy {accuracy:.3f}"
    )


if __name__ == "__main__":
    main()
