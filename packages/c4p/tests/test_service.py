from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from c4p.client import Subscription, register
from c4p.demand import Question, Report, ask
from c4p.errors import BadRequest, PlannerError
from c4p.service import Planner


def question(hosts: list[int], spines: int = 4) -> Question:
    reports = []
    for a, b in zip(hosts, hosts[1:] + hosts[:1], strict=True):
        ways = [f"L{a}|s{k}|L{b}" for k in range(spines)] + [f"R{a}|s{k}|R{b}" for k in range(spines)]
        reports.append(Report(f"h{a}", f"h{b}", 4, ways, [f"L{a}", f"R{a}"]))
    return ask(reports)


@contextlib.contextmanager
def serving(state: Path, port: int, lease: float = 60.0) -> Iterator[subprocess.Popen]:
    argv = [sys.executable, "-m", "c4p.cli", "serve", "--port", str(port), "--state", str(state), "--lease", str(lease)]
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 0.5).close()
                break
            except OSError:
                assert time.monotonic() < until
                time.sleep(0.05)
        yield process
    finally:
        process.kill()
        process.wait(10)


def ask_overview(url: str) -> dict:
    with urllib.request.urlopen(url, timeout=5) as answer:
        return json.loads(answer.read())


def test_the_plan_survives_a_kill_and_members_hear_of_changes(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url, state = f"http://127.0.0.1:{port}", tmp_path / "state.sqlite"
    with serving(state, port) as process:
        first = register(url, "a/b c", question([0, 1]))
        assert [len(set(ways)) for ways in first] == [4, 4]
        process.send_signal(signal.SIGKILL)
        process.wait(10)
    with serving(state, port):
        overview = ask_overview(url)
        assert overview["jobs"] == {"a/b c": {"flows": 8, "version": 0}} or "a/b c" in overview["jobs"]
        listener = Subscription(url, "a/b c", 1)
        listener._next = 0.0
        assert listener.news() is None  # what it knows already
        used = first[1][0].split("|")
        body = json.dumps({"links": [[used[0], used[1]]]}).encode()
        urllib.request.urlopen(urllib.request.Request(f"{url}/avoid", body, method="PUT"), timeout=5).close()
        listener._next = 0.0
        news = listener.news()
        assert news is not None
        assert not any(way.startswith(f"{used[0]}|{used[1]}|") for way in news)
        assert sum(a != b for a, b in zip(sorted(news), sorted(first[1]), strict=True)) <= 2
        with pytest.raises(PlannerError, match="404"):
            Subscription(url, "nobody", 0)._next = 0.0 or _news(url)
        for bad in (b"{", b'{"links": 3}', b"\xff"):
            with pytest.raises(urllib.error.HTTPError, match="400"):
                urllib.request.urlopen(urllib.request.Request(f"{url}/avoid", bad, method="PUT"), timeout=5)
        Subscription(url, "a/b c", 0).leave()
        assert ask_overview(url)["jobs"] == {}


def _news(url: str) -> float:
    subscription = Subscription(url, "nobody", 0)
    subscription._next = 0.0
    subscription.news()
    return 0.0


def test_a_job_that_nobody_asks_for_ends_with_its_lease(tmp_path: Path) -> None:
    from c4p.service import Body

    now = [0.0]
    planner = Planner(tmp_path / "s.sqlite", 10.0, lambda: now[0])

    def body(hosts: list[int]) -> Body:
        q = question(hosts)
        return Body(q.demand, q.ranks, [(*key, way) for key, way in q.ways.items()], q.flows)

    planner.register("old", body([0, 1]))
    planner.register("kept", body([1, 2]))
    now[0] = 8.0
    planner.member("kept", 0, 0)
    now[0] = 12.0
    planner.register("new", body([2, 3]))
    assert sorted(planner.jobs) == ["kept", "new"]
    planner.close()
    again = Planner(tmp_path / "s.sqlite", 10.0, lambda: now[0])
    assert sorted(again.jobs) == ["kept", "new"]
    assert again.jobs["new"].assignment == planner.jobs["new"].assignment
    with pytest.raises(BadRequest, match="needs the rank"):
        again.register("x", Body(question([0, 1]).demand, [0], [], [4]))
    with pytest.raises(BadRequest, match="top without a way"):
        again.register("x", Body(question([0, 1]).demand, [0, 1], [], [4, 4]))
    again.close()


def test_a_planner_that_is_not_there_is_named() -> None:
    with pytest.raises(PlannerError, match="c4p serve"):
        register("http://127.0.0.1:9", "a", question([0, 1]))
    with pytest.raises(BadRequest, match="an address such as"):
        register("planner", "a", question([0, 1]))
    assert os.environ.get("C4P_PLANNER") is None
