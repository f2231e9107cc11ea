"""One change in words: the clause in the sentence of a comparison, and the text beside its numbers."""

from __future__ import annotations

from eroica.compare.changes import Change, uses_less
from eroica.model.shares import percent
from eroica.model.words import clean, milliseconds

_NOT_SAMPLED = "Utilization was not sampled: "


def predicate(change: Change) -> str:
    """Return what a function does differently: "takes 12.0 ms more, for more work"."""
    verb = "take" if len(change.functions) > 1 else "takes"
    by = milliseconds(abs(change.change_ms))
    return {
        "new": f"is new and takes {by}",
        "gone": f"is gone, which saves {by}",
        "more-work": f"{verb} {by} more, for more work",
        "less-work": f"{verb} {by} less, for less work",
        "outside-contention": f"{verb} {by} longer for the same work, as if something outside pushed in",
    }.get(change.reason, f"{verb} {by} {'longer' if change.change_ms > 0 else 'less'}")


def describe(change: Change, apart: bool) -> str:
    """Return one or two sentences: the counts, and what they mean; `apart`: waiting was told from the transfer."""
    before, after = map(milliseconds, change.time_ms)
    if change.reason == "new":
        return f"Not there before; takes {after} of each iteration now."
    if change.reason == "gone":
        return f"Took {before} of each iteration; not there any more."
    if change.reason == "waiting":
        longer = "Longer" if change.change_ms > 0 else "Shorter"
        if apart:
            return f"{longer} because members of the group arrive at different times; a symptom of the other changes."
        return f"{longer}; without the other members, waiting cannot be told from the transfer itself."
    return f"{_counts(change)} {_meaning(change)}".strip()


def _counts(change: Change) -> str:
    """Return executions and their length on both sides."""
    if not change.counted:
        return f"From {milliseconds(change.time_ms[0])} to {milliseconds(change.time_ms[1])} per iteration."
    before, after = change.count
    if min(before, after) <= 0:
        return ""
    number = f"{change.count_ratio:.2f} times as many executions ({before:.3g} → {after:.3g} per iteration)"
    if abs(change.count_ratio - 1) < 0.005:
        number = f"As many executions as before ({after:.3g} per iteration)"
    is_long = "each takes" if abs(change.length_ratio - 1) >= 0.02 else "each as long as before"
    return f"{number}, {is_long}{f' {change.length_ratio:.2f} times as long' if is_long == 'each takes' else ''}."


def _meaning(change: Change) -> str:
    use = ""
    if None not in change.mu:
        before, after = (percent(mu or 0.0) for mu in change.mu)
        use = f"Use of {clean(change.resource, 24) or 'its resource'} {before} before, {after} now. "
    if change.reason != "slower":
        return {
            "more-work": "More work.",
            "less-work": "Less work.",
            "faster": f"{use}The same work takes less time.",
            "outside-contention": f"{use}Equal counts and equal utilization: if batch size and inputs did not change, "
            "another process on these devices pushes them aside.",
        }[change.reason]
    kind, less = change.key.kind, uses_less(change)
    if change.counted and change.length_ratio <= 1.02:
        return f"{use}As much work as before, but less of it is hidden behind other work."
    if kind == "collective":
        return "Beyond waiting for its members: a slower link, or more data in each."
    if less is None and kind in ("compute", "memory"):
        return f"{_NOT_SAMPLED}slower hardware, larger inputs and other processes cannot be told apart."
    if less is None:
        return f"{_NOT_SAMPLED}whether it does more, waits or is pushed aside cannot be told."
    if less and change.resource == "cpu":
        return f"{use}The same work at lower utilization: it waits for something, or other processes take its cores."
    if less:
        return f"{use}The same work at lower utilization: slower hardware, or it waits for something."
    if kind == "python":
        return f"{use}Its own code takes longer: more is done in it, or the same in a slower way."
    return f"{use}Other operators are as fast as before: its inputs or its implementation changed."
