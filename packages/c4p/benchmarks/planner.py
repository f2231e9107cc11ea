"""How long a plan of 1,000 hosts x 8 ports takes, how even it is, and how few flows move when a job comes or goes.

With `--http` the same is asked of a running `c4p serve`: from the members' records to the answer read, with JSON, HTTP
and the state on disk; and how many members' questions it answers in a second.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import msgspec

from c4p.client import Subscription, register
from c4p.demand import JobDemand, PathReport
from c4p.planner import Assignment, Demand, LeafPair, Pair, link_loads, plan

CONNECTIONS = 64


def ring(hosts: list[int], nics: int, n_spines: int, hosts_per_leaf: int) -> Demand:
    """Each host sends to the next, NIC to NIC, one flow on each port of the NIC's bond."""
    spines = [[f"s{k}" for k in range(n_spines)]]
    pairs = []
    for a, b in zip(hosts, hosts[1:] + hosts[:1], strict=True):
        for nic in range(nics):
            ends = [(f"l{a // hosts_per_leaf}.{nic}{s}", f"l{b // hosts_per_leaf}.{nic}{s}") for s in "LR"]
            leaf_pairs = [
                LeafPair(f"h{a}.{nic}", f"h{b}.{nic}", spines_of(spines, entry))
                if entry == exit_
                else LeafPair(entry, exit_, 0)
                for entry, exit_ in ends
            ]
            pairs.append(Pair(f"h{a}.{nic}", f"h{b}.{nic}", 2, leaf_pairs))
    return Demand(pairs, spines)


def spines_of(spines: list[list[str]], leaf: str) -> int:
    """Number of the list that has this leaf alone: the path between two hosts below it."""
    if [leaf] not in spines[-64:]:
        spines.append([leaf])
    return spines.index([leaf])


def spread(demands: dict[str, Demand], assignments: dict[str, Assignment]) -> dict[str, int]:
    """Largest difference between two links of one leaf toward the spines."""
    loads = link_loads(demands, assignments)
    up: dict[str, list[int]] = {}
    for (a, b), load in loads.items():
        if b.startswith("s"):
            up.setdefault(a, []).append(load)
    return {"most_on_a_link": max(loads.values()), "uneven_by": max(max(v) - min(v) for v in up.values())}


def job_demand(demand: Demand) -> JobDemand:
    """The demand, and each member's choices, as member 0 of a job registers it."""
    choices = [
        {(s, t): t for s, r in enumerate(pair.leaf_pairs) for t in demand.spines[r.spines]} for pair in demand.pairs
    ]
    return JobDemand(demand, [pair.flows for pair in demand.pairs], choices)


@contextlib.contextmanager
def serving() -> Iterator[tuple[str, int, int]]:
    """A planner of its own, with its state on disk: URL, port and process."""
    with socket.socket() as probe, tempfile.TemporaryDirectory() as folder:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        argv = [
            sys.executable,
            "-m",
            "c4p.cli",
            "serve",
            "--open",
            "--port",
            str(port),
            "--state",
            f"{folder}/state.sqlite",
        ]
        process = subprocess.Popen(argv, stdout=subprocess.DEVNULL)
        try:
            until = time.monotonic() + 30
            while time.monotonic() < until:
                with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}", timeout=5):
                    break
                time.sleep(0.05)
            yield f"http://127.0.0.1:{port}", port, process.pid
        finally:
            process.terminate()
            process.wait(20)


def end(url: str, job: str) -> None:
    Subscription(url, job, 0, 0, PathReport("", "", 0, [], []), {}).leave()


def put(url: str, job: str, asked: JobDemand) -> float:
    """Milliseconds until a job has its answer."""
    began = time.perf_counter()
    register(url, job, asked)
    return 1e3 * (time.perf_counter() - began)


def cpu_ms(pid: int) -> float:
    """CPU time of all threads of a planner, and of this process, in milliseconds."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return 1e3 * time.process_time() + sum(int(one.read_text().split()[0]) for one in threads) / 1e6


def polls(port: int, job: str, members: int, seconds: float) -> float:
    """Members' questions that are answered in a second, over kept connections."""
    socks = [socket.create_connection(("127.0.0.1", port)) for _ in range(CONNECTIONS)]
    asked, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        for number, sock in enumerate(socks):
            path = f"/jobs/{job}/members/{(asked + number) % members}?version=0&revision=0"
            sock.sendall(f"GET {path} HTTP/1.1\r\nHost: planner\r\n\r\n".encode())
        for sock in socks:
            sock.recv(65536)
        asked += len(socks)
    took = time.perf_counter() - began
    for sock in socks:
        sock.close()
    return asked / took


