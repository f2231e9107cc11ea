"""From a fault to the first good iteration, steered: a stopped worker, an order, a spare host, the job started again.

    python benchmarks/steer.py --runs 3 --json benchmarks/results/steer.json

Needs root and Linux. Three namespaces train, a fourth one is the spare. `eroica steer` starts the job, and Eroica's
look at the standstill becomes the order. Without it, the job stands still until the process group's time-out ends it
(torch's default for gloo is 30 minutes); what follows then is the same stop and start.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from support.hosts import Hosts, available
from support.node_jobs import environment

from c4d import LAUNCHER, machine_facts

HOSTS, TIME_OUT_S = 3, 1800.0
REACH = """#!/bin/sh
case "$1" in
{cases}
esac
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--act-from", default="0.95")
    options = parser.parse_args()
    possible, why = available()
    if not possible:
        print(f"no hosts here: {why}")
        return 2
    runs = [run(options.act_from, number) for number in range(options.runs)]
    results = {"machine": machine_facts(), "time_out_s": TIME_OUT_S, "runs": runs}
    print(json.dumps(results, indent=1))
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))
    return 0


def run(act_from: str, number: int) -> dict[str, Any]:
    """One fault, steered."""
    with tempfile.TemporaryDirectory(prefix="steer-") as name, Hosts(HOSTS + 1) as hosts:
        place, faults = Path(name), Path(name) / "faults"
        faults.mkdir()
        (place / "launcher.py").write_text(LAUNCHER)
        reach = place / "reach.sh"
        reach.write_text(REACH.format(cases="\n".join(_case(hosts, host) for host in range(HOSTS + 1))))
        reach.chmod(0o700)
        process = hosts.run(
            0, _command(hosts, place, faults, reach, act_from), environment(hosts, 0), cwd=place,
            stdin=subprocess.DEVNULL, stdout=(place / "out").open("w"), stderr=(place / "err").open("w"),
        )  # fmt: skip
        try:
            _wait(lambda: len(_iterations(place)) > 15, 120, place)
            time.sleep(5)
            worker = 1 + number % (HOSTS - 1)
            (faults / f"stop-inside-{worker}").touch()
            began, at = time.monotonic(), time.time()
            before = len(_iterations(place))
            _wait(lambda: len(_iterations(place)) > before + 1 and _iterations(place)[-1][0] < 200, 90, place)
            first = next(moment for iteration, moment in _iterations(place)[before:] if iteration == 1)
            (faults / "enough").touch()
            status = process.wait(60)
        finally:
            process.kill()
        lines = [json.loads(line) for line in (place / "steer.jsonl").read_text().splitlines()]
    order = next(line for line in lines if line["event"] == "order")
    stopped = next(line for line in lines if line["event"] == "stopped")
    return {
        "worker": worker,
        "fault_to_order_s": round(order["at"] - at, 2),
        "stopping_s": stopped["took_s"],
        "fault_to_first_good_iteration_s": round(first - began, 2),
        "without_steering_s": round(TIME_OUT_S + first - began - (order["at"] - at), 1),
        "order": order["order"],
        "hosts_after": lines[-2]["hosts"] if lines[-1]["event"] == "ended" else None,
        "status": status,
    }


def _case(hosts: Hosts, host: int) -> str:
    enter = " ".join(hosts.entrance(host))
    return f'node{host}) shift; exec {enter} env GLOO_SOCKET_IFNAME={hosts.interface(host)} "$@";;'


def _command(hosts: Hosts, place: Path, faults: Path, reach: Path, act_from: str) -> list[str]:
    eroica = [sys.executable, "-m", "eroica"]
    names = ",".join(f"node{host}" for host in range(HOSTS))
    world = ["env", "WORLD_SIZE={nnodes}", "LOCAL_WORLD_SIZE=1", f"MASTER_ADDR={hosts.address(0)}"]
    job = [*world, "MASTER_PORT={master_port}", sys.executable, str(place / "launcher.py"), "{node_rank}", "1"]
    return [
        *eroica, "steer", "--hosts", names, "--spares", f"node{HOSTS}", "--reach", f"{reach} {{host}}",
        "--listen", f"{hosts.address(0)}:0", "--stop-s", "3", "--act-from", act_from,
        "--log", str(place / "steer.jsonl"), "--",
        *eroica, "run", "--out", str(place / "report-{attempt}-{host}"),
        "--set", "baseline_window=false", "--set", "pages=false", "--",
        *job, "--faults", str(faults),
    ]  # fmt: skip


def _iterations(place: Path) -> list[tuple[int, float]]:
    lines = (place / "out").read_text().splitlines()
    return [(int(words[1]), float(words[3])) for line in lines if len(words := line.split()) == 4 and words[2] == "at"]


def _wait(condition: Any, patience_s: float, place: Path) -> None:
    end = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > end:
            raise SystemExit(f"it takes too long:\n{(place / 'err').read_text()[-3000:]}")
        time.sleep(0.1)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
