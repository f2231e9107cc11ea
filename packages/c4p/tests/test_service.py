from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from c4p.client import Subscription, _MemberAnswer, register
from c4p.demand import JobDemand, Member, PathReport, combine, demand_of, member_of, sides_of, with_members
from c4p.errors import BadRequest, NoSuchJob, PlannerError
from c4p.planner import Demand, plan
from c4p.service import Planner, application


def reports_of(hosts: list[int], spines: int = 4, sides: str = "LR") -> list[PathReport]:
    reports = []
    for a, b in zip(hosts, hosts[1:] + hosts[:1], strict=True):
        paths = [f"{side}{a}|s{k}|{side}{b}" for side in sides for k in range(spines)]
        reports.append(PathReport(f"h{a}", f"h{b}", 4, paths, [f"L{a}", f"R{a}"]))
    return reports


def job_demand(hosts: list[int], spines: int = 4) -> JobDemand:
    return combine(reports_of(hosts, spines))


def subscribe(url: str, job: str, hosts: list[int], rank: int, version: int) -> Subscription:
    """As a group does it: member 0 has what it takes to register the job again."""
    reports = reports_of(hosts)
    demand = job_demand(hosts).demand if rank == 0 else None
    return Subscription(url, job, rank, version, reports[rank], sides_of(reports), demand)


def news(subscription: Subscription) -> list[str] | None:
    """What the planner says now."""
    subscription._next = 0.0
    return subscription.poll()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def serving(state: Path, port: int, lease: float = 60.0) -> Iterator[subprocess.Popen]:
    argv = [
        sys.executable,
        "-m",
        "c4p.cli",
        "serve",
        "--open",
        "--port",
        str(port),
        "--state",
        str(state),
        "--lease",
        str(lease),
    ]
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
    port = free_port()
    url, state = f"http://127.0.0.1:{port}", tmp_path / "state.sqlite"
    with serving(state, port) as process:
        version, first = register(url, "a/b c", job_demand([0, 1]))
        assert [len(set(paths)) for paths in first] == [4, 4]
        process.send_signal(signal.SIGKILL)
        process.wait(10)
    with serving(state, port):
        overview = ask_overview(url)
        assert overview["jobs"] == {"a/b c": {"flows": 8, "version": version}}
        listener = subscribe(url, "a/b c", [0, 1], 1, version)
        assert news(listener) is None  # what it knows already
        used = first[1][0].split("|")
        body = json.dumps({"links": [[used[0], used[1]]]}).encode()
        urllib.request.urlopen(urllib.request.Request(f"{url}/avoid", body, method="PUT"), timeout=5).close()
        said = news(listener)
        assert said is not None
        assert not any(path.startswith(f"{used[0]}|{used[1]}|") for path in said)
        assert sum(a != b for a, b in zip(sorted(said), sorted(first[1]), strict=True)) <= 2
        listener.leave()
        nobody = subscribe(url, "nobody", [0, 1], 1, 0)
        with pytest.raises(PlannerError, match="404"):
            news(nobody)
        nobody.leave()
        for bad in (b"{", b'{"links": 3}', b"\xff"):
            with pytest.raises(urllib.error.HTTPError, match="400"):
                urllib.request.urlopen(urllib.request.Request(f"{url}/avoid", bad, method="PUT"), timeout=5)
        subscribe(url, "a/b c", [0, 1], 0, version).leave()
        assert ask_overview(url)["jobs"] == {}


