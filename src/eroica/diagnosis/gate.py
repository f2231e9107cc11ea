"""The gate: the probability that a cause is real, from a logistic model of its features.

`weights.json` holds the model: `benchmarks/fit_gate.py` fits it on the corpus, with folds by program. The gate finds
nothing and labels nothing. It replaces a threshold, a margin and a factor of confidence for each doubt.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

import msgspec
import numpy as np

from eroica.diagnosis.recordings import recorded_probability
from eroica.diagnosis.selection import Cause, Weighed, growth_of, settle_gains
from eroica.diagnosis.view import View
from eroica.model.shares import percent

#: A cause below this probability is not named: more would be lost than alarms are saved.
LEAST = 0.25
_CELLS = ("python", "input", "operators", "memory", "collections", "launches", "collectives", "process")


def features_of(view: View, cause: Cause) -> dict[str, float]:
    """Return what the model reads of a cause: shares of the iteration, and logarithms of counts and ratios."""
    block, iteration_us = cause.block, max(view.iteration_us, 1e-9)
    inside, told = growth_of(view)
    past, loss = view.suspects.baseline, view.loss
    removed_I = block.removed_us.sum(axis=0)
    found = {
        "gain": math.log1p(max(cause.gain, 0.0)),
        "excess": math.log1p(max(block.excess_us / iteration_us, 0.0)),
        "ratio": math.log1p(block.mean_us / max(block.reference_us, 1e-3 * iteration_us)),
        "strength": math.log1p(max(block.strength, 0.0)),
        "agreement": -1.0 if block.agreement is None or math.isnan(block.agreement) else block.agreement,
        "focus": block.focus.share,
        "own": float(block.focus.is_own),
        "specific": float(block.focus.is_specific),
        "against_peers": float(block.reference == "peers"),
        "against_limit": float(block.reference == "expectation"),
        "some": float(block.scope == "some"),
        "rotating": float(block.scope == "rotating"),
        "surely_awaited": float((block.agreement or 0.0) >= 0.8 and block.strength >= 10),
        "iterations": math.log1p(view.iterations),
        "baseline_iterations": math.log1p(past.iteration_us.shape[1] if past is not None else 0),
        "has_baseline": float(past is not None),
        "slow": float(view.is_slow),
        "asked_for_slowness": float(view.context.window.purpose == "slow"),
        "baseline_window": float(view.context.window.purpose in ("baseline", "early")),
        "grown": inside,
        "told": told,
        "explained": min(cause.gain / max(inside, 0.05), 2.0) if view.is_slow else 0.0,
        "beyond_noise": float(np.clip(loss.beyond / iteration_us, -1.0, 1.0)) if loss is not None else 0.0,
        "accelerator": float(view.fleet.has_accelerator),
        "core": 0.5 if math.isnan(block.facts.core) else block.facts.core,
        "held": block.facts.held,
        "queued": block.facts.queued,
        "every": math.log1p(block.facts.every - 1),
        "caller": float(block.facts.caller is not None),
        "culprit": float(block.culprit is not None),
        "spread": float(view.fleet.iteration_us.mean(axis=0).std() / iteration_us),
        "spread_of_excess": math.log1p(float(removed_I.std() / max(float(removed_I.mean()), 1e-9))),
    }
    return found | {f"cell_{cell}": float(block.cell == cell) for cell in _CELLS}


@cache
def _model() -> dict[str, tuple[float, float, float]]:
    """Return the weight of each feature, and the least and the most of it that the model was fitted on."""
    text = files("eroica.diagnosis").joinpath("weights.json").read_text(encoding="utf-8")
    return {name: (float(row[0]), float(row[1]), float(row[2])) for name, row in json.loads(text)["weights"].items()}


def admit(view: View, causes: Sequence[Cause]) -> tuple[list[Cause], list[Weighed]]:
    """Return the causes with their probabilities, and what is withheld because none is probable enough.

    Beside a probable cause, one that is not is told with what it gains by itself, and takes nothing from the first. A
    recording is short, and the corpus holds none: its causes are never withheld.
    """
    known = [msgspec.structs.replace(one, probability=probability(view, one)) for one in causes]
    if view.is_trace:
        return known, []
    probable = [one for one in known if one.probability >= LEAST]
    if probable:
        return [*settle_gains(view, probable), *(one for one in known if one.probability < LEAST)], []
    why = "its probability is {}, and causes are named from {} on"
    return [], [Weighed(cause=one, decision=why.format(percent(one.probability), percent(LEAST))) for one in known]


def probability(view: View, cause: Cause) -> float:
    """Return the probability that a cause is real and named rightly, 0-1.

    Features count up to the range that the model was fitted on: jobs of thousands of workers are beyond it.
    """
    doubt = cause.block.culprit.doubt if cause.block.culprit is not None else 1.0
    if view.is_trace:
        return recorded_probability(view, cause.block) * doubt
    model = _model()
    score = model["intercept"][0]
    for name, value in features_of(view, cause).items():
        weight, low, high = model.get(name, (0.0, 0.0, 0.0))
        score += weight * min(max(value, low), high)
    return min(1 / (1 + math.exp(-score)), 0.99) * doubt
