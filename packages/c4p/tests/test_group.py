from __future__ import annotations

import gc
import json
import os
import socket
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import c4p
import members


def all_four(rank: int, size: int, folder: str) -> dict:
    with members.group(rank, size, folder) as group:
        many = np.random.default_rng(rank).standard_normal(300_001).astype(np.float32)
        group.allreduce(many)
        gathered = group.allgather(np.array([rank, rank * 10]))
        slice_ = group.reduce_scatter(np.arange(2 * size, dtype=np.float64))
        root = group.broadcast(np.full((50, 3), rank), root=1)
        largest = group.allreduce(np.array([rank], dtype=np.int64), "max")
        group.barrier()
        return {
            "sum": many.tobytes(),
            "gathered": gathered.tolist(),
            "slice": slice_.tolist(),
            "root": int(root.sum()),
            "largest": int(largest[0]),
            "paths": [(path.port, path.state) for path in group.paths],
        }


@pytest.mark.parametrize("size", [1, 2, 4])
def test_four_operations_give_every_member_the_same(size: int) -> None:
    if size == 1:
        with c4p.Group(0, 1, _no_store()) as group:
            assert group.allreduce(np.ones(3)).tolist() == [1, 1, 1]
            assert group.allgather(np.ones(3)).shape == (1, 3)
        return
    answers = members.run(all_four, size)
    assert len({answer["sum"] for answer in answers}) == 1
    for rank, answer in enumerate(answers):
        assert answer["gathered"] == [[r, r * 10] for r in range(size)]
        assert answer["slice"] == [size * (2 * rank), size * (2 * rank + 1)]
        assert answer["root"] == 150
        assert answer["largest"] == size - 1
        assert len({port for port, _ in answer["paths"]}) == 4


def _no_store() -> c4p.Folder:
    return None  # type: ignore[return-value]  # a group of one needs nobody


def in_one_process(folder: Path, size: int, body, without: int = -1, address_of=None, **options) -> list:
    """Members as threads of this process; what each returned or raised."""
    answers: list = [None] * size

    def member(rank: int) -> None:
        try:
            address = {"address": address_of[rank]} if rank in (address_of or {}) else {}
            group = members.group(rank, size, str(folder), **options, **address)
            try:
                answers[rank] = body(group)
            finally:
                group.close()
        except Exception as error:
            answers[rank] = error

    threads = [threading.Thread(target=member, args=(rank,)) for rank in range(size) if rank != without]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return answers


def test_operations_can_be_started_one_after_the_other_without_waiting(tmp_path: Path) -> None:
    def body(group: c4p.Group) -> list[float]:
        arrays = [np.full(20_000, float(k + group.rank)) for k in range(10)]
        views = [memoryview(array.view(np.uint8)) for array in arrays]
        started = [
            group.start(group.operation("allreduce", view, 8, c4p.ring.reducer(array, "sum")))
            for view, array in zip(views, arrays, strict=True)
        ]
        time.sleep(0.05 * group.rank)  # pieces come before their operation is called here
        for future in reversed(started):
            future.result(10)
        return [float(array[-1]) for array in arrays]

    answers = in_one_process(tmp_path, 3, body)
    assert answers == [[3.0 * k + 3 for k in range(10)]] * 3


