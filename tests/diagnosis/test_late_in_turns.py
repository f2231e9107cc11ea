"""Workers that are late at different collectives of an iteration, so that each waits as long as it is waited for."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest

from eroica.model.pattern import FunctionKey, Phase, WorkerPattern
from eroica.model.series import encode_series
from eroica.pipeline import analyze
from eroica.settings import Settings
from support import synthesize_window
from support.grouped import GroupedFleet, Meeting, Work, everybody

ITERATIONS = 40
LOOP = ("<module> (project/train.py:1)", "main (project/train.py:20)")


def two_meetings(workers: int) -> list[Meeting]:
    """All meet after the input and after backward."""
    return [
        Meeting(
            grouping=everybody(workers),
            name="gloo:all_reduce",
            kind=kind,
            phase=phase,
            times=1,
            transfer_us=np.full((1, ITERATIONS), 2e3),
            mu=np.full(workers, 0.2),
            sigma=np.full(workers, 0.05),
            elements=1000,
            resource="",
        )
        for kind, phase in (("all_gather", "input"), ("all_reduce", "backward"))
    ]


def work(
    key: FunctionKey,
    workers: int,
    members: Sequence[int],
    ms: float,
    noise: np.random.Generator,
    iterations: int = ITERATIONS,
) -> Work:
    time_WI = np.zeros((workers, iterations))
    time_WI[list(members)] = ms * 1e3 * np.exp(noise.normal(0, 0.1, (len(members), iterations)))
    own_W = np.where(np.isin(np.arange(workers), members), np.arange(workers), -1)
    return Work(key=key, time_us=time_WI, of=own_W, mu=np.full(workers, 0.9), sigma=np.full(workers, 0.05))


def python(name: str, phase: Phase) -> FunctionKey:
    return FunctionKey(kind="python", name=name, stack=(*LOOP, f"{name} (project/steps.py:3)"), phase=phase)


def late_in_turns(
    workers: int, first: Sequence[int], second: Sequence[int], seed: int, *, has_ends: bool, same_part: bool
) -> list[WorkerPattern]:
    """Some are 40 ms late before the first collective of each iteration, others before the second.

    Args:
        workers: How many there are.
        first: Who is late in `parse`.
        second: Who is late in `keep`.
        seed: Of all noise.
        has_ends: Collectives tell when they ended, so the window can be run again.
        same_part: Both functions count as the same part of the iteration.
    """
    noise, everyone = np.random.default_rng(seed), range(workers)
    fleet = GroupedFleet(workers=workers, iterations=ITERATIONS, seed=seed, has_ends=has_ends)
    operators: list[tuple[str, Phase, float]] = [
        ("aten::stack", "input", 3),
        ("aten::addmm", "forward", 20),
        ("aten::mm", "backward", 40),
        ("aten::addcdiv_", "optimizer", 8),
    ]
    fleet.works = [
        work(FunctionKey(kind="compute", name=name, phase=phase), workers, everyone, ms, noise)
        for name, phase, ms in operators
    ]
    fleet.works += [
        work(python("parse", "input"), workers, first, 40, noise),
        work(python("keep", "backward"), workers, second, 40, noise),
    ]
    fleet.meetings = two_meetings(workers)
    return [on_processors(pattern, same_part=same_part) for pattern in fleet.synthesize()]


def work_twice(seed: int) -> list[WorkerPattern]:
    """Workers 0 and 1 (a stage) wait 60 ms for 2 and 3, then do the same 40 ms under two names; 2 and 3 wait then."""
    noise, workers = np.random.default_rng(seed), 4
    fleet = GroupedFleet(workers=workers, iterations=ITERATIONS, seed=seed, has_ends=True)
    fleet.works = [
        work(FunctionKey(kind="compute", name="aten::addmm", phase="forward"), workers, range(4), 20, noise),
        work(python("read", "input"), workers, (2, 3), 60, noise),
        work(python("fa", "backward"), workers, (0,), 40, noise),
        work(python("fb", "backward"), workers, (1,), 40, noise),
    ]
    fleet.meetings = two_meetings(workers)
    return [on_processors(pattern, same_part=False) for pattern in fleet.synthesize()]


def meeting_seldom(seed: int) -> list[WorkerPattern]:
    """Worker 0 does 15 ms more in each of 100 iterations; the others wait for it in every 25th, where all meet."""
    noise, workers, every = np.random.default_rng(seed), 4, 25
    fleet = GroupedFleet(workers=workers, iterations=4 * every, seed=seed)
    operators = FunctionKey(kind="compute", name="aten::addmm", phase="forward")
    fleet.works = [
        work(operators, workers, range(workers), 20, noise, fleet.iterations),
        work(python("keep", "backward"), workers, (0,), 15, noise, fleet.iterations),
    ]
    total_WI = np.sum([one.of_workers for one in fleet.works], axis=0)
    owed_WM = total_WI.reshape(workers, -1, every).sum(axis=2)
    wait_WI = np.zeros_like(total_WI)
    wait_WI[:, every - 1 :: every] = owed_WM.max(axis=0) - owed_WM
    return [
        msgspec.structs.replace(
            on_processors(one, same_part=False), iteration_us=encode_series(time_I), wait_us=encode_series(wait_I)
        )
        for one, time_I, wait_I in zip(
            fleet.synthesize(),
            (total_WI + wait_WI).astype(np.float32),
            wait_WI.astype(np.float32),
            strict=True,
        )
    ]


def on_processors(pattern: WorkerPattern, *, same_part: bool) -> WorkerPattern:
    rows = [
        msgspec.structs.replace(row, key=msgspec.structs.replace(row.key, phase="other"))
        if same_part and row.key.kind == "python"
        else row
        for row in pattern.functions
    ]
    return msgspec.structs.replace(pattern, functions=tuple(rows), has_accelerator=False)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("has_ends", [True, False])
@pytest.mark.parametrize("same_part", [True, False])
@pytest.mark.parametrize(("workers", "first", "second"), [(2, (1,), (0,)), (4, (0, 1), (2, 3)), (4, (0,), (1,))])
def test_who_is_late_in_turn_is_told_with_what_makes_it_late(
    workers: int, first: tuple[int, ...], second: tuple[int, ...], seed: int, has_ends: bool, same_part: bool
) -> None:
    patterns = late_in_turns(workers, first, second, seed, has_ends=has_ends, same_part=same_part)
    verdict = analyze("job", synthesize_window(patterns, "manual", ()), patterns)
    found = {(one.function.name, one.workers): one.gain for one in verdict.findings if one.role == "cause"}
    assert set(found) == {("parse", first), ("keep", second)}, verdict.summary
    assert list(found.values()) == pytest.approx([0.25, 0.25], abs=0.05)


@pytest.mark.parametrize("seed", range(3))
def test_waiting_for_another_stage_is_no_waiting_for_a_peer_of_ones_own(seed: int) -> None:
    patterns, settings = work_twice(seed), Settings(roles="first=0,1;second=2,3")
    verdict = analyze("job", synthesize_window(patterns, "manual", ()), patterns, settings=settings)
    assert [one.function.name for one in verdict.findings if one.role == "cause"] == ["read"], verdict.summary


@pytest.mark.parametrize("seed", range(3))
def test_who_waits_in_a_few_iterations_that_are_left_out_is_not_said_to_be_late(seed: int) -> None:
    patterns = meeting_seldom(seed)
    verdict = analyze("job", synthesize_window(patterns, "manual", ()), patterns)
    assert verdict.cause is not None and (verdict.cause.workers, verdict.cause.function.name) == ((0,), "keep")
    assert "the other 3 workers wait for it" in verdict.summary
