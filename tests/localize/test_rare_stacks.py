"""Call stacks that hardly any worker shares: counted with their callers where there is no room for all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eroica.localize import folding
from eroica.localize.folding import fold_rare_stacks
from eroica.model.pattern import FunctionKey, FunctionPattern, WorkerPattern
from eroica.model.series import decode_series, encode_series
from eroica.model.worker import Worker
from eroica.pipeline import analyze
from eroica.wire.codec import decode_record, encode_record
from support import FleetPlan, synthesize, synthesize_window
from support.troubles import Calls

ITERATIONS, WINDOW_S = 10, 2.0
MAIN, STEP = "main (train.py:1)", "step (train.py:20)"


def row(stack: tuple[str, ...], seconds: float, series: bool = False, **more: object) -> FunctionPattern:
    values = {
        "key": FunctionKey(kind="python", name=stack[-1].partition(" (")[0], stack=stack, phase="forward"),
        "beta": seconds / WINDOW_S,
        "critical_s": seconds,
        "total_s": seconds,
        "count": 3,
        "mu": 0.5,
        "resource": "cpu",
        "resource_samples": 10,
    }
    if series:
        values["per_iteration_us"] = encode_series(np.full(ITERATIONS, seconds * 1e6 / ITERATIONS, dtype=np.float32))
    return FunctionPattern(**(values | more))  # type: ignore[arg-type]


def pattern(rank: int, rows: Sequence[FunctionPattern], window: int = 1) -> WorkerPattern:
    return WorkerPattern(
        worker=Worker(global_rank=rank, world_size=8),
        window_id=window,
        first_iteration=0,
        last_iteration=ITERATIONS,
        duration_s=WINDOW_S,
        iteration_us=encode_series(np.full(ITERATIONS, 2e5, dtype=np.float32)),
        wait_us=encode_series(np.zeros(ITERATIONS, dtype=np.float32)),
        functions=tuple(rows),
    )


def leaves(rank: int, count: int, seconds: float) -> list[FunctionPattern]:
    """Stacks below `step` that no other worker has."""
    return [row((MAIN, STEP, f"odd_{rank}_{at} (lib.py:{at})"), seconds) for at in range(count)]


def of(one: WorkerPattern) -> dict[tuple[str, ...], FunctionPattern]:
    return {each.key.stack: each for each in one.functions}


def test_where_there_is_room_for_all_nothing_is_touched():
    now, before = [pattern(0, leaves(0, 5, 0.01))], [pattern(0, leaves(0, 5, 0.01))]
    assert fold_rare_stacks(now, before, 5)[:2] == (now, before)
    assert fold_rare_stacks(now, before, 5)[0] is now


def test_rare_stacks_are_their_callers_and_a_heavy_one_stays():
    heavy = row((MAIN, STEP, "tokenize (data.py:3)"), 0.6)
    now = [pattern(rank, [row((MAIN, STEP), 1.0), *leaves(rank, 20, 0.002)]) for rank in range(8)]
    now[3] = pattern(3, [row((MAIN, STEP), 1.0), heavy, *leaves(3, 20, 0.002)])
    folded, _, count = fold_rare_stacks(now, (), 10)
    assert count == 160
    assert [set(of(one)) for one in folded[:3]] == [{(MAIN, STEP)}] * 3
    assert set(of(folded[3])) == {(MAIN, STEP), heavy.key.stack}
    assert of(folded[3])[heavy.key.stack] == heavy
    assert of(folded[0])[MAIN, STEP].critical_s == pytest.approx(1.04)
    assert of(folded[0])[MAIN, STEP].count == 63


def test_what_is_folded_in_one_window_is_folded_in_the_other():
    now = [pattern(rank, [row((MAIN, STEP), 1.0), *leaves(rank, 20, 0.002)], 2) for rank in range(8)]
    before = [pattern(rank, [row((MAIN, STEP), 0.9), *leaves(rank, 3, 0.004)]) for rank in range(8)]
    for window in fold_rare_stacks(now, before, 10)[:2]:
        assert {stack for one in window for stack in of(one)} == {(MAIN, STEP)}


def test_series_add_up_and_whoever_has_none_counts_as_its_mean():
    own, child = row((MAIN, STEP), 1.0, series=True), row((MAIN, STEP, "odd (lib.py:1)"), 0.002, series=True)
    now = [pattern(rank, [own, *leaves(rank, 10, 0.002)]) for rank in range(6)]
    now.append(pattern(6, [own, child, *leaves(6, 10, 0.002)]))
    now.append(pattern(7, [own, *leaves(7, 50, 0.002)]))
    folded, _, _ = fold_rare_stacks(now, (), 5)
    series = [decode_series(of(folded[rank])[MAIN, STEP].per_iteration_us, np.float32) for rank in (0, 6, 7)]
    assert series[0] == pytest.approx(np.full(ITERATIONS, 1.0e5), rel=1e-3)  # what has none is little: kept as it is
    assert series[1] == pytest.approx(np.full(ITERATIONS, 1.022e5), rel=1e-3)
    assert series[2] == pytest.approx(np.full(ITERATIONS, 1.1e5), rel=1e-3)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 30), st.integers(0, 2**32 - 1))
def test_no_time_is_lost_whatever_there_is(most, seed):
    random = np.random.default_rng(seed)
    frames = [f"f{at} (file_{at % 3}.py:{at})" for at in range(6)]
    now = []
    for rank in range(int(random.integers(1, 6))):
        stacks = {tuple(random.choice(frames, int(random.integers(1, 6)))) for _ in range(int(random.integers(0, 25)))}
        rows = [
            row(tuple(map(str, stack)), float(random.exponential(0.01)), bool(random.integers(2)))
            for stack in sorted(stacks)
        ]
        now.append(pattern(rank, rows))
    folded, _, _ = fold_rare_stacks(now, (), most)
    for one, was in zip(folded, now, strict=True):
        assert len(of(one)) == len(one.functions)  # no function twice
        for name in ("critical_s", "total_s", "count", "beta"):
            total = defaultdict(float)
            for window, each in ((1, one), (-1, was)):
                for entry in each.functions:
                    total[entry.key.stack[0]] += window * getattr(entry, name)
            assert all(value == pytest.approx(0.0, abs=1e-6) for value in total.values())
    assert {key.stack[0] for one in folded for key in (each.key for each in one.functions)} == {
        each.key.stack[0] for one in now for each in one.functions
    }


def with_rare(patterns: Sequence[WorkerPattern], draw: int) -> list[WorkerPattern]:
    """The same as they arrive, each with forty stacks that nobody else has."""
    found = []
    for one in patterns:
        rare = [row((MAIN, STEP, f"rare_{one.worker.global_rank}_{draw}_{at} (lib.py:{at})"), 4e-4) for at in range(40)]
        made = msgspec.structs.replace(one, functions=(*one.functions, *rare))
        found.append(decode_record(encode_record(made), WorkerPattern))
    return found


def in_pieces(one: WorkerPattern, name: str, pieces: int, beside: bool = False) -> WorkerPattern:
    """The same with this function's time in so many functions below it, or in its place."""
    rows = []
    for each in one.functions:
        if each.key.name != name:
            rows.append(each)
            continue
        less = {part: getattr(each, part) / pieces for part in ("beta", "critical_s", "total_s", "beta_error")}
        for at in range(pieces):
            leaf = f"{name}_{at}" if beside else f"deep_{at}"
            stack = (*(each.key.stack[:-1] if beside else each.key.stack), f"{leaf} (project/parts.py:{at})")
            key = msgspec.structs.replace(each.key, name=leaf, stack=stack)
            rows.append(msgspec.structs.replace(each, key=key, per_iteration_us=b"", **less))
    return msgspec.structs.replace(one, functions=tuple(rows))


