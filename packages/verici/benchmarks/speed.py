"""Time to read and learn 400 commits, and to check one, on the largest history, made a git repository again.

    python benchmarks/speed.py --json benchmarks/results/speed.json

The files hold one line for each constant, at its own line number.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import shipped
from verici.history import Repository
from verici.labels import load, match
from verici.learner import Options, learn
from verici.model import Constant, History
from verici.store import save_model

REPO = "thoughtbot/shoulda-matchers"
LEARN_RUNS, CHECK_RUNS = 1, 9


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    history, rows = shipped.read()[REPO]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        ids = rebuild(history, root)
        labels = root / ".git" / "verici" / "labels.csv"
        labels.parent.mkdir()
        lines = [f"{ids[row['commit']]},{row['label'] or 'pass'},,,," for row in rows]
        labels.write_text("commit,result,kind,source,time,detail\n" + "\n".join(lines) + "\n")
        cache = root / ".git" / "verici" / "constants.msgpack"
        cold, warm = [], []
        for _ in range(LEARN_RUNS):
            cache.unlink(missing_ok=True)
            cold.append(timed(root, "learn"))
            warm.append(timed(root, "learn"))
        learn_as_paper(root)  # finds constraints in these labels, so that a check has files to read
        timed(root, "check")
        checks = [timed(root, "check") for _ in range(CHECK_RUNS)]
        start = [timed(root, "--version") for _ in range(5)]
    times = {"learn_cold_s": cold, "learn_warm_s": warm, "check_s": checks, "start_s": start}
    for name, pairs in times.items():
        for kind, seconds in zip(("clock", "processor"), zip(*pairs, strict=True), strict=True):
            print(f"{name} {kind}: median {statistics.median(seconds):.2f}, {min(seconds):.2f} to {max(seconds):.2f}")
    found = {"repo": REPO, "commits": len(rows), **times}
    if arguments.json:
        arguments.json.write_text(json.dumps(found) + "\n")


def learn_as_paper(root: Path) -> None:
    """Learn by the paper's learner, whatever the past would choose."""
    repository = Repository(root)
    history = repository.read()
    labels, _ = match(load(repository.state / "labels.csv"), [one.id for one in history.commits])
    failed = {commit: label.result == "fail" for commit, label in labels.items()}
    save_model(repository.state / "model.json", learn(history, failed, options=Options("paper", True)))


def timed(root: Path, *arguments: str) -> tuple[float, float]:
    """Return the seconds of one whole command: by the clock, and of processor time."""
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "verici", *arguments], cwd=root, stdout=subprocess.DEVNULL, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return round(time.perf_counter() - began, 3), round(used, 3)


def rebuild(history: History, root: Path) -> dict[str, str]:
    """Write the history as a git repository; return the new id of each commit."""
    subprocess.run(["git", "init", "-q", "-b", "main", str(root)], check=True)
    stream, marks = [], {}
    for number, commit in enumerate(history.commits, 1):
        marks[commit.id] = number
        parents = [marks[parent] for parent in commit.parents if parent in marks] or (
            [number - 1] if number > 1 else []
        )
        stream.append(
            f"commit refs/heads/main\nmark :{number}\ncommitter a <a@example.org> {commit.time} +0000\ndata 1\nx\n"
        )
        stream += [f"from :{parents[0]}\n"] if parents else []
        stream.append("deleteall\n")
        for path, blob in commit.files.items():
            text = text_of(history.constants[blob])
            stream.append(f"M 100644 inline {path}\ndata {len(text.encode())}\n{text}\n")
    last = history.commits[-1].id
    stream.append(f"reset refs/heads/main\nfrom :{marks[last]}\n")
    subprocess.run(
        ["git", "fast-import", "--quiet", f"--export-marks={root}/.git/marks"],
        cwd=root,
        input="".join(stream).encode(),
        check=True,
    )
    ids = dict(line[1:].split() for line in (root / ".git/marks").read_text().splitlines())
    return {commit: ids[str(mark)] for commit, mark in marks.items()}


def text_of(constants: tuple[Constant, ...]) -> str:
    """Return a file in which each constant stands on its line."""
    lines: dict[int, str] = {}
    for one in constants:
        if "joined" not in one.name:
            lines[one.line] = f"{lines.get(one.line, one.name)} {one.value}"
    return "".join(lines.get(number, "") + "\n" for number in range(1, max(lines, default=0) + 1))


if __name__ == "__main__":
    main()
