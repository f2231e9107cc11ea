"""Faults of one of three hosts, which are network namespaces: real jobs of six workers, each host under `eroica run`.

    python benchmarks/host_faults.py --out benchmarks/results/faults/hosts.jsonl --seeds 0,1

Needs root and Linux. Workers sleep instead of computing, so that six of them fit on two cores. Lines as those of
`benchmarks/faults.py`; runs that stand in the file already are skipped.
"""

import argparse
import contextlib
import importlib.metadata
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from eroica.model.verdict import Verdict
from eroica.wire.messages import JobStatus
from faults import append, done, one_line, paces, said
from injected.rehearsal import write_endless
from machine import machine_facts, revision
from support.hosts import Direction, Hosts, available
from support.node_jobs import end_job, start_job, wait_for_status

HOST = 1
WORKERS = (2, 3)
RATE = "80mbit"
#: A link that comes and goes is slow for so long, and then healthy for as long.
PHASE_S = 8.0
TRAINING = ("--width", "256", "--layers", "1", "--length", "16", "--batch", "2", "--pace-ms", "80", "--log-every", "10")
SETTINGS = {
    "baseline_window": "true", "baseline_after_iterations": "20",
    "baseline_window_s": "2", "window_s": "6", "cooldown_s": "10",
}  # fmt: skip
ASKED = ("slow", "early")
OVER = ("done", "failed", "given up")


class HostFault(NamedTuple):
    """What is done to host 1: to its link in the middle of the job, or to its environment from the start."""

    directions: tuple[Direction, ...] = ("send", "receive")
    comes_and_goes: bool = False
    variables: tuple[tuple[str, str], ...] = ()
    job: tuple[str, ...] = ()
    causes: tuple[str, ...] = ("slow-link",)
    rate: str = RATE

    @property
    def onset(self) -> str:
        """When it begins."""
        return "start" if self.variables else "middle"


FAULTS = {
    "slow-link": HostFault(),
    "slow-send": HostFault(("send",)),
    "slow-receive": HostFault(("receive",)),
    "passing-slow-link": HostFault(comes_and_goes=True),
    "wrong-environment": HostFault(
        directions=(),
        variables=(("MKL_CBWR", "COMPATIBLE"),),
        job=("--length", "64", "--batch", "8"),
        causes=("misconfiguration", "compute-slow"),
    ),
}
HEALTHY = "hosts"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--faults", default=",".join((*FAULTS, HEALTHY)), help="only these, with commas between them")
    parser.add_argument("--seeds", default="0", help="numbers with commas between them")
    parser.add_argument("--keep", type=Path, help="keep the directories of wrong runs here")
    options = parser.parse_args()
    possible, why = available()
    if not possible:
        print(f"no hosts here: {why}")
        return 2
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    for seed in map(int, options.seeds.split(",")):
        for fault in options.faults.split(","):
            if key_of(fault, seed) not in done(options.out):
                line = run_case(fault, seed, options.keep)
                append(options.out, line)
                print(one_line(line), flush=True)
    return 0


def key_of(fault: str, seed: int) -> str:
    return f"{fault}/hosts/{FAULTS[fault].onset if fault in FAULTS else 'middle'}/{seed}"


def run_case(fault: str, seed: int, keep: Path | None) -> dict[str, Any]:
    """One job from its start to its end, and what was said about it."""
    with tempfile.TemporaryDirectory(prefix="eroica-hosts-") as name, Hosts(3) as hosts:
        directory, began = Path(name), time.monotonic()
        wanted = FAULTS.get(fault, HostFault())
        options = (*TRAINING, *wanted.job, "--seed", str(seed), "--iterations", "20000")
        program, own = (write_endless(directory / "code"), *options), {HOST: dict(wanted.variables)}
        started = start_job(hosts, directory, *program, settings=SETTINGS, own=own)
        report = directory / "node0" / "report"
        wait_for_status(report, 90, lambda status: has_ended(status, ("baseline",)), started[0])
        calm = len(paces(directory / "node0" / "out"))
        times = answer(hosts, FAULTS.get(fault), report, started[0])
        verdict = end_job(directory, started, 60)[0].verdict
        line = record(fault, seed, verdict)
        line |= {**times, "wall_s": round(time.monotonic() - began, 1), "asked_by_hand": fault == HEALTHY}
        line |= {"paces_ms": paces(directory / "node0" / "out"), "calm_paces": calm}
        if keep and not line["right"]:
            keep.mkdir(parents=True, exist_ok=True)
            directory.rename(keep / f"{line['key'].replace('/', '-')}-{time.strftime('%H%M%S')}")
            directory.mkdir()
    return line


