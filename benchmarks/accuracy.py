"""What the runs of `benchmarks/faults.py` say together: right and wrong, gains, confidence, time; pure functions.

Right means: verdict, cause, workers and scope are those of `injected.expected`. A run of a healthy job is right if no
window of it found a cause.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from eroica.demo.rehearsal import MIDDLE

Run = dict[str, Any]
#: Of a normal distribution's 95 % interval.
Z = 1.96
#: Lines of the training are printed after so many iterations; see `injected.training`.
LOG_EVERY = 50
BINS = ((0.0, 0.5), (0.5, 0.6), (0.6, 0.7), (0.7, 0.8), (0.8, 0.9), (0.9, 1.01))


class Kind(NamedTuple):
    """One of the root-cause classes by which the paper counts its hard cases (table 2).

    Attributes:
        cases: How many of those it counts there; they add up to 70.
        faults: Ours that are of its kind.
    """

    cases: int
    faults: tuple[str, ...]


#: What stands for what was decided by who would have to mend it: a machine's owner, who set the job up, who wrote it.
PAPERS_CLASSES = {
    "hardware: GPU": Kind(2, ("slow-compute",)),
    "hardware: CPU": Kind(2, ("burners", "memory-hog", "cpu-quota", "one-core", "pinned-cpu", "noisy-host")),
    "hardware: network": Kind(6, ("slow-link", "passing-slow-link", "slow-receive", "slow-send")),
    "configuration: PyTorch": Kind(4, ("anomaly-mode", "wrong-threads", "wrong-environment")),
    "configuration: communication": Kind(
        6, ("small-buckets", "serial-collectives", "tiny-collectives", "needless-sync")
    ),
    "configuration: data loader": Kind(5, ("few-loader-workers", "many-loader-workers", "slow-storage")),
    "user code": Kind(45, ()),
}
_USER_CODE = "user code"


class Share(NamedTuple):
    """So many of so many, and what that says of the probability behind it."""

    good: int
    total: int

    @property
    def value(self) -> float:
        """Its estimate; NaN of nothing."""
        return self.good / self.total if self.total else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's interval of 95 %."""
        if not self.total:
            return 0.0, 1.0
        share, total = self.value, self.total
        center = (share + Z * Z / (2 * total)) / (1 + Z * Z / total)
        half = Z / (1 + Z * Z / total) * math.sqrt(share * (1 - share) / total + Z * Z / (4 * total * total))
        return max(center - half, 0.0), min(center + half, 1.0)


class Bin(NamedTuple):
    """Verdicts of about the same confidence."""

    low: float
    high: float
    mean: float
    right: Share


def latest(lines: Iterable[Run]) -> list[Run]:
    """Runs by key, the last of each."""
    return list({line["key"]: line for line in in_order(lines)}.values())


def in_order(lines: Iterable[Run]) -> list[Run]:
    """All runs as they were made."""
    return sorted((line for line in lines if line["kind"] == "run"), key=lambda line: str(line["when"]))


def first_tries(lines: Iterable[Run]) -> list[Run]:
    """Runs by key, the first of each: made before anything was changed for them."""
    return list({line["key"]: line for line in reversed(in_order(lines))}.values())


def mended(lines: Iterable[Run]) -> list[tuple[Run, Run]]:
    """Runs that were wrong, each with the one of the same key made later, which was right."""
    runs = in_order(lines)
    last = {line["key"]: line for line in runs}
    first_wrong = {line["key"]: line for line in reversed(runs) if not line["right"]}
    pairs = ((wrong, last[key]) for key, wrong in sorted(first_wrong.items()) if last[key]["right"])
    return [(wrong, again) for wrong, again in pairs if wrong.get("revision") != again.get("revision")]


def windows(lines: Iterable[Run]) -> list[Run]:
    """Windows opened by hand on healthy jobs, the last of each key; "was" is what one said that was wrong before."""
    found: dict[str, Run] = {}
    for line in lines:
        if line["kind"] == "window":
            earlier = found.get(line["key"])
            was = None if earlier is None else earlier["said"] if not earlier["right"] else earlier["was"]
            found[line["key"]] = {**line, "was": was}
    return list(found.values())


def is_faulty(run: Run) -> bool:
    return run["expected"]["verdict"] != "healthy"


