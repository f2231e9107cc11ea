"""Relabelling against a slow twin that is written from the definition."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some

from verici.relabel import consecutive, relabel


def slow_relabel(failed: dict[str, bool], edges: list[tuple[str, str]], summaries: dict[str, int]) -> dict[str, bool]:
    """Apply both rules of the paper to every pair of consecutive states until nothing changes."""
    labels = dict(failed)
    while True:
        before = dict(labels)
        for t, after in edges:
            if summaries[t] == summaries[after]:
                if not labels[t] and labels[after]:  # PF
                    labels[after] = False
                if labels[t] and not labels[after]:  # FP
                    labels[t] = False
        if labels == before:
            return labels


@some.composite
def histories(draw: some.DrawFn) -> tuple[dict[str, bool], list[tuple[str, str]], dict[str, int]]:
    count = draw(some.integers(1, 14))
    names = [str(number) for number in range(count)]
    failed = {name: draw(some.booleans()) for name in names}
    summaries = {name: draw(some.integers(0, 2)) for name in names}
    edges = [(names[draw(some.integers(0, at - 1))], names[at]) for at in range(1, count)]
    return failed, edges, summaries


@given(histories())
def test_equals_the_slow_twin_and_never_makes_a_failure(case: tuple[dict, list, dict]) -> None:
    failed, edges, summaries = case
    result = relabel(failed, edges, summaries)
    assert result == slow_relabel(failed, edges, summaries)
    assert all(failed[name] for name, bad in result.items() if bad)


def test_one_pass_in_a_run_of_equal_failures_clears_the_run() -> None:
    edges = [("a", "b"), ("b", "c"), ("c", "d")]
    failed = {"a": True, "b": False, "c": True, "d": True}
    assert not any(relabel(failed, edges, dict.fromkeys("abcd", 0)).values())
    assert relabel(failed, edges, {"a": 0, "b": 0, "c": 1, "d": 1}) == {"a": False, "b": False, "c": True, "d": True}


def test_consecutive_follows_parents_through_commits_without_label() -> None:
    parents = {"a": (), "b": ("a",), "side": ("a",), "gap": ("b",), "merge": ("gap", "side"), "end": ("merge",)}
    labelled = {"a", "b", "side", "end"}
    assert consecutive(parents, labelled) == [("a", "b"), ("a", "side"), ("b", "end"), ("side", "end")]
