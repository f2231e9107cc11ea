"""Fit the gate of diagnosis on the corpus: which candidate causes are real.

    python benchmarks/fit_gate.py                # prints folds by program, and writes src/eroica/diagnosis/weights.json
    python benchmarks/fit_gate.py --dry-run      # prints only

Each window gives its named cause, and the candidates that a lenient search finds. A candidate is real if the verdict
with it alone would be right. Folds keep all windows of a program together.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from corpus_entry import entry_files, marks, read_entry
from corpus_judge import baselines
from eroica.diagnosis import gate, selection
from eroica.diagnosis.cells import reading_of
from eroica.diagnosis.findings import build_findings
from eroica.diagnosis.view import View, WindowContext
from eroica.diagnosis.wording import summarize_cause
from eroica.localize import localize
from eroica.model.verdict import Coverage, IterationTimes, Verdict
from eroica.settings import Settings

WEIGHTS = Path(__file__).resolve().parents[1] / "src" / "eroica" / "diagnosis" / "weights.json"
#: Standard errors of the lenient search, as a share of those asked for otherwise.
LENIENT = 0.34
FOLDS = 10
PENALTY = 3.0


class Row(NamedTuple):
    """One candidate: its program, window, features, whether it is real, and whether the verdict names it first."""

    program: str
    key: str
    is_healthy: bool
    features: dict[str, float]
    is_real: bool
    is_named: bool


def rows_of(path: Path) -> list[Row]:
    """Return the candidates of an entry's windows; standstills are left out."""
    entry, found = read_entry(path), []
    program = re.sub(r"-\d+$", "", entry.name)
    for one in entry.windows:
        if one.truth is None or one.blockage is not None:
            continue
        baseline, _ = baselines(entry, one)
        before = baseline.worker_patterns() if baseline is not None else ()
        patterns = one.worker_patterns()
        suspects = localize(patterns, before, Settings(), reading_of)
        context = WindowContext(job=entry.name, window=one.window, expected_workers=len(patterns))
        seen = set[tuple[Any, ...]]()
        for strictness in (1.0, LENIENT):
            view = View(suspects, context, Settings(), strictness)
            causes, weighed = selection.find_causes(view)
            for cause in (*causes, *(it.cause for it in weighed)):
                identity = cause.cause, cause.block.workers, cause.block.focus.label, cause.block.reference
                if identity in seen:
                    continue
                seen.add(identity)
                verdict = _verdict(view, cause)
                real = one.truth.verdict == "slow" and marks(verdict, one.truth).right
                is_named = bool(causes) and strictness == 1.0 and cause is causes[0]
                key, healthy = f"{entry.name}/{one.window.window_id}", one.truth.verdict == "healthy"
                found.append(Row(program, key, healthy, gate.features_of(view, cause), real, is_named))
    return found


def _verdict(view: View, cause: selection.Cause) -> Verdict:
    return Verdict(
        eroica_version="", job="", verdict="slow", summary=summarize_cause(view, cause), window=None,
        iteration=IterationTimes(), coverage=Coverage(workers_expected=0, workers_reported=0),
        findings=build_findings(view, [cause]),
    )  # fmt: skip


def fit(features: np.ndarray, real: np.ndarray) -> np.ndarray:
    """Return intercept and weights of a logistic model with an L2 penalty on standardized features. [1 + F]."""
    mean, spread = features.mean(axis=0), np.maximum(features.std(axis=0), 1e-6)
    x = np.hstack([np.ones((len(features), 1)), (features - mean) / spread])
    penalty, w = np.diag([1e-6, *[PENALTY] * features.shape[1]]), np.zeros(x.shape[1])
    for _ in range(50):
        p = 1 / (1 + np.exp(-x @ w))
        step = np.linalg.solve(x.T @ (x * (p * (1 - p))[:, None]) + penalty, x.T @ (real - p) - penalty @ w)
        w += step
        if np.abs(step).max() < 1e-8:
            break
    plain = w[1:] / spread
    return np.concatenate([[w[0] - float(plain @ mean)], plain])


def main() -> None:
    """Fit, print the folds, and write the weights."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dry-run", action="store_true")
    args = parser.parse_args()
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        rows = [row for some in pool.imap_unordered(rows_of, list(entry_files())) for row in some]
    rows.sort(key=lambda row: (row.key, sorted(row.features.items())))
    names = list(rows[0].features)
    features = np.array([[row.features[name] for name in names] for row in rows])
    real = np.array([float(row.is_real) for row in rows])
    programs = sorted({row.program for row in rows})
    np.random.default_rng(0).shuffle(programs)
    fold = {program: at % FOLDS for at, program in enumerate(programs)}
    fold_of = np.array([fold[row.program] for row in rows])
    told = np.zeros(len(rows))
    for at in range(FOLDS):
        w = fit(features[fold_of != at], real[fold_of != at])
        told[fold_of == at] = 1 / (1 + np.exp(-(features[fold_of == at] @ w[1:] + w[0])))
    first = np.array([row.is_named for row in rows])
    healthy = np.array([row.is_healthy for row in rows])
    print(f"{len(rows)} candidates, {int(real.sum())} real, {int(first.sum())} named first")
    print(f"Brier of those named, folds by program: {np.mean((told[first] - real[first]) ** 2):.4f}")
    for least in (0.0, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5):
        kept = first & (told >= least)
        right, alarms = int(real[kept].sum()), int((kept & healthy).sum())
        print(f"p >= {least:.2f}: {right} right, {int(kept.sum()) - right - alarms} wrong, {alarms} alarms")
    if not args.dry_run:
        w = fit(features, real)
        weights = {"intercept": [round(float(w[0]), 4), 1, 1]}
        for at, name in enumerate(names):
            column = features[:, at]
            weights[name] = [round(float(one), 4) for one in (w[1 + at], column.min(), column.max())]
        note = "Gate: weight, least and most of each feature. Fitted by benchmarks/fit_gate.py."
        WEIGHTS.write_text(json.dumps({"note": note, "weights": weights}, indent=1) + "\n")


if __name__ == "__main__":
    main()
