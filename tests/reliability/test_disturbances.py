"""Never in the way: what is done to Eroica while a real job runs, and the job compared to the bit with one alone.

The disturbances here are those that nothing else tests with a real training; `benchmarks/reliability.py` tries more.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from support.reliability import DISTURBANCES, Disturbance, Outcome, differences
from support.reliability.comparison import steps_compared

#: torchrun's restart with gloo ends in more than one way by itself: one pair of equal jobs must be among so many.
PAIRS = {"elastic-restart": 4}
THOROUGH = {"agent-killed", "collector-killed-in-window", "disk-full"}
LONG = {"elastic-restart", "exception", "both-stopped", "hostile-files"}
NEED_ROOT = {each.name for each in DISTURBANCES if each.root}
BY_NAME = {each.name: each for each in DISTURBANCES}


def marks(name: str) -> list[pytest.MarkDecorator]:
    wanted = [(pytest.mark.root, NEED_ROOT), (pytest.mark.long, LONG), (pytest.mark.thorough, THOROUGH)]
    return [mark for mark, names in wanted if name in names]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Disturbance], Outcome]:
    """The training without Eroica, run once for all that compare with it."""
    known: dict[tuple[object, ...], Outcome] = {}

    def run(disturbance: Disturbance) -> Outcome:
        key = disturbance.compared_with
        if key not in known:
            known[key] = disturbance.without_eroica(tmp_path_factory.mktemp("alone"))
        return known[key]

    return run


@pytest.mark.jobs
@pytest.mark.parametrize("name", [pytest.param(each, marks=marks(each)) for each in BY_NAME])
def test_the_training_does_not_notice(tmp_path: Path, alone: Callable[[Disturbance], Outcome], name: str) -> None:
    disturbance = BY_NAME[name]
    if disturbance.impossible_here:
        pytest.skip(f"{name}: {disturbance.impossible_here}")
    found = ["not tried"]
    for number in range(PAIRS.get(name, 1)):
        watched, _ = disturbance.with_eroica(tmp_path / f"job{number}")
        without = disturbance.without_eroica(tmp_path / f"alone{number}") if number else alone(disturbance)
        found = differences(watched, without, disturbance.exact_err)
        if not found:
            break
    assert found == []
    assert steps_compared(watched, without) >= 40
    assert "Traceback" not in "".join(watched.said_by_eroica)


SAME = Outcome(0, "0.0 0 0x1p+0 abc\n0.0 1 0x2p+0 def\nended\n", "")


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"status": 1}, "exit status 1"),
        ({"out": SAME.out.replace("def", "dee")}, "step 1"),
        ({"out": SAME.out.replace("ended\n", "")}, "standard output"),
        ({"out": SAME.out.replace("0.0 0 ", "0.0 1 ")}, "missing"),
        ({"err": "a warning\n"}, "standard error"),
        ({"err": '  File "/x/eroica/worker/hooks.py", line 3\n'}, "speaks of Eroica"),
    ],
)
def test_every_difference_would_be_found(change: dict[str, object], word: str) -> None:
    assert word in " ".join(differences(SAME._replace(**change), SAME))  # type: ignore[arg-type]
