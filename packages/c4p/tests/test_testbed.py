from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from c4p import testbed
from c4p.errors import BadRequest, TestbedError
from c4p.measure import JobSpec, run_jobs
from c4p.testbed import Shape, Testbed

root = pytest.mark.skipif(bool(testbed.why_not()), reason=testbed.why_not() or "-")
pytestmark = pytest.mark.root

SERVER = """
import socket, sys, time
s = socket.create_server((sys.argv[1], 5000), backlog=1024)
print("up", flush=True)
time.sleep(60)
"""
SEND = """
import socket, sys
source, target, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
s = socket.socket(); s.bind((source, port)); s.connect((target, 5000)); s.sendall(bytes(30000)); s.shutdown(1)
import time; time.sleep(0.3)
"""


@pytest.fixture(scope="module")
def parallel() -> Iterator[Testbed]:
    with testbed.build(Shape("parallel", hosts=3, spines=4, mbit=100), seed=3) as bed:
        yield bed


def learned(bed: Testbed, source: int, target: int) -> dict:
    server = bed.start(target, [sys.executable, "-c", SERVER, bed.addresses[target]], stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        assert server.stdout.readline() == "up\n"
        argv = ["catalogue", f"{bed.addresses[target]}:5000", "--source", bed.addresses[source], "--json"]
        command = bed.command(source, [sys.executable, "-m", "c4p.cli", *argv])
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
        entry = json.loads(done.stdout)
        for path, ports in entry["paths"].items():  # what the links count must agree with what was learned
            if path.count("|") in (0, 2):
                check_by_counters(bed, source, target, path.split("|"), ports[0])
        return entry
    finally:
        server.kill()
        server.communicate()


def check_by_counters(bed: Testbed, source: int, target: int, path: list[str], port: int) -> None:
    names = {address: name for name, address in bed.routers.items()}
    hops = [f"host{source}", *(names[address] for address in path), f"host{target}"]
    links = [bed.between(a, b) for a, b in itertools.pairwise(hops)]
    before = [bed.sent_bytes(link) for link in links]
    argv = [sys.executable, "-c", SEND, bed.addresses[source], bed.addresses[target], str(port)]
    subprocess.run(bed.command(source, argv), timeout=20, check=True)
    assert all(bed.sent_bytes(link) - was > 30_000 for link, was in zip(links, before, strict=True)), path


@root
def test_the_kernels_answer_is_the_path_that_the_links_count(parallel: Testbed) -> None:
    entry = learned(parallel, 0, 2)
    assert entry["how"] == "kernel"
    assert sorted(entry["paths"]) == sorted(parallel.routers.values())
    assert entry["first_routers"] == [parallel.routers[f"spine{k}"] for k in range(4)]


@root
def test_beyond_the_first_hop_probes_tell_the_path_and_a_dead_one_is_left_out() -> None:
    with testbed.build(Shape("clos", hosts=4, spines=2, mbit=100), seed=5) as bed:
        entry = learned(bed, 0, 3)
        assert entry["how"] == "probes"
        assert len(entry["paths"]) == 8
        assert entry["first_routers"] == [bed.routers["leaf0L"], bed.routers["leaf0R"]]
        bed.cut("leaf1L", "spine0")
        entry = learned(bed, 0, 3)
        lost = {bed.routers["spine0"], bed.routers["leaf1L"]}
        assert not [path for path in entry["paths"] if lost <= set(path.split("|"))]
        assert len(entry["paths"]) >= 6


@root
def test_planned_connections_take_all_paths_and_bonds_stay_apart() -> None:
    with testbed.build(Shape("clos", hosts=4, spines=4, mbit=50), seed=9) as bed:
        job = run_jobs(bed, [JobSpec((0, 2, 1, 3), seconds=1.0, length=1 << 20)])[0]
        assert job.right
        for member in job.members:
            paths = [path.split("|") for _, path, *_ in member["paths"]]
            assert len({tuple(path) for path in paths}) == 4, member["events"]  # two on each side, on different spines
            sides = [{bed_name(bed, path[0])[-1], bed_name(bed, path[-1])[-1]} for path in paths]
            assert sorted(map(tuple, sides)) == [("L",), ("L",), ("R",), ("R",)], member["events"]


def bed_name(bed: Testbed, address: str) -> str:
    return next(name for name, known in bed.routers.items() if known == address)


@root
def test_a_path_that_dies_is_left_within_two_seconds_without_an_error(parallel: Testbed) -> None:
    cut: list[float] = []

    def during() -> None:
        time.sleep(1.0)
        cut.append(time.time())
        parallel.cut("spine1", "host1")

    try:
        job = run_jobs(parallel, [JobSpec((0, 1), seconds=4.0, length=8 << 20)], during)[0]
    finally:
        parallel.restore("spine1", "host1")
    assert job.right
    left = [e for e in job.members[1]["events"] + job.members[0]["events"] if e["what"] == "left"]
    dead = [e for e in left if e["why"] == "dead" and e["path"] == [parallel.routers["spine1"]]]
    assert dead, left
    assert min(e["time"] for e in dead) - cut[0] < 1.0
    assert job.busbw_mbit(since=cut[0] + 2.0) > 100  # of 300 that are left: this machine is busy


@root
def test_a_path_that_becomes_slow_is_left_within_two_seconds(parallel: Testbed) -> None:
    slowed: list[float] = []

    def during() -> None:
        time.sleep(1.0)
        slowed.append(time.time())
        parallel.throttle("spine2", "host1", 5)

    try:
        job = run_jobs(parallel, [JobSpec((0, 1), seconds=4.0, length=16 << 20)], during)[0]
    finally:
        parallel.throttle("spine2", "host1", 100)
    assert job.right
    toward = [e for e in job.members[0]["events"] if e["what"] == "left"]
    left = [e for e in toward if e["path"] == [parallel.routers["spine2"]] and e["why"] in ("slow", "dead")]
    assert left, toward
    assert min(e["time"] for e in left) - slowed[0] < 2.0, left


@root
def test_when_routes_change_ports_are_learned_again(parallel: Testbed) -> None:
    def during() -> None:
        time.sleep(0.7)
        subprocess.run(
            ["ip", "-n", parallel.namespace("host0"), "link", "set", "spine3", "down"], check=True, timeout=10
        )

    try:
        job = run_jobs(parallel, [JobSpec((0, 1), seconds=4.0, length=4 << 20)], during)[0]
    finally:
        subprocess.run(["ip", "-n", parallel.namespace("host0"), "link", "set", "spine3", "up"], check=True, timeout=10)
        parallel.restore("host0", "spine3")
    assert job.right
    paths = {path for _, path, *_ in job.members[0]["paths"]}
    assert parallel.routers["spine3"] not in paths
    assert len(paths) == 3


@root
def test_links_that_were_down_for_three_seconds_are_used_again(parallel: Testbed) -> None:
    links = [("spine1", "host1"), ("spine2", "host0")]

    def during() -> None:
        time.sleep(0.5)
        for link in links:
            parallel.cut(*link)
        time.sleep(3.0)
        for link in links:
            parallel.restore(*link)

    job = run_jobs(parallel, [JobSpec((0, 1), seconds=10.0, length=4 << 20)], during)[0]
    assert job.right
    for member in job.members:
        assert len({path for _, path, *_ in member["paths"]}) == 4, member["events"]


@root
def test_when_routes_change_the_planner_hears_of_it(parallel: Testbed, tmp_path: Path) -> None:
    at = parallel.routers["spine0"]
    inside = ["ip", "netns", "exec", parallel.namespace("spine0"), sys.executable]
    serve = ["-m", "c4p.cli", "serve", "--open", "--host", at, "--state", str(tmp_path / "state.sqlite")]
    ask = f"import urllib.request as u; print(u.urlopen('http://{at}:7440', timeout=5).read().decode())"
    lost = [parallel.addresses[0], parallel.routers["spine3"]]
    seen: list[bool] = []

    def is_planned() -> bool:
        done = subprocess.run([*inside, "-c", ask], capture_output=True, text=True, timeout=20, check=True)
        overview = json.loads(done.stdout)
        assert overview["jobs"]  # it has not ended
        return lost in [link[:2] for link in overview["links"]]

    def during() -> None:
        seen.append(is_planned())
        subprocess.run(
            ["ip", "-n", parallel.namespace("host0"), "link", "set", "spine3", "down"], check=True, timeout=10
        )
        until = time.monotonic() + 6
        while time.monotonic() < until and (len(seen) == 1 or seen[-1]):
            seen.append(is_planned())

    with subprocess.Popen([*inside, *serve], stdout=subprocess.DEVNULL) as planner:
        try:
            until = time.monotonic() + 20
            while subprocess.run([*inside, "-c", ask], capture_output=True, timeout=20, check=False).returncode:
                assert time.monotonic() < until
            spec = JobSpec((0, 1), seconds=9.0, length=4 << 20, planner=f"http://{at}:7440")
            job = run_jobs(parallel, [spec], during)[0]
        finally:
            planner.kill()
            up = ["ip", "-n", parallel.namespace("host0"), "link", "set", "spine3", "up"]
            subprocess.run(up, check=True, timeout=10)
            parallel.restore("host0", "spine3")
    assert job.right
    assert seen[0]
    assert not seen[-1]


def test_what_cannot_be_built_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="parallel and clos"):
        Shape("ring").checked()
    with pytest.raises(BadRequest, match="spread evenly"):
        Shape("clos", hosts=5, groups=2).checked()
    for shape in (Shape(hosts=1), Shape(hosts=65), Shape(spines=0), Shape(spines=17)):
        with pytest.raises(BadRequest, match="2 to 64 hosts, 1 to 16 spines"):
            shape.checked()
    for shape in (Shape(mbit=0), Shape("clos", oversubscription=0)):
        with pytest.raises(BadRequest, match="more than 0"):
            shape.checked()
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(TestbedError, match="root"), testbed.build(Shape()):
        pass


@root
def test_nothing_is_left_of_a_testbed() -> None:
    with testbed.build(Shape(hosts=2, spines=1)) as bed:
        names = set(bed.namespaces)
    listed = subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True, timeout=10).stdout
    assert not [name for name in names if name in listed.split()]