@pytest.fixture
def little_room(monkeypatch):
    monkeypatch.setattr(folding, "_MOST_FUNCTIONS", 250)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1e300])
def test_numbers_that_are_none_end_in_no_endless_loop(value):
    now = [pattern(0, [row((f"root_{at} (lib.py:{at})",), value) for at in range(50)])]
    assert len(fold_rare_stacks(now, (), 10)[0]) == 1


@pytest.mark.usefixtures("little_room")
def test_a_function_spread_over_hundreds_of_rare_stacks_is_named():
    plan, busy = FleetPlan(workers=32, seed=3), Calls(("augment (project/data.py:7)",), (5,), 30, use=0.95)
    now = with_rare([in_pieces(one, "augment", 300) for one in synthesize(plan, [busy], 2)], 2)
    verdict = analyze("job", synthesize_window(now, "manual", ()), now, expected_workers=32)
    cause = verdict.findings[0]
    assert (verdict.verdict, cause.workers) == ("slow", (5,))
    assert cause.function is not None and cause.function.name == "augment"
    assert any("counted with their callers" in note for note in verdict.coverage.notes)


def test_nothing_is_counted_with_a_caller_that_is_read_otherwise():
    def reading(stack: tuple[str, ...]) -> bool:
        return "odd" in stack[-1]

    now = [pattern(rank, [row((MAIN, STEP), 1.0), *leaves(rank, 9, 0.001)]) for rank in range(4)]
    assert [len(of(one)) for one in fold_rare_stacks(now, (), 5)[0]] == [1] * 4
    for one in fold_rare_stacks(now, (), 5, reading)[0]:
        (own, own_row), (other, other_row) = of(one).items()
        assert (own, reading(own), own_row.critical_s) == ((MAIN, STEP), False, 1.0)
        assert (other[:2], reading(other), other_row.critical_s) == ((MAIN, STEP), True, pytest.approx(0.009))
