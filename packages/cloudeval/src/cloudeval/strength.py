"""Measures the strength of problems: references and alternatives must pass, and mutants must fail."""

from collections import Counter
from dataclasses import dataclass

from cloudeval.problems import Problem, Variant, answers_of, draw
from cloudeval.records import RIGHT, UNJUDGED, WRONG, Verdict
from cloudeval.workers import run_all


@dataclass(frozen=True)
class Tested:
    """One text of a problem and its verdict."""

    variant: Variant
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
    exceptions: list[str]

    @property
    def unjudged(self) -> int:
        """The number of texts that could not be judged."""
        return sum(item.verdict.outcome == UNJUDGED for item in self.tested)

    def table(self) -> str:
        """Return counts by kind of text, and how mutants were killed."""
        lines = []
        for kind, verb in (("reference", "pass"), ("alternative", "pass"), ("mutant", "killed")):
            good = [item for item in self.tested if item.kind == kind and item.as_expected]
            how = Counter(item.verdict.how for item in good).most_common()
            total = sum(item.kind == kind for item in self.tested)
            counts = ", ".join(f"{count} by {name}" for name, count in how)
            lines.append(f"{kind:12} {len(good)}/{total} {verb}: {counts}")
        return "\n".join(lines)


def validate_problems(problems: list[Problem], seed: int = 0, workers: int = 1) -> Strength:
    """Test every text of some problems. Return the verdicts in the order of the problems, and each exception in words."""
    variants = [draw(problem, seed) for problem in problems]
    texts = [(variant, *answer) for variant in variants for answer in answers_of(variant)]
    verdicts = run_all([(variant, text) for variant, _, _, text in texts], workers)
    tested = [Tested(*text, verdict) for text, verdict in zip(texts, verdicts, strict=True)]
    exceptions = []
    for item in tested:
        if not item.as_expected:
            outcome = "passes" if item.verdict.outcome == RIGHT else f"is {item.verdict.outcome}"
            reason = f" ({item.verdict.reason})" if item.verdict.reason else ""
            exceptions.append(f'{item.variant.id}: the {item.kind} "{item.name}" {outcome}{reason}')
    for variant in variants:
        mutants, alternatives = len(variant.mutants), len(variant.alternatives)
        if mutants < 5 or alternatives < 2:
            exceptions.append(f"{variant.id}: {mutants} mutants and {alternatives} alternatives; 5 and 2 are needed")
    return Strength(tested, exceptions)