def test_a_job_whose_place_was_given_up_registers_again_and_learned_paths_are_told(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{(port := free_port())}"
    with serving(tmp_path / "state.sqlite", port, lease=0.2):
        version, _ = register(url, "a", job_demand([0, 1]))
        zero, one = (subscribe(url, "a", [0, 1], rank, version) for rank in range(2))
        one.report_paths(reports_of([0, 1], sides="R")[1])  # its left port is gone
        assert news(one) is None  # it has told
        said = news(one)
        assert said is not None
        assert all(path.startswith("R1|") for path in said)
        time.sleep(0.5)
        register(url, "b", job_demand([2, 3]))
        assert sorted(ask_overview(url)["jobs"]) == ["b"]
        with pytest.raises(PlannerError, match="404"):
            news(one)
        assert news(zero) is None
        assert "a" in ask_overview(url)["jobs"]
        assert news(zero) is not None  # planned anew; it may be on other paths
        assert news(one) is None  # tells again what member 0 cannot know
        assert ["h1", "L1"] not in [link[:2] for link in ask_overview(url)["links"]]
        assert all(path.startswith("R1|") for path in news(one) or ["none"])
        zero.leave()
        one.leave()


def test_the_connection_is_kept_and_a_planner_that_was_away_is_found_again(tmp_path: Path) -> None:
    url, state = f"http://127.0.0.1:{(port := free_port())}", tmp_path / "state.sqlite"
    with serving(state, port):
        listener = subscribe(url, "a", [0, 1], 0, register(url, "a", job_demand([0, 1]))[0])
        assert news(listener) is None
        here = listener._connection._http.sock.getsockname()
        assert news(listener) is None
        assert listener._connection._http.sock.getsockname() == here
    with serving(state, port):
        assert news(listener) is None
        listener.leave()
        assert ask_overview(url)["jobs"] == {}
    with pytest.raises(PlannerError, match="c4p serve"):
        news(listener)


def test_a_member_hears_while_a_plan_is_being_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planner = Planner(tmp_path / "s.sqlite")
    job, _ = planner.register("a", job_demand([0, 1]).demand)
    heard: list = []
    with planner._lock:
        asks = threading.Thread(target=lambda: heard.append(planner.member("a", 1, -1)), daemon=True)
        asks.start()
        asks.join(5.0)
        assert heard == [(job.version, job.paths(1), False)]

    def full(jobs: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Planner, "_write", lambda self, jobs: full(jobs))
    with pytest.raises(OSError, match="disk full"):
        planner.set_avoid([("L0", job.paths(0)[0][1])])
    assert planner.member("a", 1, job.version) == (job.version, None, False)  # nobody hears what is not on disk
    planner.close()


def test_with_many_members_each_asks_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("c4p.service.MAX_POLLS_PER_SECOND", 1)
    planner = Planner(tmp_path / "s.sqlite")
    assert planner.poll_after_s == 1.0
    planner.register("a", job_demand([0, 1, 2, 3]).demand)
    planner.register("b", job_demand([4, 5]).demand)
    assert planner.poll_after_s == 6.0
    planner.leave("a")
    assert planner.poll_after_s == 2.0
    planner.close()
    again = Planner(tmp_path / "s.sqlite")
    assert again.poll_after_s == 2.0
    heard = _MemberAnswer(version=7, paths=None, stale=False, poll_after_s=again.poll_after_s)
    listener = subscribe("http://127.0.0.1:9", "b", [4, 5], 0, 7)
    monkeypatch.setattr(listener._connection, "request", lambda *_: heard)
    began = time.monotonic()
    assert news(listener) is None
    assert 2.0 <= listener._next - began < 3.0
    again.close()


def test_what_many_members_learn_at_once_is_planned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    planner = Planner()
    planner.register("a", job_demand([0, 1, 2, 3]).demand)
    planned: list[int] = []
    monkeypatch.setattr("c4p.service.plan", lambda *rest: planned.append(1) or plan(*rest))
    reports = reports_of([0, 1, 2, 3], spines=3)
    told = [member_of(report, sides_of(reports))[0] for report in reports]
    for rank, member in enumerate(told):
        planner.update_member("a", rank, member)
    planner.apply_updates()
    assert planner.apply_updates() == 0
    assert planned == [1]
    assert planner.jobs["a"].demand == demand_of(told)
    assert not [link for link in planner.overview()["links"] if "s3" in link]
    for name, rank in (("a", 4), ("b", 0)):
        with pytest.raises(NoSuchJob):
            planner.update_member(name, rank, told[0])
    with pytest.raises(BadRequest, match="no spine on any side"):
        planner.update_member("a", 0, Member("h0", "h1", 4, [("L0", "L1", [])]))


def test_updates_may_come_while_a_job_registers_again() -> None:
    planner = Planner()
    for name in "ab":
        planner.register(name, job_demand([0, 1]).demand)
    reports = reports_of([0, 1])
    told = member_of(reports[0], sides_of(reports))[0]
    planner._updates |= {("b", rank): told for rank in range(200_000)}
    ends = threading.Event()

    def tell() -> None:  # from the service's event loop; the registration runs in another thread
        for rank in itertools.count():
            planner._updates["a", rank] = told
            if ends.wait(0.0005):
                break

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        for _ in range(5):
            planner.register("a", job_demand([0, 1]).demand)
    finally:
        ends.set()
        thread.join()
    assert ("b", 199_999) in planner._updates


def test_what_was_heard_of_a_job_before_it_came_anew_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    planner = Planner()
    planner.register("a", job_demand([0, 1]).demand)
    old, new = reports_of([0, 1], spines=3), reports_of([2, 3], spines=3)
    planner.update_member("a", 0, member_of(old[0], sides_of(old))[0])
    fresh = job_demand([2, 3]).demand

    def slowly(*rest: Any) -> Any:  # an update comes while the new registration is planned
        planner.update_member("a", 1, member_of(old[1], sides_of(old))[0])
        return plan(*rest)

    with monkeypatch.context() as patch:
        patch.setattr("c4p.service.plan", slowly)
        planner.register("a", fresh)
    assert planner.apply_updates() == 0
    assert planner.jobs["a"].demand == fresh
    told = member_of(new[0], sides_of(new))[0]
    planner.update_member("a", 0, told)
    planner.set_avoid([("L2", "s0")])  # a plan in between is no other registration
    planner.apply_updates()
    assert planner.jobs["a"].demand == with_members(fresh, [(0, told)])


@pytest.mark.parametrize(
    "answer",
    [
        b"{}", b"[]", b"3", b"{", b"\xff", b"[" * 100_000, b'{"a": ' + b"[" * 100_000,
        b'{"version": "x", "paths": null, "stale": false, "poll_after_s": 1}',
        b'{"version": 9, "paths": [[0, "s0"]], "stale": false, "poll_after_s": 1}',
        b'{"version": 9, "paths": [[0], 1, 2, 3], "stale": false, "poll_after_s": 1}',
        b'{"version": 9, "paths": {"0": "s0"}, "stale": false, "poll_after_s": 1}',
        b'{"version": 9, "paths": null, "stale": false, "poll_after_s": -1}',
        b'{"version": 9, "paths": null, "stale": false, "poll_after_s": 1e300}',
        b'{"version": 9, "paths": null, "stale": false}',
    ],
    ids=range(14),
)  # fmt: skip
def test_an_answer_that_makes_no_sense_is_an_error_that_a_group_goes_on_with(
    answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener = subscribe("http://127.0.0.1:9", "a", [0, 1], 0, 7)
    monkeypatch.setattr("c4p.client._Connection._exchange", lambda *rest: (200, answer))
    with pytest.raises(PlannerError):
        news(listener)
    assert listener._version == 7
    with pytest.raises(PlannerError):
        register("http://127.0.0.1:9", "a", job_demand([0, 1]))


def test_a_plan_of_other_paths_is_an_error_that_a_group_goes_on_with(monkeypatch: pytest.MonkeyPatch) -> None:
    for sides, spines in (([0] * 8, ["s9"] * 8), ([0], ["s0"])):
        answer = json.dumps({"version": 1, "assignment": {"sides": sides, "spines": spines}}).encode()
        monkeypatch.setattr("c4p.client._Connection._exchange", lambda *rest, answer=answer: (200, answer))
        with pytest.raises(PlannerError):
            register("http://127.0.0.1:9", "a", job_demand([0, 1]))


def test_who_asks_to_avoid_a_link_hears_what_came_of_it() -> None:
    planner = Planner()
    planner.register("a", job_demand([0, 1]).demand)
    host, leaf = ("h0", "L0"), ("R1", "h1")
    assert planner.set_avoid([host, ("h0", "s9")]) == {"moved": 2, "taken": [], "unknown": [("h0", "s9")]}
    assert planner.overview()["jobs"]["a"]["flows"] == 8
    answer = planner.set_avoid([host, leaf])  # left is left to left: one host's left and the other's right are all
    assert answer["unknown"] == []
    assert sum(flows for *_, flows in answer["taken"]) == 4


def test_a_job_that_nobody_asks_for_ends_with_its_lease(tmp_path: Path) -> None:
    now = [0.0]
    planner = Planner(tmp_path / "s.sqlite", 10.0, lambda: now[0])

    def body(hosts: list[int]) -> Demand:
        return job_demand(hosts).demand

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
    with pytest.raises(BadRequest, match="fewer flows than none"):
        again.register("x", demand_of([Member("h0", "h1", -1, [("L0", "L1", ["s0"])])]))
    assert sorted(again.jobs) == ["kept", "new"]
    again.close()


def test_only_a_job_that_is_missing_is_answered_with_register_it(monkeypatch: pytest.MonkeyPatch) -> None:
    planner = Planner()
    sent: list[dict] = []

    async def send(message: Any) -> None:
        sent.append(message)

    def status_of(path: str) -> int:
        sent.clear()
        scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": []}
        with contextlib.suppress(KeyError):  # starlette answers with 500, then raises our own bug for the log
            asyncio.run(application(planner)(scope, None, send))  # type: ignore[arg-type]
        return sent[0]["status"]

    assert status_of("/jobs/a/members/0") == 404 and b"register the job" in sent[1]["body"]
    monkeypatch.setattr(Planner, "overview", lambda _self: {}["a bug of ours"])
    assert status_of("/") == 500


def test_a_planner_that_is_not_there_is_named() -> None:
    with pytest.raises(PlannerError, match="c4p serve"):
        register("http://127.0.0.1:9", "a", job_demand([0, 1]))
    for bad in ("planner", "http://", "http://planner:x"):
        with pytest.raises(BadRequest, match="an address such as"):
            register(bad, "a", job_demand([0, 1]))
    assert os.environ.get("C4P_PLANNER") is None
