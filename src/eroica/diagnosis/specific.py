"""One finding per problem: a cause that says what the code does stands for a general one that sees the same time."""

from __future__ import annotations

from collections.abc import Sequence

from eroica.diagnosis.candidate import Candidate

#: A specific cause must hold this share of the general one's time.
_MOST = 0.6
#: What each specific cause may stand for.
_STANDS_FOR: dict[str, frozenset[str]] = {
    "fragmented-collectives": frozenset({"slow-collective-everywhere"}),
    "link-fallback": frozenset({"slow-collective-everywhere"}),
    "memory-operation-storm": frozenset({"load-imbalance", "compute-slow"}),
    "host-device-sync": frozenset({"host-bound", "python-on-critical-path"}),
    "slow-storage-read": frozenset({"slow-data-loading", "python-on-critical-path"}),
    "blocking-checkpoint": frozenset({"python-on-critical-path"}),
    "blocking-logging": frozenset({"python-on-critical-path"}),
}
#: Causes for which a function has frames of others below it: its own lines beside them are not another problem, unless
#: they are the larger one.
_CALLING = frozenset({"blocking-checkpoint", "blocking-logging"})
#: Causes that differ only in what the named rows do.
_ALIKE = frozenset({"slow-data-loading", "slow-storage-read", "python-on-critical-path"})


def prefer_specific(candidates: Sequence[Candidate], known: Sequence[Candidate] = ()) -> list[Candidate]:
    """Drop general candidates that a specific one, among them or known already, accounts for."""
    specific = (*candidates, *known)
    kept = [one for one in candidates if not any(_stands_for(other, one) for other in specific)]
    return [one for at, one in enumerate(kept) if not any(_is_told_by(one, other) for other in kept[:at])]


def is_same_kind(one: str, two: str) -> bool:
    """True if two causes on the same rows would be one problem told twice."""
    return one == two or {one, two} <= _ALIKE


def _is_told_by(candidate: Candidate, earlier: Candidate) -> bool:
    """True if an earlier rule has measured the same rows of workers that rotate."""
    both_rotate = candidate.scope == earlier.scope == "rotating"
    return both_rotate and is_same_kind(candidate.cause, earlier.cause) and _share_rows(candidate, earlier)


def _is_rhythm_of(specific: Candidate, general: Candidate) -> bool:
    """True if one candidate tells the rhythm of the time that the other sees as a mean."""
    if specific.gain is None or general.gain is not None or not is_same_kind(specific.cause, general.cause):
        return False
    who = specific.scope == "rotating" or (specific.scope == general.scope and _overlap(specific, general))
    return who and _share_rows(specific, general)


def _stands_for(specific: Candidate, general: Candidate) -> bool:
    if _is_rhythm_of(specific, general):
        return True
    of_anybody = specific.scope == "rotating" and general.cause in specific.stands_for
    if not of_anybody and not _overlap(specific, general):
        return False
    if general.cause in specific.stands_for and not general.stands_for:
        return _holds_most(specific, general)
    if general.cause not in _STANDS_FOR.get(specific.cause, ()):
        return False
    if general.cause == "python-on-critical-path" and specific.cause == "host-device-sync":
        return _is_around(general, specific) and _holds_most(specific, general)
    if specific.cause in _CALLING:
        is_same = (specific.focus.name, specific.focus.place) == (general.focus.name, general.focus.place)
        return is_same and _holds_most(specific, general)
    if specific.cause == "slow-storage-read":
        return _share_rows(specific, general) and _holds_most(specific, general)
    return _holds_most(specific, general)


def _overlap(one: Candidate, two: Candidate) -> bool:
    return bool(set(one.workers) & set(two.workers))


def _share_rows(one: Candidate, two: Candidate) -> bool:
    return bool(set(one.functions) & set(two.functions))


def _holds_most(specific: Candidate, general: Candidate) -> bool:
    return float(specific.removed_us.sum()) >= _MOST * float(general.removed_us.sum())


def _is_around(general: Candidate, specific: Candidate) -> bool:
    """True if the named Python only calls what waits, or is no user's own: the gap after it is the wait's."""
    if not general.focus.is_own or not specific.focus.stack:
        return not general.focus.is_own
    return any(frame.startswith(f"{general.focus.name} (") for frame in specific.focus.stack)
