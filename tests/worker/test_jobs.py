"""Real jobs: who becomes a worker, do their iteration ids agree, does a window come back, is the training untouched."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from watched_jobs import PROGRAMS, TORCHRUN, Host, OneOrder

from eroica.model.window import Capture
from eroica.trace.kineto import read_trace
from eroica.wire.beat import CLOSED, DONE, OPEN, PROBE, SKIPPED, STATE_NAMES, WINDOW

pytestmark = pytest.mark.jobs
PLAIN = [sys.executable, str(PROGRAMS / "plain.py")]
RANKS = str(PROGRAMS / "ranks.py")


def captured(host: Host, pid: int) -> Capture:
    return msgspec.json.decode((host.root / "scratch" / str(pid) / "capture.json").read_bytes(), type=Capture)


def trace_of(capture: Capture) -> list[dict]:
    return msgspec.json.decode(Path(capture.trace_path).read_bytes())["traceEvents"]


def without_eroica(command: list[str], host: Host) -> subprocess.CompletedProcess[str]:
    environment = host.environment()
    del environment["PYTHONPATH"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)


def losses(place: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(place.glob("loss-*"))}


def test_a_window_of_a_single_process_comes_back_and_its_output_is_untouched(host: Host) -> None:
    command = [*PLAIN, "--pause", "0.01", "--iterations", "80"]
    order = OneOrder(1, WINDOW, sampling_hz=100)
    watched = host.run(command, order)
    plain = without_eroica(command, host)
    assert (watched.returncode, watched.stdout, watched.stderr) == (plain.returncode, plain.stdout, plain.stderr)
    (pid,) = host.workers
    worker = host.workers[pid]
    capture = captured(host, pid)
    assert (capture.first_iteration, capture.last_iteration) == (order.first, order.last)
    assert len(capture.boundaries_ns) == 6
    told = capture.workload
    assert (told.parameters, told.gradients, told.batches, told.samples, told.elements) == (1153, 4, 1, 4, 16)
    assert {OPEN, CLOSED, DONE} <= {result.status for result in worker.results} | {OPEN, CLOSED}
    assert worker.results[-1].status == DONE
    assert worker.beats[-1].iteration == 80
    assert STATE_NAMES[worker.beats[-1].state] == "finished"
    assert not list(host.runtime.glob("*.beat"))


def test_sampled_stacks_from_inside_are_balanced_and_name_the_loop(host: Host) -> None:
    host.run([*PLAIN, "--pause", "0.02", "--iterations", "60"], OneOrder(1, WINDOW, sampling_hz=100))
    (pid,) = host.workers
    capture = captured(host, pid)
    events = msgspec.json.decode(Path(capture.stacks_path).read_bytes())
    meta = msgspec.json.decode((Path(capture.stacks_path).parent / "stacks.meta.json").read_bytes())
    open_frames: dict[int, list[str]] = {}
    for event in events:
        stack = open_frames.setdefault(event["tid"], [])
        if event["ph"] == "B":
            stack.append(event["name"])
        else:
            assert stack.pop() == event["name"]
    assert not any(open_frames.values())
    assert any(event["name"] == "main" and event["args"]["filename"].endswith("plain.py") for event in events)
    assert any(event["name"] == f"thread ({pid}): MainThread" for event in events)
    assert abs(meta["start_monotonic_ns"] - capture.boundaries_ns[0]) < 50_000_000


def test_a_probe_answers_with_its_events_and_leaves_no_trace(host: Host) -> None:
    host.run([*PLAIN, "--pause", "0.01", "--iterations", "60"], OneOrder(1, PROBE, length=1))
    (pid,) = host.workers
    result = host.workers[pid].results[-1]
    assert (result.status, result.kind) == (DONE, PROBE)
    assert result.events > 50
    assert result.duration_ns > 5_000_000
    assert not list((host.root / "scratch" / str(pid)).iterdir())


@pytest.mark.thorough
def test_a_probe_tells_whom_sends_go_to_in_a_group_of_three(host: Host) -> None:
    command = [*TORCHRUN[:-1], "3", RANKS, "--kind", "chain", "--iterations", "200", "--out", str(host.root)]
    first, second = OneOrder(3, PROBE, length=1), OneOrder(3, PROBE, at=40, length=1)

    def order(host: Host) -> None:
        first(host)
        done = [worker.results and worker.results[-1].status == DONE for worker in host.workers.values()]
        if first.first and not second.first and all(done):
            assert not list(host.root.glob("scratch/*/probe.json"))  # only the next probe records inputs
            second(host)

    watched = host.run(command, order)
    assert watched.returncode == 0, watched.stderr
    pids = {rank: worker.reader.identity["pid"] for rank, worker in host.by_rank().items()}
    probes = {rank: read_trace(host.root / "scratch" / str(pid) / "probe.json") for rank, pid in pids.items()}
    told = {
        rank: [(one.name, one.peer_in_group) for one in table.collectives.values()] for rank, table in probes.items()
    }
    assert told == {
        0: 2 * [("send", 1), ("recv", 1)],
        1: 2 * [("recv", 0), ("send", 2), ("recv", 2), ("send", 0)],
        2: 2 * [("recv", 1), ("send", 1)],
    }
    assert {one.elements for table in probes.values() for one in table.collectives.values()} == {4 * 32}


@pytest.mark.thorough
def test_two_ddp_ranks_with_loader_children_agree_and_the_children_are_no_workers(host: Host) -> None:
    place = host.root / "with"
    place.mkdir()
    order = OneOrder(2, WINDOW)
    options = ["--kind", "ddp", "--loader-workers", "2", "--spawn-loader", "--accumulate", "2"]
    watched = host.run([*TORCHRUN, RANKS, *options, "--out", str(place)], order)
    assert watched.returncode == 0, watched.stderr
    assert sorted(host.by_rank()) == [0, 1]
    for pid, worker in host.workers.items():
        assert worker.beats[-1].iteration == 60
        capture = captured(host, pid)
        assert (capture.first_iteration, capture.last_iteration) == (order.first, order.last)
        assert len(capture.loader_pids) >= 2
        assert capture.process_groups[0].ranks == (0, 1)
        assert b"all_reduce" in Path(capture.flight_path).read_bytes()
        assert any("gloo:all_reduce" in event.get("name", "") for event in trace_of(capture))


def test_the_losses_of_a_ddp_job_with_a_window_are_bitwise_those_without_eroica(host: Host) -> None:
    places = {name: host.root / name for name in ("with", "without")}
    commands = {}
    for name, place in places.items():
        place.mkdir()
        commands[name] = [*TORCHRUN, RANKS, "--out", str(place)]
    watched = host.run(commands["with"], OneOrder(2, WINDOW))
    plain = without_eroica(commands["without"], host)
    assert losses(places["with"]) == losses(places["without"]) != {}
    assert watched.stdout == plain.stdout
    assert watched.stderr == plain.stderr
    assert [worker.results[-1].status for worker in host.workers.values()] == [DONE, DONE]


def test_processes_of_mp_spawn_without_rank_variables_are_workers_with_their_ranks(host: Host) -> None:
    watched = host.run([sys.executable, RANKS, "--mp-spawn", "--out", str(host.root), "--iterations", "30"])
    assert watched.returncode == 0, watched.stderr
    ranks = host.by_rank()
    assert sorted(ranks) == [0, 1]
    assert {worker.reader.identity["world_size"] for worker in ranks.values()} == {2}
    assert {worker.beats[-1].iteration for worker in ranks.values()} == {30}


def test_a_users_profiler_inside_our_window_works_and_ours_makes_way(host: Host) -> None:
    watched = host.run([sys.executable, str(PROGRAMS / "own_profiler.py"), "during"], OneOrder(1, WINDOW, length=40))
    assert watched.stdout.split()[0] == "profiled", watched.stderr
    assert "Traceback" not in watched.stderr
    (worker,) = host.workers.values()
    assert worker.results[-1].status == SKIPPED
    assert "another profiler" in worker.results[-1].note
    assert worker.beats[-1].iteration == 100


def test_optimizers_that_step_inside_the_backward_pass_are_watched_but_not_captured(host: Host) -> None:
    watched = host.run([sys.executable, str(PROGRAMS / "in_backward.py")], OneOrder(1, WINDOW))
    assert (watched.returncode, watched.stdout, watched.stderr) == (0, "trained\n", "")
    (worker,) = host.workers.values()
    assert worker.beats[-1].iteration == 60
    assert worker.results[-1].status == SKIPPED
    assert "backward" in worker.results[-1].note


@pytest.mark.parametrize("when", ["running", "prepared"])
def test_a_users_profiler_that_was_there_first_is_left_alone(host: Host, when: str) -> None:
    watched = host.run([sys.executable, str(PROGRAMS / "own_profiler.py"), when], OneOrder(1, WINDOW))
    assert watched.stdout.split()[0] == "profiled", watched.stderr
    assert "Traceback" not in watched.stderr
    (worker,) = host.workers.values()
    assert worker.results[-1].status == SKIPPED


def test_a_users_profiler_right_after_our_window_works_and_the_window_is_kept(host: Host) -> None:
    watched = host.run([sys.executable, str(PROGRAMS / "own_profiler.py"), "during"], OneOrder(1, WINDOW, last=50))
    assert watched.stdout.split()[0] == "profiled", watched.stderr
    assert "Traceback" not in watched.stderr
    (pid,) = host.workers
    assert host.workers[pid].results[-1].status == DONE
    assert captured(host, pid).last_iteration == 50


def test_a_collective_in_flight_across_the_end_of_a_window_does_no_harm(host: Host) -> None:
    """Stopping torch's profiler under it ends about every second process with an abort; here, both are exposed."""
    order = OneOrder(2, WINDOW, last=42)
    watched = host.run([*TORCHRUN, str(PROGRAMS / "crossing.py")], order)
    assert watched.returncode == 0, watched.stderr
    assert watched.stdout == "[2000.0, 2000.0]\n" * 2
    assert [worker.results[-1].status for worker in host.workers.values()] == [DONE, DONE]
    for pid in host.workers:
        capture = captured(host, pid)
        base = msgspec.json.decode(Path(capture.trace_path).read_bytes())["baseTimeNanoseconds"]
        shift = capture.clocks[0].realtime_ns - capture.clocks[0].monotonic_ns
        recorded = [event for event in trace_of(capture) if event.get("cat") in ("cpu_op", "user_annotation")]
        (crossing,) = [event for event in recorded if event["name"] == "gloo:all_reduce"]
        assert crossing["dur"] > 500_000
        # nothing that began after the window is in its trace
        assert max(base + event["ts"] * 1000 - shift for event in recorded) <= capture.boundaries_ns[-1]
        steps = [event for event in recorded if event["name"].startswith("Optimizer.step#")]
        assert len(steps) == order.last - order.first


