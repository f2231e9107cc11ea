"""A pipeline stage that is long because its hosts are held back: heat, a lower clock, threads without a core.

How a model is cut decides how much a stage computes, not at which clock. A stage has no peers of its own, but a clock
and the waiting for a core compare with those of any other stage.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.candidate import Candidate
from eroica.diagnosis.speed import host_fact
from eroica.diagnosis.view import View
from eroica.diagnosis.words import format_ms, name_workers
from eroica.model.shares import percent

#: Fact -> cause, and what is said of it, with the stage's value and the highest of the other stages'.
_FACTS: dict[str, tuple[str, str]] = {
    "gpu_slowed": (
        "compute-slow",
        "Heat, a power brake or the device itself held the clocks of its devices back {} of the time; elsewhere {}.",
    ),
    "run_queue_wait": ("cpu-contention", "Its training threads waited for a core {} of the time; elsewhere {}."),
}
#: Every worker of the stage is held back for so much more of the time than any worker of another stage.
_MORE = 0.1
#: And by a lower clock, at most this share of the lowest of the others'.
_LOWER_CLOCK = 0.85
#: What the stage takes longer than the others may be structure in part, but no more than this part. A device that has
#: most to do reaches its power limit first, and lowers its clock for that.
_DOUBT = 0.85
_LEAST_EXPLAINED = 0.5
_CAPPED = 0.1


def find_held_stage(view: View, longer: Candidate, own_W: NDArray[np.bool_], called: str) -> Candidate | None:
    """Accuse a stage of being held back, if it is and the others are not; None otherwise.

    Args:
        view: The window.
        longer: Candidate for the stage's time beyond the others.
        own_W: Workers that run the stage. bool [W].
        called: Name of the stage.
    """
    busy_us, others_us = longer.mean_us, longer.reference_us
    least = _LEAST_EXPLAINED * (busy_us - others_us) / max(busy_us, 1e-9)
    found = sorted((one for one in _held_by(view, own_W) if one[1] >= least), key=lambda one: -one[1])
    if not found:
        return None
    cause, share, _ = found[0]
    who = name_workers([view.fleet.ranks[worker] for worker in np.flatnonzero(own_W).tolist()])
    lost_WI = np.minimum(longer.removed_us, view.fleet.busy_us * share)
    return msgspec.structs.replace(
        longer,
        cause=cause,
        scope="some",
        workers=tuple(np.flatnonzero(own_W).tolist()),
        removed_us=lost_WI,
        evidence=(*longer.evidence, *(sentence for _, _, sentence in found)),
        sentence=(
            f"{called[0].upper()}{called[1:]} ({who}) is held back: it takes {format_ms(busy_us)} of each "
            f"{format_ms(view.iteration_us)} iteration, the others at most {format_ms(others_us)}. {found[0][2]}"
        ),
        doubt=_DOUBT,
    )


def _held_by(view: View, own_W: NDArray[np.bool_]) -> Iterator[tuple[str, float, str]]:
    """List causes, the share of its time that each takes from the stage, and sentences."""
    clock_W = host_fact(view.fleet, "gpu_sm_clock")
    capped_W = np.nan_to_num(host_fact(view.fleet, "gpu_power_capped"))
    if not np.isnan(clock_W).any() and float(capped_W[own_W].mean()) < _CAPPED:
        own, others = float(clock_W[own_W].max()), float(clock_W[~own_W].min())
        if own <= _LOWER_CLOCK * others:
            text = (
                f"Its devices run at {percent(own)} of their highest clock, those of the others at {percent(others)}."
            )
            yield "compute-slow", 1 - own / others, text
    for name, (cause, text) in _FACTS.items():
        fact_W = host_fact(view.fleet, name)
        if np.isnan(fact_W).any():
            continue
        own, others = float(fact_W[own_W].min()), float(fact_W[~own_W].max())
        if own >= others + _MORE:
            yield cause, own - others, text.format(percent(own), percent(others))
