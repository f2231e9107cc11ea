"""A verdict on a fault that was injected is right or wrong, part by part; `eroica demo` and the benchmarks judge so."""

from __future__ import annotations

import msgspec
import pytest

from eroica.model.verdict import Coverage, Finding, FindingFunction, IterationTimes, Verdict
from support.faults.expected import EXPECTED, judge, judge_parts


def verdict(cause: str = "", workers: tuple[int, ...] = (2,), scope: str = "some", **more: object) -> Verdict:
    function = FindingFunction(name="anything", kind="python", stack=more.pop("stack", ()))  # type: ignore[arg-type]
    finding = Finding(
        order=1, role="cause", cause=cause, function=function, workers=workers, scope=scope, **more  # type: ignore[arg-type]
    )  # fmt: skip
    return Verdict(
        eroica_version="0", job="j", verdict="slow" if cause else "healthy", summary="", window=None,
        iteration=IterationTimes(), coverage=Coverage(workers_expected=4, workers_reported=4),
        findings=(finding,) if cause else (),
    )  # fmt: skip


def blocked(cause: str, frame: str = "anything", workers: tuple[int, ...] = (2,)) -> Verdict:
    return msgspec.structs.replace(verdict(cause, workers, stack=("main (train.py:3)", frame)), verdict="blocked")


@pytest.mark.parametrize(
    ("fault", "said", "right"),
    [
        ("slow-loader", verdict("slow-data-loading"), True),
        ("gc-pause", verdict("garbage-collection", (0, 1, 2, 3), "rotating"), True),
        ("slow-python", verdict("python-on-critical-path", (0, 1, 2, 3), "all"), True),
        ("hang", blocked("desynchronized-collective"), True),
        ("hang-queue", blocked("blocked-in-user-code", "_take_item (tinylm/reading.py:82)"), True),
        ("none", verdict(), True),
        ("slow-loader", verdict(), False),
        ("slow-loader", verdict("slow-data-loading", (1, 2)), False),
        ("slow-loader", verdict("slow-data-loading", scope="all"), False),
        ("slow-compute", verdict("cpu-contention"), False),
        ("hang", verdict("desynchronized-collective"), False),
        ("hang-queue", blocked("blocked-in-user-code", "wait (threading.py:327)"), False),
        ("dead-worker", blocked("dead-worker", workers=(0,)), False),
        ("none", verdict("slow-link"), False),
    ],
)
def test_a_verdict_is_right_if_it_names_the_fault_and_both_are_said_if_not(
    fault: str, said: Verdict, right: bool
) -> None:
    judgement = judge(said, fault, 2)
    assert judgement.right == right
    assert right or (EXPECTED[fault].cause in judgement.words and said.verdict in judgement.words)


def test_each_part_of_an_answer_is_judged_by_itself() -> None:
    frame = ("main (train.py:3)", "_fetch_block (tinylm/reading.py:49)")
    assert all(judge_parts(verdict("slow-storage-read", stack=frame), "slow-storage", 2).values())
    other = judge_parts(verdict("compute-slow", (1,)), "slow-storage", 2)
    assert other == {"verdict": True, "cause": False, "workers": False, "file": True, "function": False}
    assert judge_parts(verdict("sibling-process", (1, 3)), "burners", 0)["workers"]
    assert judge_parts(verdict("blocking-checkpoint", (0,)), "blocking-checkpoint", 3)["workers"]