def answer(hosts: Hosts, fault: HostFault | None, report: Path, job: Any) -> dict[str, float | None]:
    """Wait for the window; seconds from the fault to the trigger, and from there to the verdict."""
    if fault is None:
        hosts.run(0, [sys.executable, "-m", "eroica", "profile", "--out", str(report), "--no-wait"])
        wait_for_status(report, 60, lambda status: has_ended(status, ("manual",)), job)
        return {"onset_to_trigger_s": None, "trigger_to_verdict_s": None}
    with limited(hosts, fault):
        onset = time.monotonic()
        wait_for_status(report, 90, lambda status: any(one.purpose in ASKED for one in status.windows), job)
        trigger = time.monotonic()
        wait_for_status(report, 60, lambda status: has_ended(status, ASKED), job)
        return {
            "onset_to_trigger_s": round(trigger - onset, 2),
            "trigger_to_verdict_s": round(time.monotonic() - trigger, 2),
        }


@contextlib.contextmanager
def limited(hosts: Hosts, fault: HostFault) -> Iterator[None]:
    """Host 1's link is slow, all the time or in turns."""
    over = threading.Event()

    def take_turns() -> None:
        while not over.is_set():
            hosts.limit(HOST, fault.rate, fault.directions)
            if not over.wait(PHASE_S):
                hosts.unlimit(HOST)
                over.wait(PHASE_S)

    if fault.directions and not fault.comes_and_goes:
        hosts.limit(HOST, fault.rate, fault.directions)
    turns = threading.Thread(target=take_turns if fault.comes_and_goes else over.wait)
    turns.start()
    try:
        yield
    finally:
        over.set()
        turns.join()
        hosts.unlimit(HOST)


def has_ended(status: JobStatus, purposes: tuple[str, ...]) -> bool:
    return any(one.purpose in purposes and one.phase in OVER for one in status.windows)


def record(fault: str, seed: int, verdict: Verdict | None) -> dict[str, Any]:
    """Right is: what was done, to that host."""
    wanted = FAULTS.get(fault, HostFault(causes=()))
    cause = None if verdict is None else verdict.cause
    parts = dict.fromkeys(("verdict", "cause", "workers", "file", "function"), False)
    if fault == HEALTHY:
        parts = dict.fromkeys(parts, verdict is not None and cause is None)
    elif verdict is not None and cause is not None:
        named = cause.hosts == (f"node{HOST}",) or cause.workers == WORKERS
        so = cause.cause in wanted.causes
        parts = {"verdict": verdict.verdict == "slow", "cause": so, "workers": named, "file": True, "function": so}
    word = "healthy" if fault == HEALTHY else "slow"
    return {
        "kind": "run", "key": key_of(fault, seed), "fault": fault, "layout": "hosts", "onset": wanted.onset,
        "seed": seed, "worker": WORKERS[0],
        "expected": {
            "verdict": word, "causes": list(wanted.causes), "scope": "some", "workers": list(WORKERS), "function": "",
        },
        "said": said(verdict), "parts": parts, "right": all(parts.values()), "renamed": False,
        "expected_iteration_s": None, "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "eroica": importlib.metadata.version("eroica"), "revision": revision(), "machine": machine_facts(),
        "settings": SETTINGS,
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
