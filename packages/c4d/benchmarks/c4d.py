"""What communication alone tells of real jobs on network namespaces as hosts: class, place, and how soon.

    python benchmarks/c4d.py --out benchmarks/results/c4d.jsonl --hosts 4 --workers 2 --rounds 2

Needs root and Linux. Workers sleep instead of computing, and communicate for real (gloo over TCP). One job suffers each
slow fault, one after the other, each after the job was healthy again, and one hang at last; each fault is a line.
Hosts, workers and rates vary with the options; healthy jobs have `--faults none`.
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

from machine import machine_facts, revision
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
HANGS = ("stop-outside", "stop-inside", "path-down", "host-down")
SLOW = ("slow-compute", "slow-host", "slow-path", "slow-send", "slow-receive", "mixed")


class Truth(NamedTuple):
    """What is to be found."""

    kind: str
    workers: tuple[int, ...] = ()
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
        world, end = self.hosts.count * self.options.workers, time.monotonic() + 120
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
    world = hosts.count * options.workers
    worker = draw.randrange(world)
    host = draw.randrange(1, hosts.count)
    other = draw.choice([at for at in range(hosts.count) if at != host])
    if options.traffic == "ring":  # gloo's workers send to the one before them; the other way has acknowledgements only
        other = (host - 1) % hosts.count
    here = tuple(range(host * options.workers, (host + 1) * options.workers))
    name, rate = f"node{host}", options.rate
    if fault in ("stop-outside", "stop-inside"):
        kind = "communication-hang" if fault == "stop-inside" else "non-communication-hang"
        pid = job.pids()[worker]
        (job.faults / f"{fault}-{worker}").touch()
        return Truth(kind, (worker,), ("worker",)), lambda: os.kill(pid, signal.SIGCONT)
    if fault == "slow-compute":
        (job.faults / f"slow-{worker}").write_text(str(draw.uniform(40, 120)))
        return Truth("non-communication-slow", (worker,), ("worker",)), (job.faults / f"slow-{worker}").unlink
    if fault == "slow-host":
        for one in here:
            (job.faults / f"slow-{one}").write_text(str(draw.uniform(70, 100)))
        undo = lambda: [(job.faults / f"slow-{one}").unlink() for one in here]  # noqa: E731
        return Truth("non-communication-slow", here, ("host", "worker"), (name,)), undo  # type: ignore[return-value]
    if fault == "slow-path":
        hosts.limit_path(host, other, rate)
        return Truth("communication-slow", (), ("connection",), (name, f"node{other}")), lambda: hosts.unlimit(host)
    if fault in ("slow-send", "slow-receive"):
        hosts.limit(host, options.host_rate, ("send",) if fault == "slow-send" else ("receive",))
        place = "sending" if fault == "slow-send" else "receiving"
        return Truth("communication-slow", (), (place,), (name,)), lambda: hosts.unlimit(host)
    if fault == "mixed":
        hosts.limit_path(host, other, rate)
        (job.faults / f"slow-{worker}").write_text(str(draw.uniform(200, 300)))

        def undo_both() -> None:
            hosts.unlimit(host)
            (job.faults / f"slow-{worker}").unlink()

        return Truth("both-slow", (worker,), ("connection",), (name, f"node{other}")), undo_both
    if fault == "path-down":
        hosts.cut_path(host, other)
        return Truth("communication-hang", (), ("connection",), (name, f"node{other}")), lambda: hosts.mend_path(
            host, other
        )
    if fault == "host-down":
        hosts.down(host)
        return Truth("communication-hang", (), ("link",), (name,)), lambda: hosts.up(host)
    raise SystemExit(f"unknown fault {fault}")


def judge(truth: Truth, told: dict[str, Any] | None, ring: bool) -> dict[str, bool]:
    """Whether class and place are right."""
    if told is None:
        return {"class": False, "place": False}
    places = [told["place"], *told.get("further", ())]
    ways = [one for one in places if one["kind"] in ("connection", "sending", "receiving", "link")]
    workers = sorted({worker for one in places for worker in one.get("workers", ())})
    right = workers == sorted(truth.workers) if truth.workers else not workers
    if truth.kind in ("communication-slow", "both-slow") or (truth.hosts and not truth.workers):
        right = right and len(ways) == 1 and _same_way(truth, ways[0], ring)
    return {"class": told["kind"] == truth.kind, "place": right}


def judge_window(truth: Truth, verdict: dict[str, Any] | None) -> dict[str, bool]:
    """The same for a verdict of Eroica's windows or looks: by cause, workers and hosts of its first finding.

    It has no classes: a slow or stuck way is told by its cause; a stopped worker's class is not asked of it.
    """
    causes = [one for one in (verdict or {}).get("findings", ()) if one["role"] == "cause"]
    if verdict is None or not causes:
        return {"class": False, "place": False}
    first, ways = causes[0], ("slow-link", "link-fallback")
    if truth.kind == "both-slow":
        both = {one["cause"] in ways for one in causes} == {True, False}
        return {"class": both, "place": both and any(tuple(one["workers"]) == truth.workers for one in causes)}
    stopped = truth.kind.endswith("hang") and truth.workers
    right = bool(stopped) or (first["cause"] in ways) == (truth.kind in ("communication-slow", "communication-hang"))
    if truth.workers:
        return {"class": right, "place": tuple(first["workers"]) == truth.workers}
    return {"class": right, "place": set(first["hosts"]) == set(truth.hosts)}


def _same_way(truth: Truth, way: dict[str, Any], ring: bool) -> bool:
    """In a ring a host sends to one other only: then the connection is right for its direction, if it says so."""
    if way["kind"] in truth.place and set(way["hosts"]) == set(truth.hosts):
        return way["kind"] != "connection" or truth.kind == "communication-hang" or way["hosts"] == list(truth.hosts)
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
            if first is not None and (fault in HANGS or time.monotonic() - began > when + job.options.linger_s):
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


def chosen(faults: list[str], seed: int, draw: random.Random) -> list[str]:
    """Slow faults in any order, and one hang at the end: a pause that a job has survived is none from then on."""
    hangs = [fault for fault in faults if fault in HANGS]
    slow = [fault for fault in faults if fault not in HANGS]
    return [*draw.sample(slow, len(slow)), *([hangs[seed % len(hangs)]] if hangs else [])]


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
            for fault in chosen(faults, seed, draw):
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
    parser.add_argument("--faults", default=",".join((*HANGS, *SLOW)), help="only these, with commas; or none")
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
    options.set += [f"communication={str(not options.windows_alone).lower()}"]
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
