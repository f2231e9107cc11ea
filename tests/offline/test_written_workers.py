"""One worker at a time: iterations, start-up, inference, the host's doing, with stacks and without."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from eroica.model.verdict import Verdict
from eroica.offline import diagnose
from eroica.settings import Settings
from support.written_worker import WrittenWorker


def judged(worker: WrittenWorker, path: Path) -> Verdict:
    path.write_text(json.dumps(worker.record()))
    return diagnose(path, settings=Settings(readers=1))


def drawn(seed: int) -> WrittenWorker:
    random = Random(seed)
    return WrittenWorker(
        calls=random.randrange(4, 9),
        layers=random.choice((4, 8, 12)),
        operators=random.choice((3, 4, 6)),
        host_us=random.uniform(60.0, 200.0),
        device_us=random.uniform(5.0, 20.0),
        jitter=0.02,
        seed=seed,
    )


@pytest.mark.parametrize("seed", range(10))
def test_layers_without_marks_are_no_iterations(tmp_path: Path, seed: int) -> None:
    verdict = judged(replace(drawn(seed), stacks=seed % 2 == 0), tmp_path / "rank0.json")
    assert verdict.verdict == "undetermined" and "No iterations were found" in verdict.summary
    assert "looks like inference" in verdict.summary and not verdict.findings


@pytest.mark.parametrize(
    ("marks", "training", "words"),
    [
        ("steps", True, "the profiler's steps"),
        ("none", True, "end with the optimizer's steps"),
        ("none", False, "no iterations were found"),
    ],
)
def test_how_iterations_were_found_is_always_said(tmp_path: Path, marks: str, training: bool, words: str) -> None:
    worker = WrittenWorker(calls=6, marks=marks, training=training)  # type: ignore[arg-type]
    verdict = judged(worker, tmp_path / "rank0.json")
    assert verdict.window is not None and words in verdict.window.reason


@pytest.mark.parametrize("seed", range(10))
def test_iterations_end_with_the_work_of_their_device(tmp_path: Path, seed: int) -> None:
    worker = replace(drawn(seed), host_us=20.0, device_us=300.0, marks="steps", calls=6)
    verdict = judged(worker, tmp_path / "rank0.json")
    each_ms = worker.layers * worker.operators * worker.device_us / 1e3
    assert verdict.iteration.current_ms == pytest.approx(each_ms, rel=0.1)
    assert verdict.verdict == "healthy"


@pytest.mark.parametrize("seed", range(10))
def test_start_up_is_no_share_of_an_iteration(tmp_path: Path, seed: int) -> None:
    worker = replace(drawn(seed), startup_us=Random(seed).uniform(2e5, 3e7))
    verdict = judged(worker, tmp_path / "rank0.json")
    assert verdict.verdict == "undetermined" and "once per process" in verdict.summary
    assert "cudaFree" in verdict.summary and not verdict.findings


@pytest.mark.parametrize("seed", range(10))
def test_the_first_iteration_is_left_out_if_it_is_start_up(tmp_path: Path, seed: int) -> None:
    worker = replace(drawn(seed), startup_us=3e5, marks="steps", training=True, calls=6)
    verdict = judged(worker, tmp_path / "rank0.json")
    assert verdict.window is not None and verdict.window.first_iteration == 6
    assert any("start-up, once per process" in note for note in verdict.coverage.notes)
    assert "once per process" not in verdict.summary


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("training", [False, True])
def test_with_stacks_and_without_the_answer_is_the_same(tmp_path: Path, seed: int, training: bool) -> None:
    worker = replace(drawn(seed), marks="steps", training=training, calls=Random(seed).choice((1, 6)))
    with_stacks, without = (judged(replace(worker, stacks=on), tmp_path / "rank0.json") for on in (True, False))
    assert with_stacks.verdict == without.verdict
    causes = [
        [(one.cause, one.workers) for one in each.findings if one.role == "cause"] for each in (with_stacks, without)
    ]
    assert causes[0] == causes[1]
    assert "host-bound" in f"{with_stacks.summary} {causes[0]}".lower()
    assert "forward (layer.py:9)" in with_stacks.summary or "forward (model.py:5)" in with_stacks.summary
