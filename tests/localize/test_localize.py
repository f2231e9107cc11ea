from __future__ import annotations

import msgspec
import pytest

from eroica.localize import Suspects, localize
from eroica.localize.roles import tell_groups_apart
from eroica.localize.rule import SuspectRow, flag_functions
from eroica.model.pattern import WorkerPattern
from eroica.model.worker import ProcessGroup
from eroica.pipeline import analyze
from eroica.settings import Settings
from support import FleetPlan, SlowLoader, SlowPython, synthesize, synthesize_window

PLAN = FleetPlan(seed=11)


def flagged(suspects: Suspects) -> list[SuspectRow]:
    found = flag_functions(suspects, range(len(suspects.fleet.keys)), Settings())
    return sorted(found, key=lambda row: -row.beta * row.distance)


def named(suspects: Suspects) -> set[tuple[str, tuple[int, ...], str]]:
    return {(row.key.name, row.workers, row.why) for row in flagged(suspects)}


def test_a_new_function_on_one_worker_is_beyond_expectation_and_first_in_order() -> None:
    suspects = localize(synthesize(PLAN, [SlowLoader((2,), 40)], 2), [], Settings())
    first = flagged(suspects)[0]
    assert (first.key.name, first.workers, first.why) == ("_read_block", (2,), "expectation")


def test_the_culprit_does_not_stand_out_in_the_collective_in_which_it_waits_least() -> None:
    """By the literal rule of eq. 11 it does: its pattern of all-reduce is the unique one."""
    suspects = localize(synthesize(PLAN, [SlowLoader((2,), 40)], 2), [], Settings())
    fleet = suspects.fleet
    row = next(at for at, key in enumerate(fleet.keys) if key.kind == "collective")
    beta = fleet.pattern[row, :, 0]
    assert beta.argmin() == 2
    assert beta[2] > Settings().beta_gate
    assert not any(2 in one.workers for one in flagged(suspects) if one.key.kind == "collective")


def test_against_the_baseline_all_workers_are_beyond_expectation() -> None:
    before = synthesize(PLAN, (), 1)
    suspects = localize(synthesize(PLAN, [SlowPython(30)], 2), before, Settings())
    assert ("_score_tokens", (0, 1, 2, 3), "expectation") in named(suspects)
    assert suspects.baseline is not None


# --- process groups of one name with different members ---


def two_jobs_in_one(seed: int) -> list[WorkerPattern]:
    """Eight workers in two groups of four, which both call themselves "5"; worker 6 is late in the second."""
    found = []
    for half in range(2):
        plan = FleetPlan(workers=4, seed=seed + 50 * half)
        for pattern in synthesize(plan, [SlowLoader((2,), 60)] if half else [], 2):
            rank = pattern.worker.global_rank + 4 * half
            worker = msgspec.structs.replace(pattern.worker, global_rank=rank, world_size=8)
            members = tuple(range(4 * half, 4 * half + 4))
            found.append(
                msgspec.structs.replace(
                    pattern,
                    worker=worker,
                    process_groups=(ProcessGroup(name="5", ranks=members, backend="gloo"),),
                    collectives=tuple(msgspec.structs.replace(one, group="5") for one in pattern.collectives),
                    functions=tuple(
                        msgspec.structs.replace(row, key=msgspec.structs.replace(row.key, group="5"))
                        if row.key.kind == "collective"
                        else row
                        for row in pattern.functions
                    ),
                )
            )
    return found


def test_a_window_that_lacks_one_of_the_groups_calls_the_other_as_the_whole_one_does() -> None:
    before, now = two_jobs_in_one(1)[:4], two_jobs_in_one(2)
    past, _ = tell_groups_apart(before, now)
    assert {pattern.process_groups[0].name for pattern in past} == {"5 (ranks 0 to 3)"}


@pytest.mark.parametrize("seed", range(3))
def test_who_is_late_in_one_of_them_is_found_and_nothing_is_lost(seed: int) -> None:
    patterns = two_jobs_in_one(seed)
    suspects = localize(patterns, (), Settings())
    assert not any("members of process group" in note for note in suspects.arrivals.notes)
    assert suspects.arrivals.blame_share([6]) == pytest.approx(1.0, abs=0.1)
    verdict = analyze("job", synthesize_window(patterns, "manual"), patterns)
    assert verdict.cause is not None and verdict.cause.workers == (6,), verdict.summary
    assert "3 of the other 7 workers wait for it" in verdict.summary
