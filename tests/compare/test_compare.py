"""Two synthetic runs whose difference is known."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from eroica.compare import Run, compare
from eroica.compare.matching import match_functions
from eroica.model.comparison import Comparison, FunctionChange
from eroica.model.pattern import FunctionKey, WorkerPattern
from eroica.offline.examine import read_spans
from eroica.settings import Settings
from support import (
    BusyHost,
    Draft,
    FleetPlan,
    SlowCompute,
    SlowLink,
    SlowLoader,
    SlowPython,
    Trouble,
    UnevenWork,
    synthesize,
)
from support.written_jobs import WrittenJob
from support.written_worker import WrittenWorker

PLAN = FleetPlan()


def run(plan: FleetPlan, *troubles: Trouble, name: str = "run") -> Run:
    return Run(name=name, patterns=synthesize(plan, troubles))


def difference(plan: FleetPlan, before: Sequence[Trouble], after: Sequence[Trouble]) -> Comparison:
    """Of two windows of the same fleet with noise of their own."""
    return compare(run(plan, *before, name="A"), run(replace(plan, draw=1), *after, name="B"))


def own(comparison: Comparison) -> list[FunctionChange]:
    return [change for change in comparison.changes if change.reason != "waiting"]


@dataclass(frozen=True)
class Neighbor:
    """Another program on the same devices: everything that runs there takes `factor` times as long, as busy as ever."""

    factor: float

    def apply(self, draft: Draft) -> None:
        for key in draft.time_us:
            if key.kind == "compute":
                draft.time_us[key] *= self.factor
        draft.transfer_us = draft.transfer_us * self.factor


def test_a_slower_loader_on_one_worker_is_a_regression_there_and_the_others_only_wait() -> None:
    result = difference(PLAN, [SlowLoader((2,), 2.0)], [SlowLoader((2,), 14.0)])
    assert result.comparison == "regression" and result.exit_code == 3
    (change,) = own(result)
    assert change.name == "_read_block" and change.workers == (2,) and change.reason == "slower"
    assert change.change_ms == pytest.approx(12.0, rel=0.3)
    waits = [other for other in result.changes if other.reason == "waiting"]
    assert waits and all(2 not in wait.workers for wait in waits if wait.change_ms > 0)
    assert "_read_block" in result.summary and "worker 2" in result.summary
    assert result.explained is not None and result.explained > 0.7


def test_more_executions_are_more_work() -> None:
    result = difference(PLAN, [], [UnevenWork((3,), 0.3)])
    assert result.comparison == "regression"
    (change,) = own(result)
    assert change.reason == "more-work" and change.workers == (3,) and change.functions > 3
    assert change.count_after == pytest.approx(1.3 * change.count_before, rel=0.02)
    assert change.mean_after_ms == pytest.approx(change.mean_before_ms, rel=0.05)


@pytest.mark.parametrize("trouble", [SlowCompute((1,), 1.3), BusyHost((1,), 1.3)])
def test_the_same_work_at_lower_utilization_is_slower(trouble: Trouble) -> None:
    (change,) = own(difference(PLAN, [], [trouble]))
    assert change.reason == "slower" and change.workers == (1,) and "operators" in change.name
    assert change.utilization_before is not None and change.utilization_after is not None
    assert change.utilization_after < change.utilization_before - 0.1
    assert "lower utilization" in change.text


@pytest.mark.parametrize("factor", [1.06, 1.18])
def test_all_kernels_longer_at_equal_counts_and_utilization_is_one_finding_contention_from_outside(
    factor: float,
) -> None:
    """The paper's failed case 5: 8 workers, version B slower than A; it was read as more work."""
    result = difference(FleetPlan(workers=8, accelerator=True), [], [Neighbor(factor)])
    assert result.comparison == "regression"
    (change,) = own(result)
    assert change.reason == "outside-contention" and change.workers == tuple(range(8)) and change.functions >= 10
    assert change.count_before == change.count_after
    assert "Equal counts" in change.text and "outside" in result.summary


