"""A run: answers are collected, cleaned, measured, tested by workers, and written to a results file one by one.

A results file is JSON lines. A run that was stopped goes on where it was: whole lines are kept, a half-written last line
is dropped, and only missing results are made.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from cloudeval.cleaning import clean
from cloudeval.errors import UsageError
from cloudeval.match import Reference
from cloudeval.metrics import classify, measure
from cloudeval.models import Answer, Client, Endpoint, read_files
from cloudeval.problems import STYLES, Problem, Variant, answers_of, draw
from cloudeval.prompts import prompt
from cloudeval.records import Result, Verdict
from cloudeval.workers import Done, Task, run_all


@dataclass(frozen=True)
class Plan:
    """One answer that a run wants: of which problem, in which style, which sample."""

    variant: Variant
    style: str
    sample: int
    source: str

    @property
    def key(self) -> tuple[str, str, str, int, int]:
        """The key of its result."""
        return (self.source, self.variant.id, self.style, self.variant.seed, self.sample)


@dataclass(frozen=True)
class Given:
    """An answer and what it cost."""

    plan: Plan
    text: str
    tokens: dict[str, int]
    cost: float = 0.0


class ResultsFile:
    """A results file that is appended to, one flushed line per result."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.results = read_results(path) if path.exists() else []
        _refuse_leak(path)
        whole = b"".join(msgspec.json.encode(result) + b"\n" for result in self.results)
        if path.exists() and path.read_bytes() != whole:  # a half-written line, or one of another version
            partial = path.with_suffix(f".{os.getpid()}")
            partial.write_bytes(whole)
            partial.replace(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab")

    def add(self, result: Result) -> None:
        """Write a result at once."""
        self._file.write(msgspec.json.encode(result) + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self.results.append(result)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_results(path: Path) -> list[Result]:
    """Return the results of a file; lines that are no whole result are left out, doubles count once."""
    found: dict[tuple[str, str, str, int, int], Result] = {}
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; run `cloudeval run` first") from error
    for line in lines:
        try:
            result = msgspec.json.decode(line, type=Result)
        except (msgspec.DecodeError, msgspec.ValidationError):
            continue
        found.setdefault(result.key, result)
    return list(found.values())


def _refuse_leak(path: Path) -> None:
    """Refuse to write answers below a git tree that would take them in: answers and problems must not reach training data."""
    folder = path.absolute().parent
    while not folder.exists():
        folder = folder.parent
    try:
        inside = subprocess.run(
            ["git", "-C", str(folder), "rev-parse", "--is-inside-work-tree"],
            capture_output=True,
            text=True,
            check=False,
        )
        ignored = subprocess.run(
            ["git", "-C", str(folder), "check-ignore", "-q", str(path.absolute())], capture_output=True, check=False
        )
    except OSError:
        return
    if inside.stdout.strip() == "true" and ignored.returncode != 0:
        raise UsageError(
            f"{path} lies in a git tree that would take it in; results hold answers, so choose a path outside or one that git ignores"
        )


def plans(
    problems: Iterable[Problem], source: str, styles: Iterable[str] = STYLES, samples: int = 1, seed: int = 0
) -> list[Plan]:
    """Return what a run wants."""
    return [
        Plan(draw(problem, seed), style, sample, source)
        for problem in problems
        for style in styles
        for sample in range(samples)
    ]


def from_files(wanted: list[Plan], folder: Path) -> list[Given]:
    """Return the answers of files; a missing one is an empty answer."""
    answers = read_files(folder)
    return [
        Given(
            plan,
            answers.get(
                (plan.variant.id, plan.style, plan.sample), answers.get((plan.variant.id, "", plan.sample), "")
            ),
            {},
        )
        for plan in wanted
    ]


def from_references(wanted: list[Plan]) -> list[Given]:
    """Return the problems' own references as answers."""
    return [Given(plan, plan.variant.answer, {}) for plan in wanted]


def from_mutants(wanted: list[Plan]) -> list[Given]:
    """Return mutants as answers: sample number n is the n-th mutant."""
    chosen = []
    for plan in wanted:
        texts = [text for kind, _, text in answers_of(plan.variant) if kind == "mutant"]
        if texts:
            chosen.append(Given(plan, texts[plan.sample % len(texts)], {}))
    return chosen


def from_endpoint(wanted: list[Plan], endpoint: Endpoint, shots: list[tuple[str, str]] | None = None) -> list[Given]:
    """Ask an endpoint for the answers, several at once."""

    async def collect() -> list[Answer]:
        async with Client(endpoint) as client:
            return await asyncio.gather(
                *(client.ask(prompt(plan.variant, plan.style, shots), plan.sample) for plan in wanted)
            )

    answers = asyncio.run(collect())
    return [
        Given(
            plan, answer.text, {"prompt": answer.prompt_tokens, "answer": answer.answer_tokens}, endpoint.cost(answer)
        )
        for plan, answer in zip(wanted, answers, strict=True)
    ]


def test_answers(
    given: list[Given],
    results: ResultsFile,
    *,
    workers: int = 1,
    ray_address: str | None = None,
    on_result: Callable[[Result], None] | None = None,
) -> list[Result]:
    """Clean, measure and test answers that have no result yet; write each result as it comes. Return them all."""
    known = {result.key for result in results.results}
    todo = [item for item in given if item.plan.key not in known]
    cleaned = [clean(item.text, item.plan.variant.runner) for item in todo]
    references: dict[tuple[str, int], Reference] = {}
    for item in todo:
        variant = item.plan.variant
        references.setdefault((variant.id, variant.seed), Reference.parse(variant.reference))

    def done(finished: Done) -> None:
        item, (text, rule) = todo[finished.number], cleaned[finished.number]
        result = make_result(
            item, text, rule, references[(item.plan.variant.id, item.plan.variant.seed)], finished.verdict
        )
        results.add(result)
        if on_result:
            on_result(result)

    run_all(
        [Task(number, item.plan.variant, cleaned[number][0]) for number, item in enumerate(todo)],
        workers,
        ray_address,
        done,
    )
    return results.results


def make_result(item: Given, text: str, rule: str, reference: Reference, verdict: Verdict) -> Result:
    """Return the result of one answer."""
    variant = item.plan.variant
    return Result(
        problem=variant.id,
        group=variant.group,
        style=item.plan.style,
        seed=variant.seed,
        sample=item.plan.sample,
        source=item.plan.source,
        answer=text,
        cleaned_by=rule,
        answer_class=classify(text, variant.runner, reference, verdict.passed),
        metrics=measure(reference, text),
        verdict=verdict,
        tokens=item.tokens,
        cost=item.cost,
    )


test_answers.__test__ = False  # type: ignore[attr-defined]  # pytest must not take it for a test
