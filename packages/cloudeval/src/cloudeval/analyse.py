"""What a set of results says: scores per source, pass@k, classes, how verdicts were reached, and prediction of the unit test."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from cloudeval.metrics import METRICS, pass_at_k
from cloudeval.records import RIGHT, UNJUDGED, Result


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
    tokens: dict[str, int] = field(default_factory=dict)
    cost: float = 0.0


def summarize(results: Iterable[Result]) -> list[Summary]:
    """Return one summary per source, the best first."""
    by_source: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        by_source[result.source].append(result)
    return sorted(
        (_summary(source, members) for source, members in by_source.items()), key=lambda item: -item.unit_test
    )


def _share(members: list[Result]) -> float:
    judged = [result for result in members if result.verdict.outcome != UNJUDGED]
    return sum(result.verdict.outcome == RIGHT for result in judged) / len(judged) if judged else 0.0


def _by(members: list[Result], field_name: str) -> dict[str, float]:
    parts: dict[str, list[Result]] = defaultdict(list)
    for result in members:
        parts[getattr(result, field_name)].append(result)
    return {name: _share(part) for name, part in sorted(parts.items())}


def _summary(source: str, members: list[Result]) -> Summary:
    judged = [result for result in members if result.verdict.outcome != UNJUDGED]
    tokens: Counter[str] = Counter()
    for result in members:
        tokens.update(result.tokens)
    return Summary(
        source=source,
        results=len(members),
        unjudged=len(members) - len(judged),
        unit_test=_share(members),
        metrics={name: sum(result.metrics[name] for result in members) / len(members) for name in METRICS},
        pass_at=_pass_at(judged),
        classes=dict(sorted(Counter(result.answer_class for result in members).items())),
        how=dict(Counter(result.verdict.how for result in members).most_common()),
        groups=_by(members, "group"),
        styles=_by(members, "style"),
        tokens=dict(tokens),
        cost=sum(result.cost for result in members),
    )


def _pass_at(judged: list[Result]) -> dict[int, float]:
    tries: dict[tuple[str, str, int], list[bool]] = defaultdict(list)
    for result in judged:
        tries[(result.problem, result.style, result.seed)].append(result.verdict.outcome == RIGHT)
    if not tries:
        return {}
    most = min(len(outcomes) for outcomes in tries.values())
    return {
        k: sum(pass_at_k(len(outcomes), sum(outcomes), k) for outcomes in tries.values()) / len(tries)
        for k in (1, 2, 3, 5, 10, 20)
        if k <= most
    }


def compare(results: list[Result], first: str, second: str) -> dict[str, Any]:
    """Return where two sources differ: problems that only one of them passes, and the difference of each figure."""
    ours = {result.key[1:]: result.verdict.outcome for result in results if result.source == first}
    theirs = {result.key[1:]: result.verdict.outcome for result in results if result.source == second}
    shared = sorted(ours.keys() & theirs.keys())
    names = {key: f"{key[0]}/{key[1]}" + (f" #{key[3]}" if key[3] else "") for key in shared}
    return {
        "answers": len(shared),
        first: sum(ours[key] == RIGHT for key in shared),
        second: sum(theirs[key] == RIGHT for key in shared),
        f"only {first}": [names[key] for key in shared if ours[key] == RIGHT != theirs[key]],
        f"only {second}": [names[key] for key in shared if theirs[key] == RIGHT != ours[key]],
    }


@dataclass(frozen=True)
class Prediction:
    """How well the cheap metrics predict the unit test, leaving one group out at a time."""

    auc: float
    auc_wildcard: float
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

    features = np.array([[metrics[name] for name in METRICS] for _, metrics, _ in rows])
    passed = np.array([outcome for _, _, outcome in rows], dtype=int)
    groups = np.array([group for group, _, _ in rows])
    predicted = np.zeros(len(rows))
    for group in np.unique(groups):
        rest = groups != group
        model = GradientBoostingClassifier(n_estimators=80, max_depth=3, random_state=0).fit(
            features[rest], passed[rest]
        )
        predicted[~rest] = model.predict_proba(features[~rest])[:, 1]
    rates = {
        str(group): (float(predicted[groups == group].mean()), float(passed[groups == group].mean()))
        for group in np.unique(groups)
    }
    bins = np.clip((predicted * 5).astype(int), 0, 4)
    return Prediction(
        auc=float(roc_auc_score(passed, predicted)),
        auc_wildcard=float(roc_auc_score(passed, features[:, METRICS.index("kv_wildcard")])),
        auc_by_metric={name: float(roc_auc_score(passed, features[:, index])) for index, name in enumerate(METRICS)},
        error=float(np.mean([abs(guess - truth) for guess, truth in rates.values()])),
        groups=rates,
        calibration=[
            (float(predicted[bins == n].mean()), float(passed[bins == n].mean()), int((bins == n).sum()))
            for n in range(5)
            if (bins == n).any()
        ],
    )
