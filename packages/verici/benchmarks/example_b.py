"""The paper's example B: train on the commits before active_scaffold bce9420 and predict it.

    python benchmarks/example_b.py --json benchmarks/results/example_b.json

Commits without a label count as passed, as the paper's timeline has a result for every commit. This is an assumption.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import shipped
from verici.explain import condition_words
from verici.features import COARSE, VALUES
from verici.learner import Options, Teacher, choose, conditions_of, noise_of, prepare
from verici.tree import leaf_of

WAYS = {
    "paper, with relabelling": Options("paper", True, (COARSE, VALUES), False),
    "paper, without relabelling": Options("paper", False, (COARSE, VALUES), False),
    "paper, with pairs": Options("paper", True),
    "evidence, with relabelling": Options("evidence", True),
    "evidence, without relabelling": Options("evidence", False),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    history, rows = shipped.read()["activescaffold/active_scaffold"]
    builds = prepare(history, {row["commit"]: row["label"] == "fail" for row in rows})
    [at] = [number for number, row in enumerate(rows) if row["commit"].startswith("bce9420")]
    teacher = Teacher(builds)
    chosen = choose(teacher, at)
    found = [{"noise": round(noise_of(builds, at), 3), "builds": at, "failed": int(builds.failed_N[:at].sum())}]
    print(found[0])
    for name, options in {f"chosen: {chosen.learner}, relabelling {chosen.relabel}": chosen, **WAYS}.items():
        before = builds.rows[:at]
        leaf, path = leaf_of(teacher.tree(before, options), teacher.candidates(options).truth_NP[at])
        words = [condition_words(one) for one in conditions_of(teacher.candidates(options), path)]
        taught = [rows[row]["commit"][:7] for row in leaf.rows if teacher.labels(before, options)[row]]
        kept = int(teacher.labels(before, options).sum())
        found.append({"way": name, "fails": bool(leaf.fails), "path": words, "taught": taught, "failures_kept": kept})
        print(
            f"\n{name}: {'F' if leaf.fails else 'P'} ({kept} failures after relabelling), taught by {', '.join(taught)}"
        )
        print("  " + "\n  ".join(words))
    if arguments.json:
        arguments.json.write_text("".join(json.dumps(one) + "\n" for one in found))


if __name__ == "__main__":
    main()
