"""Who else is on the host: real processes started by the test, and what is told of them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from eroica.hardware import neighbors
from eroica.hardware.neighbors import (
    Household,
    NeighborProbe,
    Process,
    display_name,
    parse_process,
    read_processes,
)
from eroica.hardware.store import read_samples
from eroica.hardware.writer import SampleWriter

BURN = "while True: pass"
WORKER = "import os, time\nif os.fork() == 0:\n    while True: pass\nprint('up', flush=True)\ntime.sleep(60)"
STAT = b"4242 (odd (name) x) S 17 1 1 0 -1 4194304 0 0 0 0 150 50 30 20 20 0 1 0 9000 1000 256 1"


def start(*arguments: str, **more: str) -> subprocess.Popen[str]:
    environment = {**os.environ, **more}
    return subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, text=True, env=environment)


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that the test starts; none outlives it."""
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        subprocess.run(["kill", "-9", *map(str, _below(process.pid)), str(process.pid)], check=False)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _below(pid: int) -> list[int]:
    return [one.pid for one in read_processes().values() if one.parent == pid]


def survey(directory: Path, worker: int, until_used_s: float, burner: int) -> dict[str, float]:
    """Cores of every process followed, after the burner has used so much CPU time."""
    writer = SampleWriter(directory)
    probe = NeighborProbe(writer, Household([worker]))
    begin = read_processes()[burner].total_ns
    while read_processes()[burner].total_ns - begin < until_used_s * 1e9:
        time.sleep(0.02)
    probe.close()
    writer.close()
    samples = read_samples(directory)
    return {one.channel.device: float(one.value[-1]) for one in samples.named("neighbor_cpu")}


def test_a_busy_process_beside_the_job_is_followed_and_the_jobs_own_are_not(
    started: list[subprocess.Popen[str]], tmp_path: Path
) -> None:
    script = tmp_path / "serve.py"
    script.write_text(BURN)
    worker, burner = start("-c", WORKER), start(str(script), "--token", "geheim")
    started += [worker, burner]
    assert worker.stdout is not None and worker.stdout.readline() == "up\n"
    (relative,) = _below(worker.pid)
    found = survey(tmp_path / "samples", worker.pid, 0.3, burner.pid)
    pids = {int(device.partition("/")[0]) for device in found}
    assert burner.pid in pids
    assert not {worker.pid, relative, os.getpid(), os.getppid()} & pids
    (name,) = (device for device in found if device.startswith(f"{burner.pid}/"))
    assert name.endswith("(serve.py)")
    samples = read_samples(tmp_path / "samples")
    job, outside = (samples.find("survey_cpu", whose) for whose in ("job", "outside"))
    assert job is not None and outside is not None
    assert job.value.max() > 0.01 and outside.value.max() >= max(0.05, found[name] - 0.05)
    stored = b"".join(path.read_bytes() for path in (tmp_path / "samples").iterdir())
    assert b"geheim" not in stored and b"--token" not in stored


def test_another_rank_of_the_same_job_is_no_neighbor_and_one_of_another_job_is(
    started: list[subprocess.Popen[str]], tmp_path: Path
) -> None:
    meeting = {"RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}
    worker = start("-c", WORKER, **meeting)
    rank = start("-c", BURN, **{**meeting, "RANK": "1"})
    stranger = start("-c", BURN, **{**meeting, "RANK": "1", "MASTER_PORT": "29999"})
    left_behind = start("-c", BURN, **meeting)  # by a worker, whose environment it has
    started += [worker, rank, stranger, left_behind]
    assert worker.stdout is not None and worker.stdout.readline() == "up\n"
    processes = read_processes()
    home = Household([worker.pid])
    home.sort(processes)
    assert not home.is_stranger(processes[rank.pid])
    assert home.is_stranger(processes[stranger.pid])
    assert home.is_stranger(processes[left_behind.pid])
    assert not any(home.is_stranger(processes[pid]) for pid in _below(worker.pid))


def test_nothing_is_said_of_hidden_processes_but_that_they_are_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neighbors, "hidden_because", lambda: "this is a container with process ids of its own")
    writer = SampleWriter(tmp_path)
    NeighborProbe(writer, Household([os.getpid()])).close()
    writer.close()
    (note,) = read_samples(tmp_path).notes
    assert note.startswith("processes beside the job cannot all be seen: this is a container")


