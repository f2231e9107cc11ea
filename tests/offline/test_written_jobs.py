"""Folders made at random: nobody is accused without cause, and no slow job is healthy, whatever was lost of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from eroica.errors import EroicaError
from eroica.model.verdict import Verdict
from eroica.offline import diagnose
from eroica.offline.examine import examine
from eroica.settings import Settings
from support.written_jobs import (
    MISHAPS,
    Folder,
    Mishap,
    WrittenJob,
    cut,
    encoded,
    only_steps,
    random_folder,
    without_later_kernels,
    without_some_kernels,
    write_files,
    write_job,
)
from support.written_worker import WrittenWorker

OTHER_LIBRARIES = (
    "void deep_ep::internode::combine<false, 8, __nv_bfloat16, 8, 2>(int4*)",
    "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)",
)


def judged(folder: Path) -> Verdict:
    return examine([folder], Settings(readers=1)).verdict


def accused(verdict: Verdict) -> set[int]:
    return {worker for one in verdict.findings if one.role == "cause" and one.scope == "some" for worker in one.workers}


def wrongs(folder: Folder, verdict: Verdict) -> list[str]:
    """What a verdict says that is not true of the job."""
    truth, found = folder.job.truth, []
    if accused(verdict) - truth.late:
        found.append(f"accused {accused(verdict) - truth.late}")
    is_slow = bool(truth.late) and truth.wait_share >= 0.1
    told = "in the trace of" in verdict.summary  # healthy is said of those who are whole, and nothing of the others
    if is_slow and verdict.verdict == "healthy" and not told:
        found.append("a slow job is healthy")
    return found


@pytest.mark.parametrize("mishap", MISHAPS)
def test_what_was_lost_accuses_nobody(tmp_path: Path, mishap: Mishap) -> None:
    for seed in range(12):
        folder = random_folder(Random(f"{mishap} {seed}"), mishaps=(mishap,))
        try:
            verdict = judged(write_files(tmp_path / str(seed), folder.files))
        except EroicaError:
            assert len(folder.victims) == len(folder.files)
            continue
        assert not wrongs(folder, verdict), (seed, folder.job, folder.victims, verdict.summary)


@pytest.mark.parametrize("share", [0.02, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.97, 0.999])
def test_a_file_that_is_cut_is_never_worse_than_no_file(tmp_path: Path, share: float) -> None:
    job = WrittenJob(slow={2: 2.0})
    files = {rank: encoded(trace) for rank, trace in job.record().items()}
    without = judged(write_files(tmp_path / "without", {rank: files[rank] for rank in (0, 2, 3)}))
    verdict = judged(write_files(tmp_path / "cut", {**files, 1: cut(files[1], share)}))
    assert accused(verdict) == accused(without) == {2}
    assert verdict.coverage.notes[0] != without.coverage.notes[0]


def test_kernels_lost_at_random_leave_a_worker_out(tmp_path: Path) -> None:
    job = WrittenJob(ranks=4, layers=4)
    recorded = job.record()
    recorded[3] = without_some_kernels(recorded[3], 0.4, Random(3))
    verdict = judged(write_files(tmp_path, {rank: encoded(trace) for rank, trace in recorded.items()}))
    assert not accused(verdict) and verdict.coverage.missing == (3,)
    assert "kernels were lost" in verdict.coverage.notes[0]


def test_kernels_that_stop_halfway_are_damage_told_first(tmp_path: Path) -> None:
    job = WrittenJob(ranks=4, layers=4, steps=8)
    recorded = job.record()
    recorded[2] = without_later_kernels(recorded[2], 0.5)
    verdict = judged(write_files(tmp_path, {rank: encoded(trace) for rank, trace in recorded.items()}))
    assert verdict.verdict == "undetermined" and not verdict.findings and "worker 2 is damaged" in verdict.summary
    assert "kernels were lost" in verdict.coverage.notes[0]
    assert verdict.window is not None and verdict.window.last_iteration == job.first_step + 4


@pytest.mark.parametrize("share", [0.2, 0.5, 1.0])
def test_a_device_whose_kernels_were_lost_does_not_idle(tmp_path: Path, share: float) -> None:
    worker = WrittenJob(ranks=1, layers=12, steps=6, marks="profiler", phases=True)
    trace = without_some_kernels(worker.record()[0], share, Random(7))
    verdict = judged(write_files(tmp_path, {0: encoded(trace)}))
    assert verdict.verdict == "undetermined" and verdict.exit_code == 4 and not verdict.findings
    assert "kernels were lost" in verdict.summary


def test_most_of_the_steps_missing_leaves_a_worker_out(tmp_path: Path) -> None:
    job = WrittenJob(ranks=4, steps=10, slow={0: 2.0})
    recorded = job.record()
    recorded[1] = only_steps(recorded[1], 18, 19)
    verdict = judged(write_files(tmp_path, {rank: encoded(trace) for rank, trace in recorded.items()}))
    assert accused(verdict) == {0} and verdict.coverage.missing == (1,)
    assert "2 of the 10 iterations" in verdict.coverage.notes[0]


@pytest.mark.parametrize("kernel", OTHER_LIBRARIES, ids=[name[:30] for name in OTHER_LIBRARIES])
def test_communication_of_any_library_is_waiting(tmp_path: Path, kernel: str) -> None:
    verdict = judged(write_job(WrittenJob(slow={2: 2.25}, kernel=kernel), tmp_path))
    assert accused(verdict) == {2} and verdict.cause is not None and verdict.cause.gain == pytest.approx(0.53, abs=0.05)


@pytest.mark.parametrize("held_us", [30_000.0, 45_000.0, 80_000.0])
def test_what_a_host_does_beside_its_device_costs_the_same_with_stacks_and_without(
    tmp_path: Path, held_us: float
) -> None:
    job = WrittenJob(steps=10, held_us={1: held_us})
    late = held_us - 20_000 + 200
    gains = []
    for stacks in (True, False):
        verdict = judged(write_job(replace(job, stacks=stacks), tmp_path / str(stacks)))
        assert accused(verdict) == {1} and verdict.cause is not None, verdict.summary
        gains.append(verdict.cause.gain)
        assert not stacks or verdict.cause.function.name == "tokenize"
    assert gains == pytest.approx([late / (44_600 + late)] * 2, abs=0.03)


def test_who_waits_for_the_missing_is_open_where_no_communication_is_known(tmp_path: Path) -> None:
    job = WrittenJob(ranks=3, slow={0: 2.0}, kernel="void house::exchange<float>(float*)", jitter=0.0)
    recorded = job.record()
    files = {rank: encoded(recorded[rank]) for rank in (1, 2)}
    verdict = judged(write_files(tmp_path, files))
    assert verdict.verdict == "undetermined" and "who waits for whom" in verdict.summary


@pytest.mark.parametrize("seed", range(10))
def test_structure_is_nobodys_fault_in_groups_of_two(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    replicas, stages = random.choice((2, 3, 4)), random.choice((2, 3))
    job = WrittenJob(
        ranks=replicas * stages,
        stages=stages,
        long_stage=random.uniform(1.3, 2.0),
        steps=random.randrange(5, 12),
        seed=seed,
    )
    verdict = judged(write_job(job, tmp_path))
    assert not accused(verdict), verdict.summary


@pytest.mark.parametrize("seed", range(10))
def test_another_slowest_worker_each_time_is_told_with_its_share(tmp_path: Path, seed: int) -> None:
    job = WrittenJob(ranks=8, steps=12 + seed, rotating=1.6 + seed / 10, seed=seed)
    verdict = judged(write_job(job, tmp_path))
    assert not accused(verdict) and "another worker each time" in verdict.summary


@pytest.mark.parametrize("seed", range(10))
def test_several_collectives_of_one_step_cost_what_all_of_them_cost(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    job = WrittenJob(
        ranks=random.choice((3, 4, 8)), steps=1, layers=random.randrange(4, 9), slow={1: random.uniform(1.8, 3.0)},
        compute_us=240_000.0, seed=seed,
    )  # fmt: skip
    verdict = judged(write_job(job, tmp_path))
    assert accused(verdict) == {1} and verdict.cause is not None
    assert verdict.cause.gain == pytest.approx(job.truth.wait_share, abs=0.08)


def alone(worker: WrittenWorker, path: Path) -> Verdict:
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
    verdict = alone(replace(drawn(seed), stacks=seed % 2 == 0), tmp_path / "rank0.json")
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
    verdict = alone(worker, tmp_path / "rank0.json")
    assert verdict.window is not None and words in verdict.window.reason


@pytest.mark.parametrize("seed", range(10))
def test_iterations_end_with_the_work_of_their_device(tmp_path: Path, seed: int) -> None:
    worker = replace(drawn(seed), host_us=20.0, device_us=300.0, marks="steps", calls=6)
    verdict = alone(worker, tmp_path / "rank0.json")
    each_ms = worker.layers * worker.operators * worker.device_us / 1e3
    assert verdict.iteration.current_ms == pytest.approx(each_ms, rel=0.1)
    assert verdict.verdict == "healthy"


@pytest.mark.parametrize("seed", range(10))
def test_start_up_is_no_share_of_an_iteration(tmp_path: Path, seed: int) -> None:
    worker = replace(drawn(seed), startup_us=Random(seed).uniform(2e5, 3e7))
    verdict = alone(worker, tmp_path / "rank0.json")
    assert verdict.verdict == "undetermined" and "once per process" in verdict.summary
    assert "cudaFree" in verdict.summary and not verdict.findings


@pytest.mark.parametrize("seed", range(10))
def test_the_first_iteration_is_left_out_if_it_is_start_up(tmp_path: Path, seed: int) -> None:
    worker = replace(drawn(seed), startup_us=3e5, marks="steps", training=True, calls=6)
    verdict = alone(worker, tmp_path / "rank0.json")
    assert verdict.window is not None and verdict.window.first_iteration == 6
    assert any("start-up, once per process" in note for note in verdict.coverage.notes)
    assert "once per process" not in verdict.summary


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("training", [False, True])
def test_with_stacks_and_without_the_answer_is_the_same(tmp_path: Path, seed: int, training: bool) -> None:
    worker = replace(drawn(seed), marks="steps", training=training, calls=Random(seed).choice((1, 6)))
    with_stacks, without = (alone(replace(worker, stacks=on), tmp_path / "rank0.json") for on in (True, False))
    assert with_stacks.verdict == without.verdict
    causes = [
        [(one.cause, one.workers) for one in each.findings if one.role == "cause"] for each in (with_stacks, without)
    ]
    assert causes[0] == causes[1]
    assert "host-bound" in f"{with_stacks.summary} {causes[0]}".lower()
    assert "forward (layer.py:9)" in with_stacks.summary or "forward (model.py:5)" in with_stacks.summary
