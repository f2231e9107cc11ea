"""What C4D tells of real jobs on network namespaces as hosts: the place of a slow way, and how soon.

    python benchmarks/c4d.py --out benchmarks/results/c4d.jsonl --hosts 4 --workers 2 --rounds 2

Needs root and Linux. Workers sleep instead of computing, and communicate for real (gloo over TCP). One job suffers each
fault, one after the other, each after the job was healthy again; each fault is a line. Of a late worker nothing must be
told. Hosts, workers and rates vary with the options; healthy jobs have `--faults none`.
"""

import argparse
import contextlib
import importlib.metadata
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from support.hosts import Hosts, available
from support.node_jobs import environment

LAUNCHER = """
import os, subprocess, sys
first, count = int(sys.argv[1]), int(sys.argv[2])
ranks = [subprocess.Popen([sys.executable, "-m", "support.paced", *sys.argv[3:]],
         env={**os.environ, "RANK": str(first + at), "LOCAL_RANK": str(at)}) for at in range(count)]
sys.exit(max(rank.wait() for rank in ranks))
"""
HEALTHY_S, PATIENCE_S, AFTER_S = 24.0, 25.0, 18.0
FAULTS = ("slow-compute", "slow-path", "slow-send", "slow-receive")
#: Where the machine's facts come from: the benchmarks of the repository.
sys.path.append(str(Path(__file__).resolve().parents[3] / "benchmarks"))


from machine import machine_facts, revision  # noqa: E402


class Truth(NamedTuple):
    """What is to be found; without a place nothing."""

    place: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()