class Survey:
    """A host whose processes the test makes up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
        self.now: dict[int, Process] = {}
        self.time_ns = 1_000_000_000_000
        monkeypatch.setattr(neighbors, "read_processes", lambda *_: dict(self.now))
        monkeypatch.setattr(neighbors.time, "monotonic_ns", lambda: self.time_ns)
        monkeypatch.setattr(neighbors, "arguments_of", lambda _: [])
        self.directory = directory
        self.writer = SampleWriter(directory)

    def put(self, pid: int, total_s: float, parent: int = 1) -> None:
        self.now[pid] = Process(pid, f"p{pid}", parent, False, int(total_s * 1e9), 5)

    def cores(self) -> dict[str, float]:
        self.writer.close()
        return {
            one.channel.device: float(one.value.sum()) for one in read_samples(self.directory).named("neighbor_cpu")
        }


def test_children_that_end_count_once_whether_they_were_seen_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Survey(monkeypatch, tmp_path)
    host.put(7000001, 100.0)  # a shell that has waited for children long ago
    host.put(7000002, 50.0, parent=7000001)  # a child that is older than the window
    probe = NeighborProbe(host.writer, Household([]))
    host.time_ns += 1_000_000_000
    host.put(7000002, 51.0, parent=7000001)
    probe._survey()
    host.time_ns += 1_000_000_000
    del host.now[7000002]
    host.put(7000001, 100.0 + 51.0 + 0.5)  # it ended, and so did one that lived too briefly to be seen
    probe._survey()
    probe.close()
    found = host.cores()
    assert found["7000002/p7000002"] == pytest.approx(1.0)
    assert found["7000001/p7000001"] == pytest.approx(0.5)


def test_a_process_with_an_odd_name_is_read_and_one_cut_short_refused() -> None:
    process = parse_process(STAT)
    assert (process.pid, process.name, process.parent, process.kernel) == (4242, "odd (name) x", 17, False)
    assert process.total_ns == 2_500_000_000
    assert process.start == 9000
    assert parse_process(STAT.replace(b"4194304", b"2129984")).kernel
    with pytest.raises(ValueError, match="no process"):
        parse_process(STAT[:30])


@pytest.mark.parametrize(
    ("name", "arguments", "shown"),
    [
        ("python3", ["/usr/bin/python3", "-u", "/home/me/serve.py", "--password", "x"], "python3 (serve.py)"),
        ("python", ["python", "-X", "dev", "-m", "vllm.server", "x"], "python (vllm.server)"),
        ("python", ["python", "-c", "print('secret')"], "python"),
        ("bash", ["-bash"], "bash"),
        ("serve.sh", ["/bin/bash", "./serve.sh"], "serve.sh"),
        ("stress", ["stress", "--cpu", "4"], "stress"),
        ("kernel", [], "kernel"),
        ("bash", ["bash", "-lc", "curl -H 'Authorization: Bearer abc'"], "bash"),
        ("python", ["python", "-uc", "login('SECRET')"], "python"),
        ("python", ["python", "-mhttp.server", "--token", "SECRET"], "python"),
        ("python", ["python", "-m", "http.server", "--token", "SECRET"], "python (http.server)"),
        ("python", ["python", "-W", "ignore", "-B", "/srv/x/serve.py", "SECRET"], "python (serve.py)"),
        ("python", ["python", "SECRET"], "python"),
        ("python", ["python", "-X"], "python"),
        ("node", ["node", "/srv/app.js", "--key", "SECRET"], "node (app.js)"),
    ],
)
def test_names_tell_the_script_and_no_other_argument(name: str, arguments: list[str], shown: str) -> None:
    assert display_name(name, arguments) == shown
