"""Whether what an assistant is given is enough to find the line: checked by rule, not by a model.

`python benchmarks/assistant_lines.py [--runs DIR --jobs DIR ...] [--json FILE]`.

For each entry of the corpus that has a culprit in the source of our training or of an exam's job, its last faulty
window judged by the present rules, and for each run that `benchmarks/tools.py --keep DIR` has left (`--runs`; `--jobs`
are the directories of their scripts): do the text of `eroica report --prompt`, and the answer of the MCP tool `source`,
hold the line that defines the culprit function, with its number? An answer also counts if it names the file and that
line's number in words.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from corpus_entry import entry_files, read_entry
from corpus_judge import verdict_of
from eroica.archive.load import read_verdict
from eroica.cli.assistant import source_answer
from eroica.errors import UsageError
from eroica.model.causes import CATALOG
from eroica.model.verdict import Verdict
from eroica.report.prompt import SourceTree, build_prompt
from machine import revision

HERE = Path(__file__).resolve().parent
TRAINING = HERE.parent / "src" / "eroica" / "faults"
EXAM = HERE / "exam_jobs"


class Case(NamedTuple):
    """A verdict, and where its culprit is written down.

    Attributes:
        name: Of the window or run.
        verdict: What Eroica said.
        culprits: Functions, any of which is where a reader has to look.
        sources: Directories with the training's source.
    """

    name: str
    verdict: Verdict
    culprits: tuple[str, ...]
    sources: tuple[Path, ...]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path)
    parser.add_argument("--jobs", type=Path, nargs="*", default=[HERE / "jobs" / "frameworks"])
    parser.add_argument("--truth", type=Path, help="truth.json of the cases among the runs")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    cases = [*from_corpus(), *(from_runs(options) if options.runs else ())]
    rows = [examined(case) for case in cases]
    record = {
        "revision": revision(),
        "faults": len(rows),
        "prompt": sum(row["prompt"] for row in rows),
        "source": sum(row["source"] for row in rows),
        "rows": rows,
    }
    text = json.dumps(record, indent=1)
    if options.json:
        options.json.write_text(text + "\n")
    print(text)
    return 0


def from_corpus() -> Iterator[Case]:
    """The last faulty window of each entry whose culprit is in our training, or in the job of an exam."""
    exam = {
        f"exam_jobs-{one['job']}": one["function_contains"] for one in json.loads((EXAM / "truth.json").read_text())
    }
    for path in entry_files(HERE / "corpus"):
        entry = read_entry(path)
        by_number = {one.window.window_id: one for one in entry.windows}
        faulty = [one for one in entry.windows if one.truth is not None and one.truth.verdict != "healthy"]
        if not faulty:
            continue
        last = faulty[-1]
        job = entry.name.rpartition("-")[0]
        own = (last.truth.function.rpartition(".")[2],) if last.truth and last.truth.function else ()
        culprits, source = (tuple(exam[job]), EXAM / "jobs") if job in exam else (own, TRAINING)
        if not any(definitions(culprits, (source,))):
            continue
        verdict = verdict_of(entry, last, by_number.get(last.compared_with))
        if verdict is not None:
            yield Case(entry.name, verdict, culprits, (source,))


def from_runs(options: argparse.Namespace) -> Iterator[Case]:
    """Runs of frameworks that left a verdict."""
    from tools import JOBS

    known = {f"{job.script}-{fault}": (text,) for job in JOBS for fault, (_, text) in job.faults.items()}
    if options.truth:
        for entry in json.loads(options.truth.read_text()):
            script, _, variant = entry["job"].rpartition("_")
            known[f"{script}-{variant}"] = tuple(entry["function_contains"])
    for name, culprits in sorted(known.items()):
        file = options.runs / f"{name}.json"
        if culprits and file.exists():
            yield Case(name, read_verdict(file), culprits, tuple(options.jobs))


def examined(case: Case) -> dict[str, Any]:
    """What of the case the two texts hold."""
    tree = SourceTree(case.sources)
    text = build_prompt(case.verdict, {slug: entry.meaning for slug, entry in CATALOG.items()}, (), tree)
    places = set(definitions(case.culprits, case.sources))
    try:
        answer = source_answer(case.verdict, None, 0, tree)["innermost_first"]
    except UsageError:
        answer = []
    quoted = {(Path(one["file"]).name, one["first_line"] + at) for one in answer for at in range(len(one["lines"]))}
    return {
        "case": case.name,
        "said": case.verdict.cause and case.verdict.cause.function.name,
        "culprits": list(case.culprits),
        "prompt": bool(places & set(lines_in(text))),
        "source": bool(places & quoted),
        "prompt_bytes": len(text.encode()),
    }


def definitions(names: Sequence[str], sources: Sequence[Path]) -> Iterator[tuple[str, int]]:
    """File name and line of each function of these names in the training's source."""
    for path in (path for directory in sources for path in directory.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name in names:
                yield path.name, node.lineno


def lines_in(text: str) -> Iterator[tuple[str, int]]:
    """File name and number of each line of source that a prompt quotes, and of each place that it names."""
    file = ""
    for line in text.splitlines():
        heading = re.match(r"`[^`]+` in `([^`]+)`", line)
        numbered = re.match(r" *(\d+) \| ", line)
        if heading:
            file = Path(heading[1]).name
        elif numbered:
            yield file, int(numbered[1])
        for place in re.findall(r"([\w.]+\.py):(\d+)", line):
            yield place[0], int(place[1])


if __name__ == "__main__":
    sys.exit(main())