def test_without_sampled_utilization_contention_and_slow_hardware_are_not_told_apart() -> None:
    sides = [
        Run(name=side.name, patterns=[blind(pattern) for pattern in side.patterns])
        for side in (run(PLAN), run(replace(PLAN, draw=1), Neighbor(1.2)))
    ]
    result = compare(*sides)
    (change,) = own(result)
    assert change.reason == "slower" and change.utilization_before is None
    assert "cannot be told apart" in change.text and any("no utilization" in note for note in result.notes)


def blind(pattern: WorkerPattern) -> WorkerPattern:
    rows = [
        msgspec.structs.replace(row, mu=0.0, sigma=0.0, resource="", resource_samples=0) for row in pattern.functions
    ]
    return msgspec.structs.replace(pattern, functions=tuple(rows))


def test_a_slower_link_is_the_collectives_own_regression() -> None:
    (change,) = own(difference(PLAN, [], [SlowLink(8.0)]))
    assert change.kind == "collective" and change.reason == "slower"


def test_one_worker_alone_does_not_tell_waiting_from_a_slower_link() -> None:
    sides = [run(PLAN), run(replace(PLAN, draw=1), SlowLink(12.0))]
    alone = [Run(name=side.name, patterns=side.patterns[:1]) for side in sides]
    result = compare(*alone)
    (change,) = result.changes
    assert result.comparison == "regression" and change.reason == "waiting"
    assert "cannot be told" in change.text and "other workers" in result.summary


def test_a_new_function_is_new_and_its_removal_is_gone() -> None:
    (change,) = own(difference(PLAN, [], [SlowPython(6.0)]))
    assert change.reason == "new" and change.before_ms == 0 and change.workers == (0, 1, 2, 3)
    (change,) = own(difference(PLAN, [SlowPython(6.0)], []))
    assert change.reason == "gone" and change.after_ms == 0


def test_moved_lines_are_no_change_and_do_not_hide_one() -> None:
    moved = replace(PLAN, draw=1, named=(("tokens.py:30", "tokens.py:77"), ("dataset.py:41", "dataset.py:60")))
    same = compare(run(PLAN, SlowPython(6.0)), run(moved, SlowPython(6.0)))
    assert same.comparison == "equal" and not same.changes
    (change,) = own(compare(run(PLAN, SlowPython(6.0)), run(moved, SlowPython(12.0))))
    assert change.reason == "slower" and "tokens.py:77" in change.stack[-1]


@pytest.mark.parametrize(
    "plan",
    [
        FleetPlan(),
        FleetPlan(workers=1),
        FleetPlan(workers=2, iterations=5),
        FleetPlan(workers=3, iterations=12),
        FleetPlan(workers=8, stages=2),
        FleetPlan(workers=16, accelerator=True),
    ],
)
def test_equal_runs_are_equal_whatever_the_noise(plan: FleetPlan) -> None:
    seeds = range(100, 112)
    words = [difference(replace(plan, seed=seed), [], []).comparison for seed in seeds]
    assert set(words) <= {"equal", "undetermined"}
    assert words.count("equal") >= len(words) - (plan.iterations < 10)


@pytest.mark.parametrize("trouble", [UnevenWork((0, 1, 2, 3), 0.3), SlowCompute((1,), 1.5), SlowLoader((3,), 30.0)])
def test_a_large_change_within_the_noise_of_few_iterations_is_never_called_equal(trouble: Trouble) -> None:
    for seed in range(12):
        result = difference(FleetPlan(iterations=3, seed=seed), [], [trouble])
        before, after = result.before.iteration_ms, result.after.iteration_ms
        if result.comparison == "regression" or after < 1.1 * before:
            continue
        assert result.comparison == "undetermined" and result.exit_code == 4
        assert "within the noise of 3 iterations; record" in result.summary
        assert "evens out" not in result.summary and "no function" not in result.summary


def test_runs_of_different_size_are_compared_by_their_median_workers() -> None:
    result = compare(run(FleetPlan(workers=8)), run(FleetPlan(workers=4, draw=1), SlowPython(8.0)))
    assert result.comparison == "regression"
    assert own(result)[0].name == "_score_tokens" and own(result)[0].workers == (0, 1, 2, 3)
    assert any("8 and 4 workers" in note for note in result.notes)


