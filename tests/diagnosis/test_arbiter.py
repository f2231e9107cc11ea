"""Candidates against each other: which of two tells the time of both, and which two are two problems."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from eroica.diagnosis.arbiter import _is_vaguer, select_causes
from eroica.diagnosis.candidate import Candidate
from eroica.diagnosis.context import WindowContext
from eroica.diagnosis.frames import NOTHING, Focus
from eroica.diagnosis.view import View
from eroica.localize import localize
from eroica.model.causes import CATALOG
from eroica.settings import Settings
from support import FleetPlan, synthesize, synthesize_window

WORKERS = 4


def function(name: str, row: int, *, stack: tuple[str, ...] = (), is_own: bool = True) -> Focus:
    frame = f"{name} (train.py:{row})"
    return Focus(
        name=name, place=f"train.py:{row}", stack=stack or (frame,), functions=(row,), share=1.0, is_own=is_own,
        is_specific=True,
    )  # fmt: skip


def accused(cause: str, focus: Focus = NOTHING, workers: tuple[int, ...] = (0, 1, 2, 3), **more: Any) -> Candidate:
    each_us = more.pop("each_us", 10_000.0)
    removed_WI = np.zeros((WORKERS, 20))
    removed_WI[list(workers)] = each_us
    fields: dict[str, Any] = {
        "scope": "all" if len(workers) == WORKERS else "some", "functions": focus.functions, "kind": "python",
        "mean_us": each_us, "reference_us": 0.0, "reference": "baseline", "strength": 10.0, "coverage": 1.0,
        "agreement": 1.0, "least_gain": 0.05,
    }  # fmt: skip
    return Candidate(cause=cause, workers=workers, focus=focus, removed_us=removed_WI, **(fields | more))


def view() -> View:
    patterns = synthesize(FleetPlan(workers=WORKERS, iterations=20), (), 1)
    settings = Settings()
    context = WindowContext(job="job", window=synthesize_window(patterns, "manual"), expected_workers=WORKERS)
    return View(localize(patterns, (), settings), context, settings)


def told(one: Candidate, other: Candidate) -> bool:
    """Whether the other tells more exactly what one sees, beyond that both have the same rows."""
    return _is_vaguer(one, other) and not _is_vaguer(other, one)


def test_python_of_another_function_is_another_problem() -> None:
    saving = accused("blocking-checkpoint", function("save", 1))
    scoring = accused("python-on-critical-path", function("score", 2))
    own_lines = accused("python-on-critical-path", function("save", 1), functions=(9,))
    assert told(own_lines, saving)
    assert not told(scoring, saving)
    assert not told(accused("python-on-critical-path", function("tokenize", 3, is_own=False)), saving)


def test_a_process_that_is_held_back_tells_of_the_library_that_it_happens_to_be_in() -> None:
    """It has no functions of its own; a cause that has some tells only of Python that shares them."""
    read = accused("python-on-critical-path", function("read", 1, is_own=False), (2,))
    held = accused("compute-slow", NOTHING, (2,), stands_for=frozenset({"python-on-critical-path"}))
    again = accused("python-on-critical-path", function("unpack_hook", 2), (2,), stands_for=held.stands_for)
    assert told(read, held)
    assert not told(read, again)


def test_a_cause_of_some_is_not_explained_by_a_crowd_of_all() -> None:
    crowd = accused("cpu-contention", stands_for=frozenset({"compute-slow"}), gain=0.4, each_us=40_000.0)
    assert told(accused("compute-slow", function("aten::mm", 1), kind="compute"), crowd)
    assert not told(accused("compute-slow", function("aten::mm", 1), (2,), kind="compute"), crowd)


def test_what_gains_too_little_to_be_told_takes_no_other_cause_with_it() -> None:
    window = view()
    iteration_us = window.iteration_us
    settings: dict[str, Any] = {"reference": "expectation", "least_gain": 0.03}
    loading = accused("slow-data-loading", function("next", 1), each_us=0.06 * iteration_us, **settings)
    reading = accused(
        "slow-storage-read", function("read", 1), functions=(1,), each_us=0.045 * iteration_us, **settings
    )
    assert told(loading, reading)
    assert [one.candidate.cause for one in select_causes(window, [loading, reading])] == ["slow-storage-read"]
    small = msgspec.structs.replace(reading, least_gain=0.1)
    assert [one.candidate.cause for one in select_causes(window, [loading, small])] == ["slow-data-loading"]
    assert [one.decision for one in window.weighed if one.candidate is small] == [
        "it gains less than the 10 % from which it counts"
    ]


def test_a_link_that_gains_too_little_hides_no_slow_collective() -> None:
    window = view()
    settings: dict[str, Any] = {"kind": "collective", "reference": "expectation", "each_us": 0.2 * window.iteration_us}
    common = accused("slow-collective-everywhere", function("nccl:all_reduce", 1), **settings)
    link = accused("slow-link", function("nccl:all_reduce", 2), (2,), hosts=("node-1",), **settings)
    assert [one.candidate.cause for one in select_causes(window, [common, link])] == ["slow-link"]
    small = msgspec.structs.replace(link, removed_us=link.removed_us / 20)
    assert [one.candidate.cause for one in select_causes(window, [common, small])] == ["slow-collective-everywhere"]


def test_what_holds_little_of_the_time_does_not_tell_it() -> None:
    copies = accused("memory-operation-storm", function("aten::copy_", 1), (3,), kind="memory")
    everybody = accused("compute-slow", function("aten::mm", 2), kind="compute")
    assert not told(everybody, copies)
    assert told(accused("compute-slow", function("aten::mm", 2), (3,), kind="compute"), copies)


def test_messages_that_grew_are_nobody_elses_doing() -> None:
    crowd = accused("sibling-process", gain=0.4, each_us=40_000.0)
    larger = accused("slow-collective-everywhere", function("nccl:all_reduce", 1), kind="collective")
    assert told(larger, crowd)
    assert not told(accused("slow-collective-everywhere", larger.focus, kind="collective", is_own_doing=True), crowd)


def test_turns_say_more_than_the_mean_of_all_but_not_where_loaders_set_the_pace() -> None:
    mean = accused("python-on-critical-path", function("score", 1))
    turns = accused("python-on-critical-path", function("score", 1), scope="rotating")
    assert told(mean, turns)
    loaders = accused("slow-data-loading", function("read", 2))
    assert told(accused("slow-data-loading", function("read", 2), scope="rotating"), loaders)
    assert told(accused("unknown", scope="rotating", kind="other"), loaders)
    assert not told(accused("compute-slow", function("aten::mm", 3), scope="rotating", kind="compute"), loaders)


@pytest.mark.parametrize("slug", sorted(CATALOG))
def test_the_table_names_causes_and_has_no_circle(slug: str) -> None:
    seen, waiting = set(), [slug]
    while waiting:
        for vaguer in CATALOG[waiting.pop()].brings_about:
            assert vaguer in CATALOG and vaguer != slug
            if vaguer not in seen:
                seen.add(vaguer)
                waiting.append(vaguer)
