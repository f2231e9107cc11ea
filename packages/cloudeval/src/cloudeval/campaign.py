"""A run: answers are collected, cleaned, measured, tested by workers, and written to a results file one by one.

A results file is JSON lines. A run that was stopped goes on where it was: whole lines are kept, a half-written last line
is dropped, and only missing results are made.
"""

import asyncio
import contextlib
import os
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from cloudeval.cleaning import clean
from cloudeval.errors import UsageError
from cloudeval.match import Reference
from cloudeval.metrics import classify, measure
from cloudeval.models import Answer, Client, Endpoint, read_files
from cloudeval.problems import STYLES, Problem, Variant, answers_of, draw
from cloudeval.records import Key, Result, Verdict
from cloudeval.workers import run_all

_TEMPLATE = {
    "full": "You are an expert in cloud configuration. Answer with the complete YAML only, without explanation.",
    "terse": "Reply with the YAML only.",
    "chinese": "你是云配置专家。只用完整的 YAML 回答，不要解释。",
}


@dataclass(frozen=True)
class Given:
    """One answer that a run wants: of which problem, in which style, which sample; then its text and what it cost."""

    variant: Variant
    style: str
    sample: int
    source: str
    text: str = ""
    tokens: dict[str, int] = field(default_factory=dict)
    cost: float = 0.0

    @property
    def key(self) -> Key:
        """The key of its result."""
        return (self.source, self.variant.id, self.style, self.variant.seed, self.sample)


class ResultsFile:
    """A results file that is appended to, one flushed line per result."""

    def __init__(self, path: Path) -> None:
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
    found: dict[Key, Result] = {}
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; run `cloudeval run` first") from error
    for line in lines:
        with contextlib.suppress(msgspec.DecodeError):
            result = msgspec.json.decode(line, type=Result)
            found.setdefault(result.key, result)
    return list(found.values())


def _refuse_leak(path: Path) -> None:
    """Refuse to write answers below a git tree that would take them in: answers and problems must not reach training data."""
    folder = next(parent for parent in path.absolute().parents if parent.exists())

    def git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, check=False)

    with contextlib.suppress(FileNotFoundError):
        inside = git("rev-parse", "--is-inside-work-tree").stdout.strip() == b"true"
        if inside and git("check-ignore", "-q", str(path.absolute())).returncode != 0:
            why = "results hold answers, so choose a path outside or one that git ignores"
            raise UsageError(f"{path} lies in a git tree that would take it in; {why}")


def plans(
    problems: Iterable[Problem], source: str, styles: Iterable[str] = STYLES, samples: int = 1, seed: int = 0
) -> list[Given]:
    """Return one wanted answer per problem, style and sample."""
    variants = [draw(problem, seed) for problem in problems]
    return [Given(variant, style, n, source) for variant in variants for style in styles for n in range(samples)]


def from_files(wanted: list[Given], folder: Path) -> list[Given]:
    """Return the answers of files; a missing one is an empty answer."""
    answers = read_files(folder)
    keys = [((plan.variant.id, plan.style, plan.sample), (plan.variant.id, "", plan.sample)) for plan in wanted]
    texts = [answers.get(own, answers.get(of_any_style, "")) for own, of_any_style in keys]
    return [replace(plan, text=text) for plan, text in zip(wanted, texts, strict=True)]


def from_problems(wanted: list[Given], kind: str) -> list[Given]:
    """Return the problems' own `reference` or `mutant` texts as answers: sample number n is the n-th mutant."""
    texts = [[text for own, _, text in answers_of(plan.variant) if own == kind] for plan in wanted]
    return [replace(plan, text=own[plan.sample % len(own)]) for plan, own in zip(wanted, texts, strict=True) if own]


def prompt(variant: Variant, style: str) -> str:
    """Return the prompt for a problem in one of the three styles."""
    context = [f"```yaml\n{variant.context.strip()}\n```"] if variant.context else []
    return "\n\n".join([_TEMPLATE[style], variant.questions[style], *context])


def from_endpoint(wanted: list[Given], endpoint: Endpoint) -> list[Given]:
    """Ask an endpoint for the answers, several at once."""

    async def collect() -> list[Answer]:
        async with Client(endpoint) as client:
            asked = (client.ask(prompt(plan.variant, plan.style), plan.sample) for plan in wanted)
            return await asyncio.gather(*asked)

    found = []
    for plan, got in zip(wanted, asyncio.run(collect()), strict=True):
        tokens = {"prompt": got.prompt_tokens, "answer": got.answer_tokens}
        found.append(replace(plan, text=got.text, tokens=tokens, cost=endpoint.cost(got)))
    return found


def run_answers(
    given: list[Given],
    results: ResultsFile,
    *,
    workers: int = 1,
    ray_address: str | None = None,
    on_result: Callable[[Result], None] | None = None,
) -> list[Result]:
    """Clean, measure and test answers that have no result yet; write each result as it comes. Return them all."""
    known = {result.key for result in results.results}
    todo = [item for item in given if item.key not in known]
    cleaned = [clean(item.text, item.variant.runner) for item in todo]
    references = {text: Reference.parse(text) for text in {item.variant.reference for item in todo}}

    def done(number: int, verdict: Verdict) -> None:
        item = todo[number]
        result = make_result(item, *cleaned[number], references[item.variant.reference], verdict)
        results.add(result)
        if on_result:
            on_result(result)

    tests = [(item.variant, text) for item, (text, _) in zip(todo, cleaned, strict=True)]
    run_all(tests, workers, ray_address, done)
    return results.results


def make_result(item: Given, text: str, rule: str, reference: Reference, verdict: Verdict) -> Result:
    """Return the result of one answer."""
    variant = item.variant
    return Result(
        problem=variant.id,
        group=variant.group,
        style=item.style,
        seed=variant.seed,
        sample=item.sample,
        source=item.source,
        answer=text,
        cleaned_by=rule,
        answer_class=classify(text, variant.runner, reference, verdict.passed),
        metrics=measure(reference, text),
        verdict=verdict,
        tokens=item.tokens,
        cost=item.cost,
    )
