"""Score predictions walk-forward on a labelled history, with baselines beside them. Nothing is ever shuffled."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np

from verici.features import COARSE, VALUES, values_of
from verici.learner import Builds, Forecast, Options, Teacher, choose, fix_of, is_hit, prepare, walk_forward
from verici.model import History, Key

#: Builds after which the metadata baseline is fitted anew: it is slower than the tree.
_METADATA_REFIT = 25


class Score(msgspec.Struct, frozen=True):
    """Counts and rates of one way to predict; rates are NaN where nothing can be divided.

    `first` counts failures that follow a pass. `hits` is the share of true alarms that name a constant which the fix
    changed, `chance` the same for random constants of the failing commit, `keywords` the mean length of a message.
    """

    name: str
    tp: int
    fp: int
    tn: int
    fn: int
    pr_auc: float
    first: int
    first_found: int
    hits: float = float("nan")
    chance: float = float("nan")
    keywords: float = float("nan")

    @property
    def rates(self) -> tuple[float, float, float, float]:
        """Return accuracy, precision, recall and F1."""
        count = self.tp + self.tn + self.fp + self.fn
        precision, recall = _ratio(self.tp, self.tp + self.fp), _ratio(self.tp, self.tp + self.fn)
        f1 = _ratio(2 * self.tp, 2 * self.tp + self.fp + self.fn)
        return _ratio(self.tp + self.tn, count), precision, recall, f1


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else float("nan")


def score(name: str, builds: Builds, forecasts: Sequence[Forecast]) -> Score:
    """Return the score of forecasts; those without conditions have no messages to score."""
    from sklearn.metrics import average_precision_score

    failed = np.array([one.failed for one in forecasts], dtype=bool)
    fails = np.array([one.fails for one in forecasts], dtype=bool)
    after_failure = {later for earlier, later in builds.edges if builds.failed_N[earlier]}
    first = [one for one in forecasts if one.failed and one.row not in after_failure]
    true = [one for one in forecasts if one.fails and one.failed and one.conditions]
    judged = [(one, fix) for one in true if (fix := fix_of(builds, one.row)) is not None]
    hits = [is_hit(builds.history, one.keys, one.row, fix) for one, fix in judged]
    chance = [is_hit(builds.history, random_keys(builds, one), one.row, fix) for one, fix in judged]
    tp, fp, fn = int((fails & failed).sum()), int((fails & ~failed).sum()), int((~fails & failed).sum())
    area = average_precision_score(failed, [one.risk for one in forecasts]) if failed.any() else float("nan")
    keywords = _ratio(sum(len(one.conditions) for one in true), len(true))
    return Score(
        name, tp, fp, len(forecasts) - tp - fp - fn, fn, float(area), len(first),
        sum(one.fails for one in first), _ratio(sum(hits), len(hits)), _ratio(sum(chance), len(chance)), keywords,
    )  # fmt: skip


def random_keys(builds: Builds, forecast: Forecast) -> list[Key]:
    """Return as many random constants as the message named, out of those that changed in the failing commit."""
    commits, constants = builds.history.commits, builds.history.constants
    before = next((earlier for earlier, later in builds.edges if later == forecast.row), forecast.row)
    old, new = values_of(commits[before], constants), values_of(commits[forecast.row], constants)
    changed = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key)) or sorted(new)
    return random.Random(forecast.row).sample(changed, min(len(forecast.keys), len(changed)))


def majority(builds: Builds, start: float = 0.5) -> list[Forecast]:
    """Predict the more frequent result of the past."""
    failed = builds.failed_N[builds.rows]
    return _forecasts(builds, start, lambda number: float(failed[:number].mean()))


def _forecasts(builds: Builds, start: float, risk_of: Callable[[int], float]) -> list[Forecast]:
    """Return a forecast of each build from the share `start` on; `risk_of` takes its number among the rows."""
    numbers = range(int(len(builds.rows) * start), len(builds.rows))
    risks = [(int(builds.rows[number]), risk_of(number)) for number in numbers]
    return [Forecast(row, risk > 0.5, risk, bool(builds.failed_N[row])) for row, risk in risks]


def metadata(builds: Builds, start: float = 0.5) -> list[Forecast]:
    """Predict by gradient boosting on author, size, hour, merge, previous result and share of the last ten failures."""
    from sklearn.ensemble import GradientBoostingClassifier

    facts, failed = _facts(builds), builds.failed_N[builds.rows]

    @functools.cache
    def fitted(count: int) -> GradientBoostingClassifier:
        return GradientBoostingClassifier(n_estimators=30, random_state=0).fit(facts[:count], failed[:count])

    def risk_of(number: int) -> float:
        count = max(number - number % _METADATA_REFIT, int(len(failed) * start))
        if not 0 < failed[:count].sum() < count:
            return float(failed[:number].mean())
        return float(fitted(count).predict_proba(facts[number : number + 1])[0, 1])

    return _forecasts(builds, start, risk_of)


def _facts(builds: Builds) -> np.ndarray:
    authors: dict[str, int] = {}
    rows: list[list[float]] = []
    before = {later: earlier for earlier, later in builds.edges}
    for number, row in enumerate(builds.rows):
        commit = builds.history.commits[row]
        previous = before.get(int(row))
        old = builds.history.commits[previous].files if previous is not None else {}
        changed = len(set(old.items()) ^ set(commit.files.items()))
        recent = builds.failed_N[builds.rows[max(0, number - 10) : number]]
        rows.append([
            authors.setdefault(commit.author, len(authors)), changed, commit.time // 3600 % 24, len(commit.parents),
            len(commit.message), float(builds.failed_N[previous]) if previous is not None else 0.0,
            float(recent.mean()) if len(recent) else 0.0,
        ])  # fmt: skip
    return np.array(rows)


def evaluate(history: History, failed: Mapping[str, bool]) -> list[Score]:
    """Return the scores of this package's ways to predict on the second half of a history, and of the baselines.

    Raises:
        NotEnoughHistory: There are too few labelled builds.
    """
    builds = prepare(history, failed)
    builds.require_enough()
    teacher = Teacher(builds)
    chosen = choose(teacher, len(builds.rows) // 2)
    name = f"chosen by the past: {chosen.learner}, {'with' if chosen.relabel else 'without'} relabelling"
    ways = {
        name: chosen,
        "evidence, with relabelling": Options("evidence", True),
        "evidence, without relabelling": Options("evidence", False),
        "evidence, without pairs": Options("evidence", False, (COARSE, VALUES)),
        "paper, with relabelling": Options("paper", True, (COARSE, VALUES), False),
        "paper, without relabelling": Options("paper", False, (COARSE, VALUES), False),
    }
    found = {title: walk_forward(teacher, options) for title, options in ways.items()}
    found |= {"majority": majority(builds), "metadata": metadata(builds)}
    return [score(title, builds, forecasts) for title, forecasts in found.items()]


def table_of(scores: Sequence[Score]) -> str:
    """Return the scores as a table."""
    lines = [f"{'':50} accuracy precision recall   F1  PR-AUC  first  alarms  named (chance) keywords"]
    for one in scores:
        accuracy, precision, recall, f1 = one.rates
        rates = f"{accuracy:8.3f} {precision:9.3f} {recall:6.3f} {f1:5.3f} {one.pr_auc:6.3f}"
        first = f"{one.first_found}/{one.first}"
        alarms = f"{_ratio(one.fp, one.fp + one.tn):7.1%}"
        named = f"{one.hits:.2f} ({one.chance:.2f})" if one.hits == one.hits else "-"
        words = f"{one.keywords:.1f}" if one.keywords == one.keywords else "-"
        lines.append(f"{one.name:50} {rates} {first:>6} {alarms}  {named:>12} {words:>8}")
    lines.append(
        "first: failures that follow a pass, predicted/all. alarms: share of passing builds. Second half, walk-forward."
    )
    return "\n".join(lines)
