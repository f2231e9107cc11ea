from __future__ import annotations

import msgspec
import pytest

from eroica.demo.injection import build_fault
from eroica.model.verdict import Coverage, Finding, FindingFunction, IterationTimes, Verdict
from support.faults import FAULTS
from support.faults.expected import (
    EXPECTED,
    MIXED,
    demo_plan,
    judge,
    judge_mixed,
    mixed_parts,
    mixed_plans,
    strange_causes,
)


def verdict(cause: str = "", scope: str = "some", workers: tuple[int, ...] = (2,), role: str = "cause") -> Verdict:
    finding = Finding(
        order=1,
        role=role,  # type: ignore[arg-type]
        cause=cause,
        function=FindingFunction(name="anything", kind="python"),
        workers=workers,
        scope=scope,  # type: ignore[arg-type]
    )
    return Verdict(
        eroica_version="0",
        job="j",
        verdict="slow" if cause else "healthy",
        summary="",
        window=None,
        iteration=IterationTimes(),
        coverage=Coverage(workers_expected=4, workers_reported=4),
        findings=(finding,) if cause else (),
    )


def blocked(cause: str, frame: str = "anything", workers: tuple[int, ...] = (2,)) -> Verdict:
    said = verdict(cause, workers=workers)
    function = msgspec.structs.replace(said.findings[0].function, stack=("main (train.py:3)", frame))
    finding = msgspec.structs.replace(said.findings[0], function=function)
    return msgspec.structs.replace(said, verdict="blocked", findings=(finding,))


def test_every_fault_has_an_expected_answer_and_a_plan_that_can_be_built() -> None:
    assert set(EXPECTED) == set(FAULTS)
    for name in EXPECTED:
        assert build_fault(demo_plan(name, 2, 100), FAULTS).name == name


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("slow-loader", verdict("slow-data-loading")),
        ("gc-pause", verdict("garbage-collection", "rotating", (0, 1, 2, 3))),
        ("slow-compute", verdict("compute-slow")),
        ("slow-python", verdict("python-on-critical-path", "all", (0, 1, 2, 3))),
        ("slow-backward", verdict("python-on-critical-path")),
        ("hang", blocked("desynchronized-collective")),
        ("hang-queue", blocked("blocked-in-user-code", "_take_item (tinylm/reading.py:82)")),
        ("hang-lock", blocked("blocked-in-user-code", "count_batch (tinylm/bookkeeping.py:37)")),
        ("hang-interpreter-lock", blocked("held-interpreter-lock", "hash_batch (tinylm/bookkeeping.py:78)")),
        ("hang-storage", blocked("blocked-in-user-code", "_fetch_block (tinylm/reading.py:49)")),
        ("dead-worker", blocked("dead-worker")),
        ("stopped-worker", blocked("dead-worker")),
        ("none", verdict()),
    ],
)
def test_a_verdict_that_names_the_fault_is_right(fault: str, said: Verdict) -> None:
    assert judge(said, fault, 2).right


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("slow-loader", verdict()),
        ("slow-loader", verdict("slow-data-loading", workers=(1,))),
        ("slow-loader", verdict("slow-data-loading", workers=(1, 2))),
        ("slow-loader", verdict("slow-data-loading", scope="all")),
        ("slow-loader", verdict("slow-data-loading", role="symptom")),
        ("slow-compute", verdict("cpu-contention")),
        ("gc-pause", verdict("garbage-collection", "some")),
        ("hang", verdict("desynchronized-collective")),
        ("hang", blocked("desynchronized-collective", workers=(0, 1, 3))),
        ("hang-queue", blocked("blocked-in-user-code", "wait (threading.py:327)")),
        ("hang-lock", blocked("held-interpreter-lock", "count_batch (tinylm/bookkeeping.py:37)")),
        ("dead-worker", blocked("dead-worker", workers=(0,))),
        ("none", verdict("slow-link")),
    ],
)
def test_a_verdict_that_names_something_else_is_wrong_and_both_are_said(fault: str, said: Verdict) -> None:
    judgement = judge(said, fault, 2)
    assert not judgement.right
    assert EXPECTED[fault].cause in judgement.words
    assert said.verdict in judgement.words


@pytest.mark.parametrize("name", MIXED)
def test_a_mixture_has_two_faults_on_workers_of_their_own(name: str) -> None:
    for worker in range(4):
        parts = mixed_parts(name, worker, 4)
        plans = mixed_plans(name, worker, 4, 100)
        assert len({fault for fault, _ in parts}) == 2
        owners = [plan.worker for plan in plans if plan.worker is not None]
        assert len(set(owners)) == len(owners) and all(0 <= owner < 4 for owner in owners)
        assert [build_fault(plan, FAULTS).name for plan in plans] == [fault for fault, _ in parts]


def test_a_mixture_is_told_only_if_both_are() -> None:
    one, two = verdict("slow-data-loading", workers=(2,)), verdict("compute-slow", workers=(3,))
    found = tuple(msgspec.structs.replace(each, gain=0.2) for each in (*one.findings, *two.findings))
    one, both = (msgspec.structs.replace(one, findings=findings) for findings in (found[:1], found))
    assert judge_mixed(both, "loader-and-compute", 2) == {"slow-loader": True, "slow-compute": True}
    assert judge_mixed(one, "loader-and-compute", 2) == {"slow-loader": True, "slow-compute": False}
    assert judge_mixed(both, "loader-and-compute", 1) == {"slow-loader": False, "slow-compute": False}


def with_causes(*causes: tuple[str, int, float]) -> Verdict:
    """A verdict with several causes: slug, worker and gain of each."""
    found = [
        msgspec.structs.replace(verdict(cause, workers=(worker,)).findings[0], gain=gain)
        for cause, worker, gain in causes
    ]
    return msgspec.structs.replace(verdict("compute-slow"), findings=tuple(found))


def test_a_gain_of_a_mixture_must_be_near_what_was_measured() -> None:
    said = with_causes(("slow-data-loading", 2, 0.2), ("compute-slow", 3, 0.02))
    name = "loader-and-compute"
    assert all(judge_mixed(said, name, 2).values())
    assert all(judge_mixed(said, name, 2, {"slow-loader": 0.38, "slow-compute": 0.05}).values())
    far = judge_mixed(said, name, 2, {"slow-loader": 0.45, "slow-compute": 0.3})
    assert far == {"slow-loader": False, "slow-compute": False}
    doubted = msgspec.structs.replace(said, verdict="undetermined")
    assert not any(judge_mixed(doubted, name, 2).values())


def test_a_third_cause_of_a_mixture_is_a_stranger_unless_it_tells_one_of_them_again() -> None:
    both = (("slow-data-loading", 2, 0.2), ("compute-slow", 3, 0.2))
    assert strange_causes(with_causes(*both, ("slow-data-loading", 2, 0.1)), "loader-and-compute", 2) == ()
    third = with_causes(*both, ("load-imbalance", 1, 0.1), ("compute-slow", 1, 0.1))
    assert strange_causes(third, "loader-and-compute", 2) == ("load-imbalance", "compute-slow")