def test_a_process_that_ends_inside_a_window_ends_in_order_and_hands_over_what_there_is(host: Host) -> None:
    watched = host.run([*PLAIN, "--pause", "0.01", "--iterations", "40"], OneOrder(1, WINDOW, length=500))
    assert watched.returncode == 0
    assert watched.stderr == ""
    ((pid, worker),) = host.workers.items()
    assert worker.results[-1].status == DONE
    assert captured(host, pid).last_iteration == 40
    assert not list(host.runtime.glob("*.beat"))


def test_a_failure_of_ours_is_logged_and_the_training_goes_on(host: Host) -> None:
    watched = host.run([*PLAIN, "--iterations", "30"], EROICA_ANSWERING_THREAD="many")
    plain = without_eroica([*PLAIN, "--iterations", "30"], host)
    assert (watched.returncode, watched.stdout, watched.stderr) == (0, plain.stdout, "")
    (log,) = (host.root / "run" / "log").glob("worker-*.log")
    assert "answering_thread" in log.read_text()


def test_a_failure_inside_the_loop_shows_as_the_workers_state(host: Host) -> None:
    watched = host.run([sys.executable, str(PROGRAMS / "sabotaged.py")])
    assert (watched.returncode, watched.stdout, watched.stderr) == (0, "trained\n", "")
    (worker,) = host.workers.values()
    assert STATE_NAMES[worker.beats[-1].state] == "failed"
    assert "no such luck" in worker.results[-1].note


def test_loader_children_forked_inside_a_window_do_not_disturb_it(host: Host) -> None:
    order = OneOrder(1, WINDOW, length=30)
    watched = host.run([*PLAIN, "--pause", "0.01", "--iterations", "80", "--workers", "2"], order)
    assert watched.returncode == 0, watched.stderr
    assert len(host.workers) == 1
    (pid,) = host.workers
    assert host.workers[pid].results[-1].status == DONE
    assert len(captured(host, pid).loader_pids) >= 4


def test_a_loop_that_announces_its_iterations_is_a_worker_without_torch(host: Host) -> None:
    watched = host.run([sys.executable, str(PROGRAMS / "announced.py")])
    assert watched.returncode == 0, watched.stderr
    (worker,) = host.workers.values()
    assert worker.beats[-1].iteration == 30
    assert watched.stdout == "torch was imported: False\n"


def test_a_forked_child_becomes_a_worker_of_its_own_at_its_own_first_step(host: Host) -> None:
    watched = host.run([sys.executable, str(PROGRAMS / "forked.py")])
    assert watched.returncode == 0, watched.stderr
    steps = sorted(worker.beats[-1].iteration for worker in host.workers.values())
    assert steps == [27, 30]
