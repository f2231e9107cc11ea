"""How strong problems are: references and alternatives must pass, mutants must fail, and how each was decided."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from cloudeval.problems import Problem, answers_of, draw
from cloudeval.records import RIGHT, UNJUDGED, WRONG, Verdict
from cloudeval.workers import Task, run_all


@dataclass(frozen=True)
class Tested:
    """One text of a problem and its verdict."""

    problem: str
    group: str
    runner: str
    kind: str
    name: str
    text: str
    verdict: Verdict

    @property
    def as_expected(self) -> bool:
        """True for a mutant that fails, and for another text that passes."""
        return self.verdict.outcome == (WRONG if self.kind == "mutant" else RIGHT)


@dataclass(frozen=True)
class Strength:
    """The verdicts over all texts of some problems."""

    tested: list[Tested]
    exceptions: list[str] = field(default_factory=list)

    @property
    def unjudged(self) -> int:
        """How many texts could not be judged."""
        return sum(item.verdict.outcome == UNJUDGED for item in self.tested)

    def table(self) -> str:
        """Return counts by kind of text, and how mutants were killed."""
        lines = []
        for kind in ("reference", "alternative", "mutant"):
            members = [item for item in self.tested if item.kind == kind]
            good = sum(item.as_expected for item in members)
            how = Counter(item.verdict.how for item in members if item.as_expected)
            lines.append(
                f"{kind:12} {good}/{len(members)} {'killed' if kind == 'mutant' else 'pass'}: "
                + ", ".join(f"{count} by {name}" for name, count in how.most_common())
            )
        return "\n".join(lines)


def validate_problems(problems: list[Problem], seed: int = 0, workers: int = 1) -> Strength:
    """Task every text of some problems and return what was found, in the order of the problems."""
    variants = [draw(problem, seed) for problem in problems]
    texts = [(variant, kind, name, text) for variant in variants for kind, name, text in answers_of(variant)]
    done = run_all([Task(number, variant, text) for number, (variant, _, _, text) in enumerate(texts)], workers)
    tested = [
        Tested(variant.id, variant.group, variant.runner, kind, name, text, item.verdict)
        for (variant, kind, name, text), item in zip(texts, done, strict=True)
    ]
    exceptions = [
        f'{item.problem}: the {item.kind} "{item.name}" {"passes" if item.verdict.outcome == RIGHT else "is " + item.verdict.outcome}'
        f"{f' ({item.verdict.reason})' if item.verdict.reason else ''}"
        for item in tested
        if not item.as_expected
    ]
    exceptions += [
        f"{variant.id}: {len(variant.mutants)} mutants and {len(variant.alternatives)} alternatives; 5 and 2 are needed"
        for variant in variants
        if len(variant.mutants) < 5 or len(variant.alternatives) < 2
    ]
    return Strength(tested, exceptions)
