"""Workers that arrive late without a function that accounts for it."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.candidate import Candidate, FindingKind, Reference
from eroica.diagnosis.frames import NOTHING, Focus, is_whole_step, split_frame
from eroica.diagnosis.lateness import LEAST_AGREEMENT, LEAST_STRENGTH, accuse, late_roles, lateness_of
from eroica.diagnosis.view import View
from eroica.localize.excess import Excess, excess_over_baseline, excess_over_peers
from eroica.model.shares import percent

Floats = NDArray[np.float64]
#: Healthy workers on shared cores differ by 5-10 % in busy time, now and then by 30 %.
_BUSIER = 0.35
#: With more workers than cores, luck decides for seconds which worker gets a core.
_BUSIER_CROWDED = 1.0
#: Less of it where the workers took turns in the baseline window just the same.
_BUSIER_SINCE = 0.6
_LEAST_GAIN = 0.15
#: A resource is used otherwise if its mean differs by this share of the peers', in enough samples.
_OTHERWISE = 0.3
_ENOUGH_SAMPLES = 20


def find_unexplained(view: View, explained: set[int]) -> list[Candidate]:
    """Accuse workers far busier than their peers, who wait for them, and not accused of anything known.

    Without any, accuse roles far busier than in the baseline window, while others wait for them longer than in it: a
    pipeline stage of one worker has no peers.

    Args:
        view: The window.
        explained: Workers (indices) that a cause was found for.
    """
    busy_WI = view.fleet.busy_us
    excess = excess_over_peers(busy_WI, view.fleet.roles)  # few may just have faster hardware
    agreement_W = view.deficit_us / np.maximum(np.nan_to_num(excess.excess_us), 1e-9)
    late_W = _far_busier(view, excess, _BUSIER_CROWDED) & (agreement_W >= LEAST_AGREEMENT)
    late_W[list(explained)] = False
    if late_W.any():
        return [_candidate(view, late_W, excess, agreement_W, "peers")]
    if view.suspects.baseline is None or explained:
        return []
    excess = excess_over_baseline(busy_WI, view.busy_before())
    agreement_W = view.deficit_since_us / np.maximum(np.nan_to_num(excess.excess_us), 1e-9)
    return [
        _candidate(view, role_W, excess, agreement_W, "baseline")
        for role_W in late_roles(view, _far_busier(view, excess, _BUSIER_SINCE), agreement_W)
    ]


def _far_busier(view: View, excess: Excess, least_crowded: float) -> NDArray[np.bool_]:
    crowded_W = view.is_crowded & (not view.fleet.has_accelerator)
    least_W = np.where(crowded_W, least_crowded, _BUSIER) * np.nan_to_num(excess.reference_us, nan=np.inf)
    return np.asarray(
        (np.nan_to_num(excess.excess_us) >= least_W) & (excess.strength >= LEAST_STRENGTH), dtype=np.bool_
    )


def _candidate(
    view: View, late_W: NDArray[np.bool_], excess: Excess, agreement_W: Floats, reference: Reference
) -> Candidate:
    members = np.flatnonzero(late_W)
    usual_FW = view.suspects.peers_us if reference == "peers" else view.suspects.before_us
    over_F = np.nan_to_num(view.fleet.critical_us - usual_FW)[:, members].mean(axis=1)
    focus, kind = _focus(view, over_F)
    late = lateness_of(reference, excess, view.fleet.busy_us, late_W, agreement_W)
    covered = float(over_F[list(focus.functions)].sum()) / max(late.mean_us - late.reference_us, 1e-9)
    focus = msgspec.structs.replace(focus, share=float(np.clip(covered, 0.0, 1.0)) if focus.functions else 0.0)
    evidence = tuple(_hardware(view, members)) if reference == "peers" else ()
    return accuse(late, "unknown", kind, focus, focus.functions, max(_LEAST_GAIN, view.settings.min_gain), evidence)


def _hardware(view: View, members: NDArray[np.intp]) -> Iterator[str]:
    """Say where the late use their hardware otherwise than their peers, in functions that both run: no cause alone."""
    fleet = view.fleet
    mu_FW = np.where(fleet.pattern[:, :, 0] > view.settings.beta_gate, fleet.pattern[:, :, 1], np.nan)
    usual_FW = fleet.usual(mu_FW)
    for row in np.argsort(-fleet.critical_us[:, members].mean(axis=1), kind="stable"):
        seen = [one for worker in members if (one := fleet.row(int(row), int(worker))) is not None]
        own, usual = mu_FW[row, members], usual_FW[row, members]
        sampled = sum(one.resource_samples for one in seen) >= _ENOUGH_SAMPLES
        if not sampled or np.isnan(own).any() or np.isnan(usual).any():
            continue
        if abs(float(own.mean() - usual.mean())) >= max(view.settings.utilization_floor, _OTHERWISE * usual.mean()):
            yield (
                f"In {fleet.keys[row].name} {'its' if members.size == 1 else 'their'} use of {seen[0].resource} is "
                f"{percent(own.mean())}, that of the peers {percent(usual.mean())}: look at that hardware first."
            )
            return


def _focus(view: View, over_F: Floats) -> tuple[Focus, FindingKind]:
    """Find the row with the largest excess, collectives aside; "no function" where all time is idle."""
    keys = view.fleet.keys
    order = [int(at) for at in np.argsort(-over_F) if keys[at].kind != "collective" and over_F[at] > 0]
    if not order or is_whole_step(keys[order[0]].name):
        return NOTHING, "other"
    key = keys[order[0]]
    place = split_frame(key.stack[-1]).place if key.stack else ""
    focus = Focus(
        name=key.name, place=place, stack=key.stack, functions=(order[0],), share=0.0, is_own=False, is_specific=False
    )
    return focus, "other" if key.kind == "gc" else key.kind