def share(runs: Sequence[Run], good: Callable[[Run], bool] = lambda run: bool(run["right"])) -> Share:
    return Share(sum(map(good, runs)), len(runs))


def by(runs: Iterable[Run], name: str) -> dict[str, list[Run]]:
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run[name], []).append(run)
    return groups


def papers_class(fault: str) -> str:
    """The class of `PAPERS_CLASSES` that a fault is of: user code where no other claims it."""
    return next((name for name, kind in PAPERS_CLASSES.items() if fault in kind.faults), _USER_CODE)


def by_papers_class(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Runs of each of the paper's classes, in its order; those that stand still are not counted there."""
    groups: dict[str, list[Run]] = {name: [] for name in PAPERS_CLASSES}
    for run in runs:
        if run["expected"]["verdict"] == "slow":
            groups[papers_class(run["fault"])].append(run)
    return groups


def weighted_share(groups: Mapping[str, Sequence[Run]]) -> float:
    """Share of right runs, each class weighted by its number of the paper's cases; NaN where one has no runs."""
    cases = sum(kind.cases for kind in PAPERS_CLASSES.values())
    return sum(PAPERS_CLASSES[name].cases * share(mine).value for name, mine in groups.items()) / cases


def true_gain(run: Run) -> float | None:
    """What the fault costs of an iteration, by what the training itself printed; None where that cannot be told.

    Of a fault that began in the middle the same job before it is compared, of one from the start the same job without
    it. Lines around the onset and around windows are kept out by taking medians.
    """
    paces = [float(pace) for pace in run.get("paces_ms", [])]
    if run["onset"] == "middle":
        first = run.get("calm_paces", MIDDLE // LOG_EVERY)
        before, after = paces[1:first], paces[first + 1 :]
        healthy = median(before)
    else:
        after = paces[1:]
        healthy = (run.get("healthy_iteration_s") or run.get("expected_iteration_s") or math.nan) * 1e3
    slow = median(after)
    return None if math.isnan(healthy) or math.isnan(slow) or slow <= 0 else max(1 - healthy / slow, 0.0)


def gain_errors(runs: Iterable[Run]) -> list[float]:
    """Error of each stated gain as a share of the true one, of verdicts that are right about a slow job."""
    errors = []
    for run in runs:
        stated, true = run["said"].get("gain"), true_gain(run)
        if run["right"] and run["expected"]["verdict"] == "slow" and stated is not None and true:
            errors.append(abs(stated - true) / true)
    return errors


def judged(runs: Iterable[Run]) -> list[tuple[float, bool]]:
    """Confidence and whether it was right, of every verdict that names a cause."""
    return [(run["said"]["confidence"], bool(run["right"])) for run in runs if "confidence" in run["said"]]


def brier(pairs: Sequence[tuple[float, bool]]) -> float:
    """Mean squared distance of confidence from what came true: 0 is perfect."""
    return sum((confidence - right) ** 2 for confidence, right in pairs) / len(pairs) if pairs else math.nan


def brier_of_a_constant(pairs: Sequence[tuple[float, bool]]) -> float:
    """The same for somebody who always states the share that comes true."""
    good = sum(right for _, right in pairs) / len(pairs) if pairs else math.nan
    return good * (1 - good)


def reliability(pairs: Sequence[tuple[float, bool]]) -> list[Bin]:
    """Verdicts by confidence; empty bins are left out."""
    bins = []
    for low, high in BINS:
        inside = [(confidence, right) for confidence, right in pairs if low <= confidence < high]
        if inside:
            mean = sum(confidence for confidence, _ in inside) / len(inside)
            bins.append(Bin(low, min(high, 1.0), mean, Share(sum(right for _, right in inside), len(inside))))
    return bins


def confusion(runs: Iterable[Run]) -> dict[str, Counter[str]]:
    """Fault -> what was said about it (cause, else the verdict's word), of faulty runs."""
    table: dict[str, Counter[str]] = {}
    for run in runs:
        if is_faulty(run):
            table.setdefault(run["fault"], Counter())[run["said"].get("cause", run["said"]["verdict"])] += 1
    return table


def median(values: Iterable[float | None]) -> float:
    known = sorted(value for value in values if value is not None)
    if not known:
        return math.nan
    half = len(known) // 2
    return known[half] if len(known) % 2 else (known[half - 1] + known[half]) / 2
