from __future__ import annotations

import msgspec

from eroica.compare import Run, compare
from eroica.compare.likeness import without_unlike
from support import FleetPlan, synthesize

PLAN = FleetPlan(workers=4, iterations=20, seed=9)


def test_python_is_not_compared_where_only_one_run_has_stacks() -> None:
    with_stacks = synthesize(PLAN, (), 1)
    without = [
        msgspec.structs.replace(p, functions=tuple(row for row in p.functions if not row.key.stack))
        for p in synthesize(PLAN, (), 2)
    ]
    comparison = compare(Run(name="a", patterns=without), Run(name="b", patterns=with_stacks))
    assert any("only the second run has Python stacks" in note for note in comparison.notes)
    assert not any(change.kind == "python" for change in comparison.changes)
    assert comparison.comparison == "equal"


def test_runs_that_show_the_same_are_compared_whole() -> None:
    patterns = synthesize(PLAN, (), 1)
    first, second, note = without_unlike(patterns, patterns)
    assert first is patterns and second is patterns and not note
