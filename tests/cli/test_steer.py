"""`eroica steer` starts a command on hosts, leaves a named one out, and starts it again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from queue import Queue

import httpx
import pytest

from eroica.cli.steer import Fleet, Receiver, Steered
from eroica.errors import UsageError
from eroica.model.order import Order


def order(*hosts: str, action: str = "isolate-host") -> Order:
    return Order(
        job="j", order=1, action=action, workers=(), hosts=hosts, restart=True, confidence=0.97,  # type: ignore[arg-type]
        cause="unknown", found_by="communication", window=1, summary="It hangs.", at="now",
    )  # fmt: skip


def test_a_spare_takes_the_place_of_the_host_that_is_left_out() -> None:
    fleet = Fleet(["a", "b", "c"], ["d"])
    assert fleet.obey(order("b"), 2) == ""
    assert (fleet.hosts, fleet.spares, fleet.left_out) == (["a", "d", "c"], [], ["b"])
    assert fleet.obey(order("c"), 2) == ""
    assert fleet.hosts == ["a", "d"]


@pytest.mark.parametrize(
    ("given", "why"),
    [(order("x"), "no host that trains"), (order("a", "b"), "fewer"), (order("a", "b", action="avoid-path"), "c4p")],
)
def test_what_cannot_be_followed_is_refused_with_a_reason(given: Order, why: str) -> None:
    fleet = Fleet(["a", "b"], [])
    assert why in fleet.obey(given, 1)
    assert fleet.hosts == ["a", "b"]


def test_orders_come_in_by_a_secret_path_only() -> None:
    receiver = Receiver("127.0.0.1:0")
    try:
        body = json.dumps({name: getattr(order("b"), name) for name in Order.__struct_fields__})
        strange = receiver.url.rpartition("/")[0] + "/v1"
        assert httpx.post(strange, content=body, trust_env=False).status_code == 404
        assert httpx.post(receiver.url, content="{}", trust_env=False).status_code == 400
        assert receiver.orders.empty()
        assert httpx.post(receiver.url, content=body, trust_env=False).status_code == 204
        assert receiver.orders.get(timeout=1).hosts == ("b",)
    finally:
        receiver.close()


def test_a_place_where_nobody_can_listen_is_wrong_usage() -> None:
    with pytest.raises(UsageError, match="HOST:PORT"):
        Receiver("nowhere")


PROGRAM = """
import os, signal, sys, time
place, attempt, rank, host = sys.argv[1:5]
open(f"{place}/{attempt}-{rank}-{host}-{os.getpid()}", "w").write(os.environ["EROICA_ON_VERDICT_URL"])
if attempt == "1":
    if host == "b":
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(60)
"""


def test_the_job_is_ended_and_started_again_even_if_a_process_is_stopped(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    words = [sys.executable, str(tmp_path / "program.py"), str(tmp_path), "{attempt}", "{node_rank}", "{host}"]
    log, orders = tmp_path / "log.jsonl", Queue[Order]()
    run = Steered(Fleet(["a", "b"], ["c"]), words, "", "{host}", 29600, "http://x/y", log)

    def started() -> list[str]:
        return sorted(path.name for path in tmp_path.glob("[12]-*"))

    import threading

    def give() -> None:
        end = time.monotonic() + 20
        while len(started()) < 2 and time.monotonic() < end:
            time.sleep(0.05)
        orders.put(order("b"))

    giving = threading.Thread(target=give)
    giving.start()
    assert run.follow(orders, 3, 1, 0.5) == 0
    giving.join()
    names = [name.rsplit("-", 1) for name in started()]
    assert [name for name, _ in names] == ["1-0-a", "1-1-b", "2-0-a", "2-1-c"]
    events = [json.loads(line) for line in log.read_text().splitlines()]
    assert [one["event"] for one in events] == ["start", "order", "stopped", "start", "ended"]
    assert events[3]["hosts"] == ["a", "c"] and events[3]["left_out"] == ["b"]
    for name, pid in names:
        assert name.startswith("2") or not _is_running(int(pid))


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_the_command_line_says_what_it_wants() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "eroica", "steer", "--hosts", ",", "--", "true"],
        capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 2 and "--hosts names no host" in done.stderr
