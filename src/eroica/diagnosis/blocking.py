"""Saving and logging that training waits for, in every iteration or every so many.

What happens every tenth iteration is no noise around a mean, and the slowest iterations, which other rules leave out as
one-offs, are what it is about. So this rule looks at all captured iterations, counts occasions, and adds up what they
cost. One occasion in a long window says nothing about how often it comes: a checkpoint every few hundred iterations is
healthy. Known by the frames of libraries that save and log (`activities`); pauses in other code are `pauses`.
"""

from __future__ import annotations

from collections.abc import Iterator

from eroica.diagnosis.activities import Activity, activity_of
from eroica.diagnosis.candidate import Candidate
from eroica.diagnosis.frames import find_focus
from eroica.diagnosis.lateness import LEAST_AGREEMENT
from eroica.diagnosis.occasions import agreement_of, candidate_of, find_occasions, may_be_older
from eroica.diagnosis.view import View
from eroica.model.pattern import BESIDE_INPUT

CAUSES: dict[Activity, tuple[str, str]] = {
    "save": ("blocking-checkpoint", "saving state to storage"),
    "log": ("blocking-logging", "logging"),
}
_PHASES = frozenset(BESIDE_INPUT)


def find_blocking(view: View) -> list[Candidate]:
    """Accuse checkpoints and logging that cost at least `min_gain` of the window."""
    return [found for activity in CAUSES for found in _of_activity(view, activity)]


def _of_activity(view: View, activity: Activity) -> Iterator[Candidate]:
    rows = [
        row
        for row in view.rows(kinds=frozenset({"python"}), phases=_PHASES)
        if activity_of(view.fleet.keys[row].stack) == activity
    ]
    least = view.settings.min_gain * view.iteration_us
    if not rows or float(view.fleet.critical_us[rows].sum(axis=0).max()) < least:
        return
    found = find_occasions(view, tuple(rows))
    if found is None or may_be_older(view, found):
        return
    agreement = agreement_of(found)
    if agreement is not None and agreement < LEAST_AGREEMENT:
        return
    time_R = found.fleet.critical_us[rows][:, found.accused].mean(axis=1)
    focus = find_focus(found.fleet.keys, rows, time_R, time_R)
    if focus is not None:
        yield candidate_of(view, CAUSES[activity], found, focus, agreement)
