"""Why this cause and no other: everything that was considered, with what speaks for it and against it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from eroica.model.shares import percent
from eroica.model.verdict import NAMED, NO_FUNCTION, UNMEASURED, Hypothesis, Verdict
from eroica.report.words import clean, sentence, worker_list

_NEAREST = 2
_NOTHING = "Nothing else was considered: no rule saw an excess that could be a cause."


def build_why(verdict: Verdict) -> list[RenderableType]:
    """All hypotheses of a verdict, one after another."""
    if not verdict.considered:
        return [Text(), Text(_NOTHING, style="dim")]
    parts: list[RenderableType] = [Text(), Text("Considered", style="bold")]
    for one in verdict.considered:
        parts += [_hypothesis(one)]
    return parts


def build_nearest(verdict: Verdict) -> list[RenderableType]:
    """Of an undetermined verdict the nearest explanations, and what would settle them; else nothing."""
    nearest = nearest_of(verdict)
    if not nearest:
        return []
    lines = [Padding(Text(line, style="dim"), (0, 0, 0, 3)) for line in map(describe_nearest, nearest)]
    return [Text(), Text("Nearest explanations", style="dim"), *lines]


def nearest_of(verdict: Verdict) -> Sequence[Hypothesis]:
    """The two best hypotheses of an undetermined verdict; none of others.

    Those that would gain most, then those whose gain nobody can know yet.
    """
    if verdict.verdict != "undetermined":
        return ()
    known = [one for one in verdict.considered if one.gain and one.decision != NAMED]
    return [*known, *(one for one in verdict.considered if one.decision == UNMEASURED)][:_NEAREST]


def describe_nearest(one: Hypothesis) -> str:
    """One line: what, on whom, what it would gain, and what would settle it."""
    settle = [*one.missing, *one.unknown] or [one.decision]
    return f"{describe(one)}: not named, as {clean('; '.join(settle), 200)}"


def describe(one: Hypothesis) -> str:
    """One clause: the cause, its function, on whom, and what it would gain."""
    where = "" if one.function == NO_FUNCTION else f" in {clean(one.function, 80)}"
    whom = {"all": "all workers", "rotating": "one worker after another"}.get(one.scope) or worker_list(one.workers)
    gain = "" if one.gain is None else f", {percent(one.gain)} of the iteration"
    return f"{clean(one.cause, 60)}{where} on {whom}{gain}"


def fate(one: Hypothesis) -> str:
    """One clause: what became of it, and why."""
    return f"{one.decision}: {one.why}" if one.why else one.decision


def signs_of(one: Hypothesis) -> Iterator[tuple[str, str]]:
    """Mark and text of each sign: + met, - missing, ? unknown."""
    for mark, signs in (("+", one.met), ("-", one.missing), ("?", one.unknown)):
        for sign in signs:
            yield mark, clean(sign, 200)


def _hypothesis(one: Hypothesis) -> RenderableType:
    named = one.decision == NAMED
    title = Text(describe(one), style="bold" if named else "")
    title.append(f": {sentence(fate(one))}", style="green" if named else "dim")
    table = Table.grid(padding=(0, 1), expand=True)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(ratio=1, overflow="fold")
    for mark, text in signs_of(one):
        table.add_row(mark, Text(text, style="dim"))
    return Group(Padding(title, (0, 0, 0, 3)), Padding(table, (0, 0, 0, 6)))
