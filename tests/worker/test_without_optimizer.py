"""Real jobs of which some or all ranks step no torch optimizer: what they count, and whether they count alike."""

from __future__ import annotations

import sys

import msgspec
import pytest
from watched_jobs import PROGRAMS, Host, OneOrder

from eroica.model.window import Capture
from eroica.wire.beat import BACKWARD, BATCHES, COUNT, DONE, EXCHANGES, OPTIMIZER, WINDOW, Order

pytest.importorskip("torch")
pytestmark = [pytest.mark.jobs, pytest.mark.timeout(400)]


def run(host: Host, kind: str, act=lambda host: None, *options: str) -> None:
    command = [sys.executable, str(PROGRAMS / "without_optimizer.py"), kind, "--count", "250", "--pause", "0.06"]
    done = host.run([*command, *options], act, limit_s=300.0, EROICA_WORKER_FAILURES_RAISE="1")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert sorted(done.stdout.split("\n")[:-1]) == [f"{rank} 250" for rank in sorted(host.by_rank())]


@pytest.mark.parametrize(
    ("kind", "sources"),
    [
        ("server", [EXCHANGES] * 3),
        ("any", [EXCHANGES] * 3),
        ("by hand", [BACKWARD] * 2),
        ("generate", [EXCHANGES] * 2),
        ("batches", [BATCHES]),
    ],
)
def test_ranks_without_an_optimizer_count_what_repeats_in_all_of_them(host: Host, kind: str, sources: list) -> None:
    run(host, kind)
    ranks = host.by_rank()
    assert [ranks[rank].beats[-1].source for rank in sorted(ranks)] == sources
    counted = [worker.beats[-1].iteration for worker in ranks.values()]
    assert all(abs(one - 250) <= 1 for one in counted), counted


def test_a_learner_counts_exchanges_as_its_actors_do_once_it_is_told_and_a_window_holds_the_same(host: Host) -> None:
    window, told = OneOrder(3, WINDOW), []

    def act(host: Host) -> None:
        ranks = host.by_rank()
        seen = [ranks[rank].beats[-1] for rank in sorted(ranks) if ranks[rank].beats]
        if len(seen) == 3 and [one.source for one in seen] == [OPTIMIZER, EXCHANGES, EXCHANGES] and not told:
            told.append(seen)
            ranks[0].reader.give(Order(0, COUNT, EXCHANGES, 0, 0, 0, 0, ""))
        if told and seen[0].source == EXCHANGES:
            window(host)

    run(host, "actors", act, "--updates", "3")
    ranks = host.by_rank()
    assert told and told[0][0].iteration > 2 * told[0][1].iteration  # three updates in each exchange
    assert {worker.beats[-1].iteration for worker in ranks.values()} == {250}
    assert [ranks[rank].results[-1].status for rank in range(3)] == [DONE] * 3
    captures = []
    for rank in range(3):
        path = host.root / "scratch" / str(ranks[rank].reader.identity["pid"]) / "capture.json"
        captures.append(msgspec.json.decode(path.read_bytes(), type=Capture))
    assert {(one.first_iteration, one.last_iteration) for one in captures} == {(window.first, window.last)}
    for first, second in zip(captures[0].boundaries_ns, captures[1].boundaries_ns, strict=True):
        assert abs(first - second) < 50_000_000


def test_a_worker_that_came_before_its_optimizer_says_then_which_thread_trains(host: Host) -> None:
    threads = set()

    def act(host: Host) -> None:
        for worker in host.workers.values():
            worker.reader.look_again()
            threads.add(worker.reader.identity["training_thread_id"])

    run(host, "late", act)
    (worker,) = host.workers.values()
    assert len(threads) == 2 and (worker.beats[-1].source, worker.beats[-1].iteration) == (OPTIMIZER, 250)