def test_missing_workers_are_noted_and_the_others_compared() -> None:
    after = run(replace(PLAN, draw=1), SlowLoader((2,), 12.0))
    result = compare(run(PLAN), Run(name="B", patterns=after.patterns[1:]))
    assert own(result)[0].workers == (2,) and "1 worker is in one of the runs only" in result.notes
    result = compare(run(PLAN), Run(name="B", patterns=after.patterns[2:]))
    assert "2 workers are in one of the runs only" in result.notes


def test_a_single_iteration_is_undetermined() -> None:
    result = compare(run(FleetPlan(iterations=1)), run(PLAN))
    assert result.comparison == "undetermined" and result.exit_code == 4 and "one iteration" in result.summary


def test_runs_without_a_common_function_are_undetermined() -> None:
    def renamed(pattern: WorkerPattern) -> WorkerPattern:
        keys = [FunctionKey(kind="compute", name=f"other{at}") for at in range(len(pattern.functions))]
        rows = [msgspec.structs.replace(row, key=key) for row, key in zip(pattern.functions, keys, strict=True)]
        return msgspec.structs.replace(pattern, functions=tuple(rows))

    result = compare(run(PLAN), Run(name="B", patterns=[renamed(pattern) for pattern in synthesize(PLAN)]))
    assert result.comparison == "undetermined" and "no function in common" in result.summary


def test_python_is_not_compared_where_only_one_run_has_stacks() -> None:
    with_stacks = synthesize(FleetPlan(workers=4, iterations=20, seed=9), (), 1)
    without = [
        msgspec.structs.replace(p, functions=tuple(row for row in p.functions if not row.key.stack))
        for p in synthesize(FleetPlan(workers=4, iterations=20, seed=9), (), 2)
    ]
    comparison = compare(Run(name="a", patterns=without), Run(name="b", patterns=with_stacks))
    assert any("only the second run has Python stacks" in note for note in comparison.notes)
    assert not any(change.kind == "python" for change in comparison.changes)
    assert comparison.comparison == "equal"


def python(*stack: str, phase: str = "forward") -> FunctionKey:
    return FunctionKey(kind="python", name=stack[-1].split(" (")[0], stack=stack, phase=phase)  # type: ignore[arg-type]


def kernel(name: str, **more: object) -> FunctionKey:
    return FunctionKey(kind="compute", name=name, **more)  # type: ignore[arg-type]


def matched(before: list[FunctionKey], after: list[FunctionKey]) -> set[tuple[tuple[int, ...], tuple[int, ...]]]:
    return {(pair.before, pair.after) for pair in match_functions(before, after)}


def test_a_function_moved_by_a_commit_above_it_is_the_same() -> None:
    before = [python("main (train.py:20)", "score (tokens.py:30)")]
    after = [python("main (train.py:25)", "score (tokens.py:48)")]
    assert matched(before, after) == {((0,), (0,))}


def test_a_function_under_other_callers_is_found_by_name_and_file() -> None:
    before = [python("main (train.py:1)", "score (tokens.py:30)")]
    after = [python("main (train.py:1)", "helper (train.py:9)", "score (tokens.py:30)")]
    assert matched(before, after) == {((0,), (0,))}


def test_a_kernel_with_other_template_arguments_is_the_same_where_its_plain_name_is_unique() -> None:
    before = [kernel("void at::elementwise<4, at::Add<float> >(int, float*)"), kernel("gemm")]
    after = [kernel("gemm"), kernel("void at::elementwise<8, at::Add<half> >(int, half*)")]
    assert matched(before, after) == {((0,), (1,)), ((1,), (0,))}
    twice = [*after, kernel("void at::elementwise<2>(int)")]
    assert matched(before, twice) == {((1,), (0,)), ((0,), ()), ((), (1,)), ((), (2,))}


