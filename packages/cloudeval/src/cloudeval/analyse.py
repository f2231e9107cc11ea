"""Figures of a set of results: scores per source, pass@k, classes, how verdicts were reached, prediction of the unit test."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from cloudeval.metrics import METRICS, pass_at_k
from cloudeval.records import UNJUDGED, Result

_KS = (1, 2, 3, 5, 10, 20)


@dataclass(frozen=True)
class Summary:
    """The figures of one source over its results. Unjudged answers count in no score."""

    source: str
    results: int
    unjudged: int
    unit_test: float
    metrics: dict[str, float]
    pass_at: dict[int, float]
    classes: dict[int, int]
    how: dict[str, int]
    groups: dict[str, float]
    styles: dict[str, float]
    tokens: dict[str, int]
    cost: float


def summarize(results: Iterable[Result]) -> list[Summary]:
    """Return one summary per source, the best first."""
    summaries = [_summary(*item) for item in _grouped(results, lambda result: result.source).items()]
    return sorted(summaries, key=lambda item: -item.unit_test)


def _grouped(results: Iterable[Result], key: Callable[[Result], Any]) -> dict[Any, list[Result]]:
    found: dict[Any, list[Result]] = defaultdict(list)
    for result in results:
        found[key(result)].append(result)
    return found


def _share(members: list[Result]) -> float:
    judged = [result.verdict.passed for result in members if result.verdict.outcome != UNJUDGED]
    return sum(judged) / len(judged) if judged else 0.0


def _summary(source: str, members: list[Result]) -> Summary:
    judged = [result for result in members if result.verdict.outcome != UNJUDGED]
    tokens = sum((Counter(result.tokens) for result in members), Counter[str]())
    groups, styles = _grouped(members, lambda result: result.group), _grouped(members, lambda result: result.style)
    return Summary(
        source=source,
        results=len(members),
        unjudged=len(members) - len(judged),
        unit_test=_share(members),
        metrics={name: sum(result.metrics[name] for result in members) / len(members) for name in METRICS},
        pass_at=_pass_at(judged),
        classes=dict(sorted(Counter(result.answer_class for result in members).items())),
        how=dict(Counter(result.verdict.how for result in members).most_common()),
        groups={name: _share(part) for name, part in sorted(groups.items())},
        styles={name: _share(part) for name, part in sorted(styles.items())},
        tokens=dict(tokens),
        cost=sum(result.cost for result in members),
    )


def _pass_at(judged: list[Result]) -> dict[int, float]:
    questions = _grouped(judged, lambda result: (result.problem, result.style, result.seed)).values()
    counts = [(len(tries), sum(result.verdict.passed for result in tries)) for tries in questions]
    most = min((samples for samples, _ in counts), default=0)
    return {k: sum(pass_at_k(*count, k) for count in counts) / len(counts) for k in _KS if k <= most}


def compare(results: list[Result], first: str, second: str) -> dict[str, Any]:
    """Return where two sources differ: problems that only one of them passes, and the difference of each figure."""
    passed = [{r.key[1:]: r.verdict.passed for r in results if r.source == source} for source in (first, second)]
    shared = sorted(passed[0].keys() & passed[1].keys())
    names = {key: f"{key[0]}/{key[1]}" + (f" #{key[3]}" if key[3] else "") for key in shared}
    found: dict[str, Any] = {"answers": len(shared)}
    for source, ours, theirs in ((first, passed[0], passed[1]), (second, passed[1], passed[0])):
        found[source] = sum(ours[key] for key in shared)
        found[f"only {source}"] = [names[key] for key in shared if ours[key] and not theirs[key]]
    return found


@dataclass(frozen=True)
class Prediction:
    """The quality of a prediction of the unit test from the cheap metrics, leaving one group out at a time."""

    auc: float
    auc_by_metric: dict[str, float]
    error: float
    calibration: list[tuple[float, float, int]]
    groups: dict[str, tuple[float, float]]


def predict(rows: list[tuple[str, dict[str, float], bool]]) -> Prediction:
    """Predict the unit test from the cheap metrics by gradient boosting.

    Args:
        rows: (group, metrics, passed) of each answer. Each group is predicted by a model of the other groups.

    Returns:
        Areas under the ROC curve, mean absolute error of the pass rate per group, and a calibration table of
        (mean prediction, share passed, answers).
    """
    import numpy as np
    from sklearn.ensemble import GradientBoostingClassifier
    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import LeaveOneGroupOut, cross_val_predict

    features = np.array([[metrics[name] for name in METRICS] for _, metrics, _ in rows])
    passed = np.array([outcome for _, _, outcome in rows], dtype=int)
    groups = np.array([group for group, _, _ in rows])
    model = GradientBoostingClassifier(n_estimators=80, max_depth=3, random_state=0)
    predicted = cross_val_predict(
        model, features, passed, groups=groups, cv=LeaveOneGroupOut(), method="predict_proba"
    )[:, 1]

    def means(chosen: Any) -> tuple[float, float]:
        return float(predicted[chosen].mean()), float(passed[chosen].mean())

    rates = {str(group): means(groups == group) for group in np.unique(groups)}
    bins = np.clip((predicted * 5).astype(int), 0, 4)
    return Prediction(
        auc=float(roc_auc_score(passed, predicted)),
        auc_by_metric={name: float(roc_auc_score(passed, features[:, index])) for index, name in enumerate(METRICS)},
        error=float(np.mean([abs(guess - truth) for guess, truth in rates.values()])),
        groups=rates,
        calibration=[(*means(bins == n), int((bins == n).sum())) for n in range(5) if (bins == n).any()],
    )
