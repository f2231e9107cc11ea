"""What each fault really does, seen in one process: something slower, something written, something started."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from eroica.errors import UsageError
from support.faults import FAULTS, FaultPlan, inject
from support.faults.copying import TRAINING
from support.faults.hosts import Strangers
from support.faults.quota import quota_group

torch = pytest.importorskip("torch")
EXTRAORDINARY = {"eroica", "fault", "faults", "inject", "slow", "stall", "heavy", "hang", "delay", "culprit", "burner"}


def eventually(condition: Callable[[], bool], within_s: float = 20.0) -> None:
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def steps(plan: FaultPlan, iterations: int, worker: int = 0) -> list[int]:
    """Runs the callbacks of so many iterations; how many there were in each."""
    counts = []
    with inject(plan, worker=worker, workers=2) as faults:
        for iteration in range(iterations):
            faults.iteration(iteration, model=None)
            counts.append(len(faults.callbacks))
            for callback in faults.callbacks:
                callback(iteration + 1)
    return counts


def batches(plan: FaultPlan, count: int, worker: int = 0, workers: int = 4) -> list[tuple[int, ...]]:
    """Shapes of so many batches of two items of ten tokens, one an iteration."""
    shapes = []
    with inject(plan, worker=worker, workers=workers) as faults:
        collate = faults.collate(torch.stack)
        for iteration in range(count):
            faults.iteration(iteration, model=None)
            shapes.append(tuple(collate([torch.zeros(10, dtype=torch.int64)] * 2).shape))
    return shapes


def test_injected_code_has_the_names_that_a_project_gives() -> None:
    for source in TRAINING.glob("*.py"):
        named = [
            node.name
            for node in ast.walk(ast.parse(source.read_text(encoding="utf-8")))
            if isinstance(node, ast.FunctionDef | ast.ClassDef)
        ]
        words = re.findall(r"[A-Z]?[a-z]+", " ".join([source.stem, *named]))
        assert not EXTRAORDINARY & {word.lower() for word in words}, source


def test_every_fault_says_in_its_docstring_and_name_what_it_is() -> None:
    assert len(FAULTS) >= 37
    for name, kind in FAULTS.items():
        assert kind.name == name
        assert kind.__doc__


def test_a_callback_is_called_only_while_its_fault_is_there() -> None:
    assert steps(FaultPlan("warm-up", from_iteration=2, until=4, options={"tries": 1}), 6) == [0, 0, 1, 1, 0, 0]


def test_the_others_have_no_callback() -> None:
    assert steps(FaultPlan("memory-copies", worker=1), 2, worker=0) == [0, 0]


def test_a_checkpoint_is_written_whole_every_few_steps_and_removed_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    written: list[tuple[int, int]] = []
    with inject(FaultPlan("blocking-checkpoint", options={"megabytes": 1, "every": 3}), worker=0, workers=1) as faults:
        for step in range(1, 8):
            faults.iteration(step, model=None)
            (writer,) = faults.callbacks
            writer(step)
            directory = Path(writer.directory.name)  # type: ignore[attr-defined]
            files = list(directory.iterdir())
            assert [file.name for file in files] == (["latest.pt"] if step >= 3 else [])
            written += [(torch.load(file)["step"], file.stat().st_size) for file in files]
    assert [step for step, _ in written] == [3, 3, 3, 6, 6]
    assert min(size for _, size in written) >= 1_000_000
    assert len(synced) == 2
    assert not directory.exists()


def test_a_line_waits_for_its_server_which_ends_with_the_fault() -> None:
    with inject(FaultPlan("blocking-log", options={"delay_s": 0.05}), worker=0, workers=1) as faults:
        faults.iteration(0, model=None)
        server = _servers()
        assert len(server) == 1
        began = time.monotonic()
        for callback in faults.callbacks:
            callback(1)
            callback(2)
        assert time.monotonic() - began >= 0.1
    assert not server[0].is_running()


def test_blocks_take_longer_while_storage_is_slow_and_no_longer() -> None:
    plan = FaultPlan("slow-storage", from_iteration=1, until=2, options={"delay_s": 0.2, "items_per_block": 2})
    with inject(plan, worker=0, workers=1) as faults:
        dataset = faults.dataset(list(range(100)))
        server = _servers()
        spent = []
        for iteration in range(3):
            faults.iteration(iteration, model=None)
            time.sleep(0.1)  # the signal has arrived by then
            began = time.monotonic()
            items = [dataset[20 * iteration + number] for number in range(4)]
            spent.append(time.monotonic() - began)
            assert items == list(range(20 * iteration, 20 * iteration + 4))
    assert spent[1] >= 0.4 > max(spent[0], spent[2])
    assert not server[0].is_running()


def _servers() -> list[psutil.Process]:
    """Servers that faults of this process have started."""
    return [child for child in psutil.Process().children() if "storage.py" in " ".join(child.cmdline())]


def test_pairs_are_counted_for_each_item_while_the_fault_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    from support.faults.training.batching import CountedBatches

    counted: list[int] = []
    monkeypatch.setattr(CountedBatches, "_count_pairs", lambda _self, _item, wanted: counted.append(wanted))
    plan = FaultPlan("heavy-collate", worker=0, from_iteration=1, until=2, options={"pairs": 7})
    assert batches(plan, 3) == [(2, 10)] * 3
    assert counted == [7, 7]


def test_as_many_pairs_are_counted_as_wanted() -> None:
    from support.faults.training.batching import CountedBatches

    counts = CountedBatches._count_pairs(torch.tensor([1, 2, 1]), 30)
    assert sum(counts.values()) == 30
    assert counts[1, 2] == 10


def test_one_worker_has_larger_batches() -> None:
    plan = FaultPlan("load-imbalance", worker=2, from_iteration=1, options={"times": 3})
    assert batches(plan, 3, worker=2) == [(2, 10), (6, 10), (6, 10)]
    assert batches(plan, 3, worker=1) == [(2, 10)] * 3


def test_the_larger_batch_wanders_and_exactly_one_worker_has_it() -> None:
    rows = [[shape[0] for shape in batches(FaultPlan("wandering-load"), 60, worker=worker)] for worker in range(4)]
    assert [sorted(turn) for turn in zip(*rows, strict=True)] == [[2, 2, 2, 16]] * 60
    assert all(max(mine) == 16 for mine in rows)


def test_a_batch_ramp_rises_in_steps_on_all_workers_alike() -> None:
    plan = FaultPlan("batch-ramp", options={"every": 3, "times": 3})
    ramps = [[shape[0] for shape in batches(plan, 10, worker=worker)] for worker in range(2)]
    assert ramps[0] == ramps[1] == [2, 2, 4, 4, 4, 6, 6, 6, 6, 6]


def test_lengths_change_and_are_the_same_on_all_workers() -> None:
    lengths = [batches(FaultPlan("changing-length"), 20, worker=worker) for worker in range(2)]
    assert lengths[0] == lengths[1]
    assert len({shape[1] for shape in lengths[0]}) >= 4
    assert {shape[1] for shape in lengths[0]} <= set(range(5, 11))


def test_items_made_from_text_are_the_same_items(monkeypatch: pytest.MonkeyPatch) -> None:
    from support.faults.training.parts import TokenizedText

    turns: list[int] = []
    monkeypatch.setattr(TokenizedText, "_split_text", turns.append)
    with inject(
        FaultPlan("many-loader-workers", from_iteration=1, options={"steps": 5}), worker=0, workers=1
    ) as faults:
        dataset = faults.dataset([10, 11])
        items = []
        for iteration in range(2):
            faults.iteration(iteration, model=None)
            items.append(dataset[iteration])
    assert (items, len(dataset), turns) == ([10, 11], 2, [0, 5])


def test_copies_are_made_anew_in_each_step() -> None:
    with inject(FaultPlan("memory-copies", options={"megabytes": 1, "copies": 3}), worker=0, workers=1) as faults:
        faults.iteration(0, model=None)
        (history,) = faults.callbacks
        history(1)
        first = list(history.kept)  # type: ignore[attr-defined]
        history(2)
        second = list(history.kept)  # type: ignore[attr-defined]
    assert len(first) == len(second) == 3
    assert not {copy.data_ptr() for copy in first} & {copy.data_ptr() for copy in second}


def test_each_number_has_a_collective_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    reduced: list[int] = []
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda tensor: reduced.append(tensor.numel()))
    assert steps(FaultPlan("tiny-collectives", options={"tensors": 5}), 2) == [1, 1]
    assert reduced == [1] * 10


def test_a_thread_computes_while_the_fault_is_there() -> None:
    before = threading.active_count()
    with inject(FaultPlan("busy-thread", from_iteration=1, until=2), worker=0, workers=1) as faults:
        alive = []
        for iteration in range(3):
            faults.iteration(iteration, model=None)
            if iteration == 2:
                eventually(lambda: threading.active_count() == before)
            alive.append(threading.active_count() - before)
    assert alive == [0, 1, 0]


def test_anomaly_detection_goes_on_and_off() -> None:
    with inject(FaultPlan("anomaly-mode", until=1), worker=0, workers=1) as faults:
        faults.iteration(0, model=None)
        assert torch.is_anomaly_enabled()
        faults.iteration(1, model=None)
        assert not torch.is_anomaly_enabled()


def test_warm_up_tries_less_and_less() -> None:
    products: list[int] = []
    plan = FaultPlan("warm-up", options={"steps": 4, "tries": 8})
    with inject(plan, worker=0, workers=1) as faults:
        faults.iteration(0, model=None)
        (choice,) = faults.callbacks
        choice.multiply = lambda *_: products.append(step)  # type: ignore[attr-defined]
        for step in range(6):
            choice(step)
    assert [products.count(step) for step in range(6)] == [8, 6, 4, 2, 0, 0]


def test_everybody_pauses_once(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("support.faults.training.watching.time", SimpleNamespace(sleep=slept.append))
    steps(FaultPlan("pause-of-all", from_iteration=1, options={"seconds": 4}), 5)
    assert slept == [4]


def test_operators_get_more_threads_and_their_old_number_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    before = torch.get_num_threads()
    with inject(FaultPlan("wrong-threads", options={"threads": 5}), worker=0, workers=1) as faults:
        faults.iteration(0, model=None)
        assert (torch.get_num_threads(), os.environ["OMP_NUM_THREADS"]) == (5, "5")
    assert torch.get_num_threads() == before


def test_a_stranger_computes_belongs_to_nobody_and_ends_when_told() -> None:
    strangers = Strangers()
    core = max(os.sched_getaffinity(0))
    try:
        stranger = psutil.Process(strangers.start(core))
        assert stranger.cpu_affinity() == [core]
        assert os.getpid() not in [process.pid for process in stranger.parents()]
        assert not [name for name in stranger.environ() if name.startswith(("EROICA", "RANK"))]
        eventually(lambda: sum(stranger.cpu_times()[:2]) > 0.03)
    finally:
        strangers.end()
    eventually(lambda: not _runs(stranger))


def test_a_stranger_ends_with_the_process_that_wanted_it() -> None:
    start = "print(Strangers().start(megabytes=2), flush=True)"
    code = f"import os; from support.faults.hosts import Strangers; {start}; os._exit(0)"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    pid = int(output)
    eventually(lambda: not psutil.pid_exists(pid) or not _runs(psutil.Process(pid)))


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize(
    ("fault", "strangers"), [("pinned-cpu", 4), ("one-core", 0), ("burners", 4), ("memory-hog", 3)]
)
def test_cores_are_taken_and_given_back(fault: str, strangers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []
    monkeypatch.setattr(Strangers, "start", lambda _self, core=-1, **_: started.append(core))
    before = os.sched_getaffinity(0)
    wanted = {"pinned-cpu": {max(before)}, "one-core": {min(before)}}.get(fault, before)
    with inject(FaultPlan(fault), worker=0, workers=1) as faults:
        faults.iteration(0, model=None)
        assert os.sched_getaffinity(0) == wanted
    assert os.sched_getaffinity(0) == before
    assert started == [max(before) if fault == "pinned-cpu" else -1] * strangers


def test_a_noisy_host_has_a_stranger_that_mostly_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[dict[str, Any]] = []
    monkeypatch.setattr(Strangers, "start", lambda _self, **options: started.append(options))
    with inject(FaultPlan("noisy-host"), worker=0, workers=1) as faults:
        faults.iteration(0, model=None)
    assert len(started) == 1
    assert started[0]["idle_s"] > 10 * started[0]["busy_s"]


def tree(root: Path, version: int) -> Path:
    """A hierarchy of control groups as the kernel shows it, and the file that says where a process is."""
    own = root / "own"
    group = root / ("cpu/jobs/a" if version == 1 else "jobs/a")
    group.mkdir(parents=True)
    lines = {1: "4:memory:/elsewhere\n2:cpu,cpuacct:/jobs/a\n0::/\n", 2: "0::/jobs/a\n"}
    own.write_text(lines[version])
    offer = {1: ("cpu.cfs_quota_us", "-1"), 2: ("cgroup.subtree_control", "cpu memory")}
    (group / offer[version][0]).write_text(offer[version][1])
    return own


@pytest.mark.parametrize("version", [1, 2])
def test_a_quota_group_lies_below_our_own(version: int, tmp_path: Path) -> None:
    own = tree(tmp_path, version)
    group = quota_group("q", tmp_path, own)
    assert group.before == tmp_path / ("cpu/jobs/a" if version == 1 else "jobs/a")
    assert group.directory == group.before / "q"


def test_a_quota_is_written_before_the_process_enters(tmp_path: Path) -> None:
    group = quota_group("q", tmp_path, tree(tmp_path, 1))
    group.enter(0.25)
    written = {file.name: file.read_text() for file in group.directory.iterdir()}
    assert written == {
        "cpu.cfs_period_us": "100000",
        "cpu.cfs_quota_us": "25000",
        "cgroup.procs": str(os.getpid()),
    }
    group.leave()
    assert (group.before / "cgroup.procs").read_text() == str(os.getpid())


def test_without_a_group_that_can_be_divided_the_fault_says_so(tmp_path: Path) -> None:
    own = tree(tmp_path, 2)
    (tmp_path / "jobs/a/cgroup.subtree_control").write_text("memory")
    with pytest.raises(UsageError, match="cpu-quota needs a control group"):
        quota_group("q", tmp_path, own)


@pytest.mark.root
def test_a_real_quota_takes_the_processor_away() -> None:
    try:
        quota_group("probe")
    except UsageError as error:
        pytest.skip(str(error))
    code = """
import time
from support.faults import FaultPlan, inject
with inject(FaultPlan("cpu-quota", options={"cores": 0.1}), worker=0, workers=1) as faults:
    faults.iteration(0, model=None)
    wall, cpu = time.monotonic(), time.process_time()
    while time.monotonic() - wall < 0.6:
        pass
    print((time.process_time() - cpu) / (time.monotonic() - wall))
"""
    place = quota_group("probe").before
    others = set(place.glob("quota-*"))
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert float(output) < 0.5
    assert set(place.glob("quota-*")) <= others