def test_a_loaders_next_is_the_same_with_and_without_loader_processes() -> None:
    before = [python("_SingleProcessDataLoaderIter.__next__", phase="input")]
    after = [python("_MultiProcessingDataLoaderIter.__next__", phase="input")]
    assert matched(before, after) == {((0,), (0,))}


def test_every_function_is_in_exactly_one_pair() -> None:
    keys = [python(f"f{i % 3} (a.py:{i})") for i in range(12)] + [kernel(f"k<{i}>") for i in range(5)]
    pairs = match_functions(keys[:9] + keys[12:14], keys[3:])
    assert sorted(index for pair in pairs for index in pair.before) == list(range(11))
    assert sorted(index for pair in pairs for index in pair.after) == list(range(14))


_CASES = Path(__file__).parents[2] / "../shared/cases/traces"
ONE = Settings(readers=1)


def run_of(path: Path, trace: dict[str, Any], **header: Any) -> Run:
    path.write_text(json.dumps({**trace, **header}))
    spans, _ = read_spans([path], ONE)
    return Run(name=path.name, patterns=[one.pattern for one in spans[0].summaries if one.pattern is not None])


def compared(tmp_path: Path, before: dict[str, Any], after: dict[str, Any], *headers: dict[str, Any]) -> Comparison:
    first, second = headers or ({}, {})
    return compare(run_of(tmp_path / "a.json", before, **first), run_of(tmp_path / "b.json", after, **second), ONE)


def lasting(*milliseconds: float) -> dict[str, Any]:
    """One worker whose iterations last so long."""
    job = WrittenJob(ranks=1, steps=len(milliseconds), jitter=0.0)
    trace, at = job.record()[0], 0.0
    events = []
    for number, length in enumerate(milliseconds):
        start = 1.7e15 + at * 1000
        events.append({"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{number}", "pid": 1, "tid": 1,
                       "ts": start, "dur": length * 1000 - 5})  # fmt: skip
        events.append({"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": start + 10,
                       "dur": length * 1000 - 30, "args": {"stream": 7}})  # fmt: skip
        at += length
    return {**trace, "traceEvents": events}


def test_another_device_comes_first_in_sentence_and_notes() -> None:
    if not _CASES.is_dir():
        pytest.skip("the shared cases are not here")
    runs = []
    for name in ("diff_v100.json", "diff_a100.json"):
        spans, _ = read_spans([_CASES / name], ONE)
        runs.append(Run(name=name, patterns=[one.pattern for one in spans[0].summaries if one.pattern is not None]))
    found = compare(*runs, ONE)
    assert found.summary.startswith("The device differs: Tesla V100-SXM2-16GB before, NVIDIA A100-SXM4-40GB after")
    assert "the number of workers differs: 2 before, 8 after" in found.summary
    assert found.notes[0].startswith("the device differs") and "of which 1 and 1 are here" in " ".join(found.notes)


def test_another_driver_is_told_and_the_same_one_is_not(tmp_path: Path) -> None:
    trace = WrittenWorker(calls=6, training=True, marks="steps").record()
    drivers = {"cuda_driver_version": 12020}, {"cuda_driver_version": 12040}
    assert "The CUDA driver differs: 12020 before, 12040 after" in compared(tmp_path, trace, trace, *drivers).summary
    assert "differs" not in compared(tmp_path, trace, trace, drivers[0], drivers[0]).summary


def test_every_iteration_slower_than_every_one_before_is_no_noise(tmp_path: Path) -> None:
    before, after = lasting(100, 101, 99, 100, 102), lasting(104, 190, 105, 110, 150)
    found = compared(tmp_path, before, after)
    assert found.comparison == "regression" and "Iterations take" in found.summary
    mixed = compared(tmp_path, before, lasting(98, 190, 99, 101, 150))
    assert mixed.comparison != "regression"


def test_iterations_of_one_distribution_are_no_regression(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    for _ in range(10):
        times = random.normal(100, 4, (2, 8))
        assert compared(tmp_path, lasting(*times[0]), lasting(*times[1])).comparison in ("equal", "undetermined")