class Job:
    """One job on namespaces."""

    def __init__(self, hosts: Hosts, directory: Path, options: argparse.Namespace) -> None:
        self.hosts = hosts
        self.directory = directory
        self.options = options
        self.faults = directory / "faults"
        self.faults.mkdir(parents=True)
        self.reports = [directory / f"node{host}" / "report" for host in range(hosts.count)]
        self.started: list[subprocess.Popen[Any]] = []

    def start(self) -> None:
        """One `eroica run` on each host."""
        options, world = self.options, self.hosts.count * self.options.workers
        (self.directory / "launcher.py").write_text(LAUNCHER)
        settings = ["window_s=4", "first_look_s=3", "cooldown_s=20", "pages=false", *options.set]
        for host in range(self.hosts.count):
            place = self.directory / f"node{host}"
            place.mkdir()
            env = environment(
                self.hosts, host, WORLD_SIZE=str(world), MASTER_ADDR=self.hosts.address(0), MASTER_PORT="29533",
                LOCAL_WORLD_SIZE=str(options.workers), PYTHONPATH=os.environ.get("PYTHONPATH", ""),
                EROICA_C4D=os.environ["EROICA_C4D"],
            )  # fmt: skip
            job = ["--faults", str(self.faults), "--traffic", options.traffic, "--kilobytes", str(options.kilobytes)]
            job += ["--pace-ms", str(options.pace_ms)]
            first = str(host * options.workers)
            command = [sys.executable, str(self.directory / "launcher.py"), first, str(options.workers), *job]
            pairs = [part for pair in settings for part in ("--set", pair)]
            eroica = [sys.executable, "-m", "eroica", "run", "--out", str(self.reports[host]), *pairs, "--", *command]
            with (place / "out").open("w") as out, (place / "err").open("w") as err:
                started = self.hosts.run(host, eroica, env, cwd=place, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
            self.started.append(started)

    @property
    def living(self) -> bool:
        """Nobody has ended."""
        return all(one.poll() is None for one in self.started)

    def iterations(self) -> tuple[int, float]:
        """Last iteration said, and the clock at that moment."""
        lines = (self.directory / "node0" / "out").read_text().splitlines()
        words = next((line.split() for line in reversed(lines) if line.startswith("iteration")), ["", "0", "", "0"])
        return int(words[1]), float(words[3])

    def status(self) -> dict[str, Any]:
        """What the collector says of the job."""
        with contextlib.suppress(OSError, ValueError):
            return json.loads((self.reports[0] / "status.json").read_text())
        return {}

    def verdicts(self) -> dict[int, dict[str, Any]]:
        """By window."""
        found = {}
        for path in (self.reports[0] / "windows").glob("*/verdict.json"):
            with contextlib.suppress(OSError, ValueError):
                found[int(path.parent.name)] = json.loads(path.read_text())
        return found

    def pids(self) -> dict[int, int]:
        """Global rank to process."""
        return {one["worker"]["global_rank"]: one["worker"]["pid"] for one in self.status().get("workers", ())}

    def wait_healthy(self, seconds: float) -> bool:
        """The job has iterated for so long, all workers known, and no verdict came meanwhile."""
        world, end = self.hosts.count * self.options.workers, time.monotonic() + 300
        while time.monotonic() < end and self.living:
            if len(self.pids()) == world and self.iterations()[0] > 60:
                time.sleep(seconds)
                return True
            time.sleep(0.5)
        return False

    def end(self) -> None:
        """Let the job end by itself."""
        (self.faults / "enough").touch()
        end = time.monotonic() + 15
        while any(one.poll() is None for one in self.started) and time.monotonic() < end:
            time.sleep(0.2)


# ---------------------------------------------------------------------- faults


def inject(job: Job, fault: str, draw: random.Random) -> tuple[Truth, Callable[[], None]]:
    """Do it; returns what is to be found, and what undoes it."""
    hosts, options = job.hosts, job.options
    host = draw.randrange(1, hosts.count)
    other = draw.choice([at for at in range(hosts.count) if at != host])
    if options.traffic == "ring":  # gloo's workers send to the one before them; the other way has acknowledgements only
        other = (host - 1) % hosts.count
    name = f"node{host}"
    if fault == "slow-compute":
        slow = job.faults / f"slow-{draw.randrange(hosts.count * options.workers)}"
        slow.write_text(str(draw.uniform(40, 120)))
        return Truth(), slow.unlink
    if fault == "slow-path":
        hosts.limit_path(host, other, options.rate)
        return Truth(("connection",), (name, f"node{other}")), lambda: hosts.unlimit(host)
    if fault in ("slow-send", "slow-receive"):
        hosts.limit(host, options.host_rate, ("send",) if fault == "slow-send" else ("receive",))
        return Truth(("sending" if fault == "slow-send" else "receiving",), (name,)), lambda: hosts.unlimit(host)
    raise SystemExit(f"unknown fault {fault}")


def judge(truth: Truth, told: dict[str, Any] | None, ring: bool) -> dict[str, bool]:
    """Whether class and place are right."""
    if told is None or not truth.place:
        return dict.fromkeys(("class", "place"), told is None and not truth.place)
    places = [told["place"], *told.get("further", ())]
    return {"class": True, "place": len(places) == 1 and _same_way(truth, places[0], ring)}


def judge_window(truth: Truth, verdict: dict[str, Any] | None) -> dict[str, bool]:
    """The same for a verdict of Eroica's windows: by cause and hosts of its first finding."""
    causes = [one for one in (verdict or {}).get("findings", ()) if one["role"] == "cause"]
    right = bool(causes) and causes[0]["cause"] in ("slow-link", "link-fallback") and bool(truth.place)
    return {"class": right, "place": right and set(causes[0]["hosts"]) == set(truth.hosts)}


def _same_way(truth: Truth, way: dict[str, Any], ring: bool) -> bool:
    """In a ring a host sends to one other only: then the connection is right for its direction, if it says so."""
    if way["kind"] in truth.place and set(way["hosts"]) == set(truth.hosts):
        return way["kind"] != "connection" or way["hosts"] == list(truth.hosts)
    if not ring or way["kind"] != "connection":
        return False
    end = way["hosts"][0] if truth.place == ("sending",) else way["hosts"][1]
    return truth.place in (("sending",), ("receiving",)) and end == truth.hosts[0] and bool(way.get("instead"))


# ---------------------------------------------------------------------- runs


def suffer(job: Job, fault: str, draw: random.Random) -> dict[str, Any]:
    """One fault in a job that is healthy, until it is healthy again."""
    before = set(job.verdicts())
    calm = job.iterations()
    truth, undo = inject(job, fault, draw)
    began = time.monotonic()
    first, when, windows = None, None, {}
    try:
        while time.monotonic() - began < (60.0 if job.options.windows_alone else PATIENCE_S) and job.living:
            for window, verdict in job.verdicts().items():
                if window in before or window in windows:
                    continue
                windows[window] = verdict
                wanted = "window" if job.options.windows_alone else "communication"
                if verdict.get("found_by") == wanted and verdict["verdict"] != "healthy" and first is None:
                    first, when = verdict, time.monotonic() - began
            if first is not None and time.monotonic() - began > when + job.options.linger_s:
                break
            time.sleep(0.05)
    finally:
        with contextlib.suppress(OSError, RuntimeError):
            undo()
    told = None if first is None else first.get("communication")
    alone = job.options.windows_alone
    right = judge_window(truth, first) if alone else judge(truth, told, job.options.traffic == "ring")
    line = {
        "kind": "run", "fault": fault, "truth": truth._asdict(), "told": told, "after_s": when and round(when, 2),
        "summary": first and first["summary"], "right": right, "windows_alone": alone,
        "findings": first and [
            {name: one[name] for name in ("cause", "workers", "hosts", "confidence", "gain")}
            for one in first["findings"]
        ],
        "others": [f"{verdict.get('found_by')}: {verdict['verdict']}: {verdict['summary']}"
                   for verdict in windows.values() if verdict is not first],
        "calm": calm,
    }  # fmt: skip
    job.wait_healthy(AFTER_S)
    return line


def run_job(options: argparse.Namespace, seed: int) -> list[dict[str, Any]]:
    draw = random.Random(seed)
    faults = [] if options.faults == "none" else options.faults.split(",")
    lines: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="c4d-") as name, Hosts(options.hosts) as hosts:
        job = Job(hosts, Path(name), options)
        job.start()
        facts = {
            "seed": seed, "hosts": options.hosts, "workers": options.workers, "traffic": options.traffic,
            "kilobytes": options.kilobytes, "pace_ms": options.pace_ms, "rate": options.rate,
            "eroica": importlib.metadata.version("eroica"), "revision": revision(), "machine": machine_facts(),
            "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }  # fmt: skip
        try:
            if not job.wait_healthy(HEALTHY_S):
                print("the job did not come up:", (job.directory / "node0" / "err").read_text()[-2000:])
                return []
            rate = job.iterations()
            early = [one["summary"] for one in job.verdicts().values() if one.get("found_by") == "communication"]
            calm = {"kind": "healthy", "fault": "none", "verdicts": early, "seconds": HEALTHY_S, **facts}
            with options.out.open("a") as file:
                file.write(json.dumps(calm) + "\n")
            if not faults:
                time.sleep(options.healthy_s)
                told = [one["summary"] for one in job.verdicts().values() if one.get("found_by") == "communication"]
                healthy = {"fault": "none", "verdicts": told, "right": {"class": not told, "place": not told}}
                healthy |= {"kind": "run", "iterations": job.iterations()[0], "seconds": options.healthy_s}
                lines.append({**healthy, **facts})
            for fault in draw.sample(faults, len(faults)):
                line = {**suffer(job, fault, draw), **facts, "iteration": rate}
                lines.append(line)
                say(line)
                with options.out.open("a") as file:
                    file.write(json.dumps(line) + "\n")
                if not job.living:
                    break
            if not faults:
                say(lines[-1])
                with options.out.open("a") as file:
                    file.write(json.dumps(lines[-1]) + "\n")
        finally:
            job.end()
            if options.keep:
                import shutil

                shutil.copytree(name, options.keep, dirs_exist_ok=True)
    return lines


def say(line: dict[str, Any]) -> None:
    right = " ".join(f"{part}:{'ok' if good else 'WRONG'}" for part, good in line["right"].items())
    print(
        f"{line['fault']:13} {right} after {line.get('after_s')} s  {line.get('summary') or line.get('verdicts')}",
        flush=True,
    )
    if not all(line["right"].values()):
        print(f"              wanted {line.get('truth')}; others: {line.get('others')}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--faults", default=",".join(FAULTS), help="only these, with commas; or none")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--workers", type=int, default=2, help="of each host")
    parser.add_argument("--traffic", choices=("ring", "mesh"), default="mesh")
    parser.add_argument("--kilobytes", type=int, default=256)
    parser.add_argument("--pace-ms", type=float, default=60.0)
    parser.add_argument("--rate", default="10mbit", help="of a slow path")
    parser.add_argument("--host-rate", default="20mbit", help="of a host's slow direction")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--linger-s", type=float, default=0.0, help="stay so long with a slow fault that was found")
    parser.add_argument("--healthy-s", type=float, default=60.0)
    parser.add_argument("--set", action="append", default=[], help="a setting of Eroica")
    parser.add_argument("--windows-alone", action="store_true", help="without communication: what windows tell")
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args()
    os.environ["EROICA_C4D"] = str(not options.windows_alone).lower()
    possible, why = available()
    if not possible:
        print(f"no hosts here: {why}")
        return 2
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for number in range(options.rounds):
        run_job(options, options.seed + number)
    return 0


if __name__ == "__main__":
    sys.exit(main())