def test_a_member_that_calls_something_else_is_told(tmp_path: Path) -> None:
    def body(group: c4p.Group) -> None:
        group.allreduce(np.zeros(10 + group.rank // 2))

    answers = in_one_process(tmp_path, 3, body)
    assert all(isinstance(answer, c4p.GroupBroken) for answer in answers)
    assert any("same operations in the same order" in str(answer) for answer in answers)


def test_a_member_that_does_not_come_is_named_after_the_time_out(tmp_path: Path) -> None:
    def body(group: c4p.Group) -> None:
        if group.rank == 1:
            time.sleep(5.0)
        else:
            group.allreduce(np.zeros(100_000))

    began = time.monotonic()
    answers = in_one_process(tmp_path, 3, body, timeout_s=3.0)
    assert time.monotonic() - began < 12
    waiting = [str(answers[rank]) for rank in (0, 2)]
    assert any("took longer than 3 s" in text and "pieces came from rank" in text for text in waiting), answers


@pytest.mark.parametrize("absent", range(4))
def test_a_member_that_never_starts_is_named_after_the_stated_time_out(tmp_path: Path, absent: int) -> None:
    def body(group: c4p.Group) -> None:
        group.barrier()

    began = time.monotonic()
    answers = in_one_process(tmp_path, 4, body, without=absent, timeout_s=1.0)
    assert time.monotonic() - began < 4
    for rank in set(range(4)) - {absent}:
        assert isinstance(answers[rank], c4p.GroupBroken)
        assert f"rank {absent} of 4 members did not start within 1 s" in str(answers[rank])


def test_a_member_that_is_refused_ends_the_start_of_the_others_at_once(tmp_path: Path) -> None:
    began = time.monotonic()
    answers = in_one_process(tmp_path, 4, lambda group: group.barrier(), address_of={2: "203.0.113.9"})
    assert time.monotonic() - began < 4
    assert isinstance(answers[2], c4p.BadRequest)
    for rank in (0, 1, 3):
        assert "rank 2 could not start: address '203.0.113.9' cannot be bound" in str(answers[rank])


@pytest.mark.parametrize("listens", [True, False])
def test_a_member_that_ends_before_it_connects_is_named(tmp_path: Path, listens: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        c4p.Folder(tmp_path).set("c4p/1", json.dumps([*listener.getsockname(), 4]))
        if not listens:
            listener.close()
        began = time.monotonic()
        options = {"timeout_s": 1.0 if listens else 20.0, "ports": "random"}
        answers = in_one_process(tmp_path, 3, lambda group: group.barrier(), without=1, **options)
        assert time.monotonic() - began < 6
    assert all("rank 1" in str(answers[rank]) for rank in (0, 2)), answers


def test_a_member_that_leaves_early_is_named(tmp_path: Path) -> None:
    def body(group: c4p.Group) -> None:
        group.barrier()
        if group.rank != 2:
            group.allreduce(np.zeros(10))

    answers = in_one_process(tmp_path, 3, body)
    assert answers[2] is None
    assert all("rank 2 left the group before operation 1" in str(answers[rank]) for rank in (0, 1))


def dies(rank: int, size: int, folder: str) -> str:
    with members.group(rank, size, folder) as group:
        group.barrier()
        if rank == 1:
            threading.Timer(0.3, os._exit, [3]).start()
        try:
            while True:
                group.allreduce(np.zeros(1_000_000))
        except c4p.C4PError as error:
            return str(error)


def test_a_member_that_dies_ends_the_wait_of_the_others_with_its_name() -> None:
    began = time.monotonic()
    answers = members.run(dies, 3, timeout_s=60.0)
    assert time.monotonic() - began < 60
    assert answers[1] == "exit code 3"
    assert all("rank 1" in answers[rank] and "ended" in answers[rank] for rank in (0, 2)), answers


def test_bad_values_are_refused(tmp_path: Path) -> None:
    with pytest.raises(c4p.BadRequest, match="rank 2 of 2"):
        c4p.Group(2, 2, c4p.Folder(tmp_path))
    with pytest.raises(c4p.BadRequest, match="sockets=0"):
        c4p.Group(0, 2, c4p.Folder(tmp_path), c4p.Options(sockets=0))
    with pytest.raises(c4p.BadRequest, match="cannot be bound"):
        c4p.Group(0, 2, c4p.Folder(tmp_path), c4p.Options(address="203.0.113.9"))
    with c4p.Group(0, 1, c4p.Folder(tmp_path)) as group:
        with pytest.raises(c4p.BadRequest, match="C-contiguous"):
            group.allreduce(np.zeros((4, 4)).T[1:])
        with pytest.raises(c4p.BadRequest, match="cannot be split"):
            group.reduce_scatter(np.zeros(()))
        with pytest.raises(c4p.BadRequest, match="root 5"):
            group.broadcast(np.zeros(3), root=5)


def test_a_folder_of_an_earlier_group_is_refused_at_once(tmp_path: Path) -> None:
    in_one_process(tmp_path, 2, lambda group: group.barrier())
    began = time.monotonic()
    answers = in_one_process(tmp_path, 2, lambda group: group.barrier())
    assert all(isinstance(one, c4p.BadRequest) and "of an earlier group" in str(one) for one in answers), answers
    assert time.monotonic() - began < 5
    answers.clear()
    gc.collect()  # sockets that were left open are errors


def test_a_group_whose_planner_is_away_is_planned_alone_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    began = time.monotonic()
    body, options = lambda group: group.allgather(np.array([group.rank])).tolist(), {"planner": "http://127.0.0.1:9"}
    answers = in_one_process(tmp_path, 3, body, **options)
    assert answers == [[[0], [1], [2]]] * 3
    assert time.monotonic() - began < 10
    [warning] = [record.getMessage() for record in caplog.records if record.name == "c4p"]
    assert "http://127.0.0.1:9 cannot be reached" in warning
    assert "planned alone" in warning
    with pytest.raises(c4p.BadRequest, match="an address such as"):
        c4p.Group(1, 2, c4p.Folder(tmp_path), c4p.Options(planner="planner"))


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    in_one_process(tmp_path, 3, lambda group: group.barrier())
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("c4p")]
    assert len(os.listdir("/proc/self/fd")) <= before + 1  # noqa: PTH208