class Poller(threading.Thread):
    """A member that asks again and again, and how long it waits for its answer at most, in milliseconds."""

    def __init__(self, port: int, job: str) -> None:
        super().__init__()
        self._sock = socket.create_connection(("127.0.0.1", port))
        self._request = f"GET /jobs/{job}/members/0?version=0 HTTP/1.1\r\nHost: planner\r\n\r\n".encode()
        self._stop_asking = threading.Event()
        self.waits: list[float] = []

    def run(self) -> None:
        """Ask until the end."""
        while not self._stop_asking.wait(0.005):
            began = time.perf_counter()
            self._sock.sendall(self._request)
            self._sock.recv(65536)
            self.waits.append(1e3 * (time.perf_counter() - began))

    def close(self) -> None:
        """End."""
        self._stop_asking.set()
        self.join()
        self._sock.close()


def over_http(hosts: list[int], spines: int, repeats: int) -> list[dict[str, object]]:
    """A job comes to a planner that has none, or one of half of the hosts."""
    half = len(hosts) // 2
    whole, first, second = (job_demand(ring(some, 4, spines, 32)) for some in (hosts, hosts[:half], hosts[half:]))
    records: list[dict[str, object]] = []
    with serving() as (url, port, pid):
        for case, there, comes in (
            ("a job comes over HTTP (all hosts)", job_demand(Demand([], [])), whole),
            ("a job comes over HTTP (the other half)", first, second),
        ):
            times, waits, cpu = [], [], []
            for _ in range(repeats):
                put(url, "a", there)
                poller = Poller(port, "a")
                poller.start()
                times.append(put(url, "b", comes))
                poller.close()
                waits += poller.waits
                end(url, "b")
                before = cpu_ms(pid)
                put(url, "b", comes)
                cpu.append(cpu_ms(pid) - before)
                end(url, "b")
                end(url, "a")
            record = {
                "case": case,
                "members": len(comes.flows),
                "bytes": len(msgspec.json.encode(comes.demand)),
                "median_ms": round(statistics.median(times), 1),
                "most_ms": round(max(times), 1),
                "median_cpu_ms": round(statistics.median(cpu), 1),
                "a_poll_waits_most_ms": round(max(waits), 1),
            }
            records.append(record)
            print(json.dumps(record), flush=True)
        put(url, "a", whole)
        records.append({"case": "polls", "answers_a_second": round(polls(port, "a", len(whole.flows), 5.0))})
        print(json.dumps(records[-1]), flush=True)
    return records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=1000)
    parser.add_argument("--spines", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--http", action="store_true", help="ask a running planner instead of the function")
    parser.add_argument("--json")
    options = parser.parse_args()
    records = []
    shuffled = list(range(options.hosts))
    random.Random(1).shuffle(shuffled)
    half = options.hosts // 2
    if options.http:
        records = over_http(shuffled, options.spines, options.repeats)
    cases = (
        {}
        if options.http
        else {
            "ring in order": ({"a": list(range(options.hosts))}, {}),
            "ring shuffled": ({"a": shuffled}, {}),
            "8 jobs shuffled": ({f"j{k}": shuffled[k::8] for k in range(8)}, {}),
            "a job comes (half of the hosts)": ({"a": shuffled[:half], "b": shuffled[half:]}, {"a": shuffled[:half]}),
            "7 of 8 jobs stay": (
                {f"j{k}": shuffled[k::8] for k in range(7)},
                {f"j{k}": shuffled[k::8] for k in range(8)},
            ),
        }
    )
    for name, (jobs, before) in cases.items():
        demands = {job: ring(hosts, 4, options.spines, 32) for job, hosts in jobs.items()}
        had = plan({job: ring(hosts, 4, options.spines, 32) for job, hosts in before.items()}, {}).assignments
        had = {job: assignment for job, assignment in had.items() if job in demands}
        times, cpu = [], []
        for _ in range(options.repeats):
            began, began_cpu = time.perf_counter(), time.process_time()
            planned = plan(demands, had)
            times.append(1e3 * (time.perf_counter() - began))
            cpu.append(1e3 * (time.process_time() - began_cpu))
        flows = sum(pair.flows for demand in demands.values() for pair in demand.pairs)
        record = {
            "case": name, "flows": flows,
            "median_ms": round(statistics.median(times), 1), "most_ms": round(max(times), 1),
            "median_cpu_ms": round(statistics.median(cpu), 1),
            "moved": sum(planned.moved.values()), **spread(demands, planned.assignments),
        }  # fmt: skip
        records.append(record)
        print(json.dumps(record))
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:  # noqa: PTH123
            json.dump({"hosts": options.hosts, "spines": options.spines, "records": records}, file, indent=1)


if __name__ == "__main__":
    main()
