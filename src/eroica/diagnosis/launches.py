"""Rows of hosts that launch kernels while their devices have no work (`summarize.launching`)."""

from __future__ import annotations

from eroica.diagnosis.view import View
from eroica.localize.fleet import Fleet
from eroica.model.pattern import LAUNCHING, Phase


def launching_rows(fleet: Fleet, phase: Phase | None = None) -> list[int]:
    """Rows of the host that launches while its device has no work; of one part of the iteration, or of all."""
    found = (at for at, key in enumerate(fleet.keys) if key.kind == "other" and key.name == LAUNCHING)
    return [at for at in found if phase is None or fleet.keys[at].phase == phase]


def launching_share(view: View) -> float:
    """Share of the iteration in which devices wait for the next launch, mean over the workers, 0-1."""
    rows = launching_rows(view.fleet)
    return float(view.fleet.critical_us[rows].sum(axis=0).mean()) / max(view.iteration_us, 1e-9) if rows else 0.0
