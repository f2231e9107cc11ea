"""Training jobs on several hosts that are network namespaces: one `eroica run` on each, as on a cluster."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from eroica.model.verdict import Verdict
from eroica.wire.messages import JobStatus
from support.hosts import Hosts

SETTINGS = {
    "baseline_window": "false",
    "window_s": "4",
    "cooldown_s": "600",
    "window_deadline_s": "40",
}


@dataclass(frozen=True)
class Node:
    """What came of the job on one host."""

    status: int
    output: str
    errors: str
    report: Path
    json: Path

    @property
    def verdict(self) -> Verdict | None:
        """The final verdict in this node's run directory, if it has one."""
        path = self.report / "verdict.json"
        return Verdict.from_json(path.read_bytes()) if path.exists() else None

    @property
    def logs(self) -> str:
        """What Eroica's processes of this node noted, for failures."""
        texts = [f"--- {path.name}\n{path.read_text()[-4000:]}" for path in sorted(self.report.glob("log/*"))]
        return "\n".join([self.errors[-4000:], *texts])


def environment(hosts: Hosts, host: int, **more: str) -> dict[str, str]:
    """What a program on a host finds: nothing of Eroica's own from around the test, and its own name."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("EROICA_", "SLURM_"))}
    own = {"EROICA_HOST": f"node{host}", "GLOO_SOCKET_IFNAME": hosts.interface(host), "OMP_NUM_THREADS": "1"}
    return {**inherited, **own, **more}


def torchrun(hosts: Hosts, host: int, workers: int, *job: str) -> list[str]:
    """`torchrun` as one starts it on each of several nodes."""
    meeting = ["--nnodes", str(hosts.count), "--node-rank", str(host), "--nproc-per-node", str(workers)]
    place = ["--master-addr", hosts.address(0), "--master-port", "29511"]
    return [sys.executable, "-m", "torch.distributed.run", *meeting, *place, *job]


def watched(directory: Path, command: Sequence[str], settings: Mapping[str, str]) -> list[str]:
    """`eroica run` around a command, with a run directory of its own."""
    pairs = [part for name, value in {**SETTINGS, **settings}.items() for part in ("--set", f"{name}={value}")]
    places = ["--out", str(directory / "report"), "--json", str(directory / "verdict.json")]
    return [sys.executable, "-m", "eroica", "run", *places, *pairs, "--", *command]


def start_job(
    hosts: Hosts,
    directory: Path,
    *program: str,
    clocks: Sequence[int] = (),
    settings: Mapping[str, str] | None = None,
    variables: Mapping[str, str] | None = None,
    own: Mapping[int, Mapping[str, str]] | None = None,
) -> list[subprocess.Popen[str]]:
    """Start a training, two workers a host, that goes on until the file in its variable `ENOUGH` is there.

    Args:
        hosts: Where.
        directory: For output and reports; each host has a part of it.
        program: Its script and arguments.
        clocks: How far each host's monotonic clock is ahead, s.
        settings: Of Eroica, on top of short windows.
        variables: More environment.
        own: What the environment of single hosts says instead.
    """
    started = []
    for host in range(hosts.count):
        place = directory / f"node{host}"
        place.mkdir(parents=True, exist_ok=True)
        more = {"ENOUGH": str(directory / "enough"), **(variables or {}), **(own or {}).get(host, {})}
        command = watched(place, torchrun(hosts, host, 2, *program), settings or {})
        with (place / "out").open("w") as out, (place / "err").open("w") as err:
            started.append(
                hosts.run(
                    host,
                    command,
                    environment(hosts, host, **more),
                    clocks[host] if clocks else 0,
                    cwd=place,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    text=True,
                )
            )
    return started


def wait_for_status(
    report: Path, patience_s: float, enough: Callable[[JobStatus], bool], alive: subprocess.Popen[str]
) -> JobStatus | None:
    """The job's status as soon as it is as wanted; the last one seen if that takes too long or the job has ended."""
    end, status = time.monotonic() + patience_s, None
    while time.monotonic() < end and alive.poll() is None:
        with contextlib.suppress(OSError, msgspec.DecodeError):
            status = msgspec.json.decode((report / "status.json").read_bytes(), type=JobStatus)
            if enough(status):
                break
        time.sleep(0.2)
    return status


def has_verdict(status: JobStatus) -> bool:
    """A window has ended."""
    return any(window.phase in ("done", "failed", "given up") for window in status.windows)


def end_job(directory: Path, started: Sequence[subprocess.Popen[str]], patience_s: float) -> list[Node]:
    """Have the training end, and wait for all hosts.

    Raises:
        subprocess.TimeoutExpired: The job lasts longer than that.
    """
    (directory / "enough").touch()
    end = time.monotonic() + patience_s
    nodes = []
    for host, process in enumerate(started):
        process.wait(max(0.1, end - time.monotonic()))
        place = directory / f"node{host}"
        out, err = (place / "out").read_text(), (place / "err").read_text()
        nodes.append(Node(process.returncode, out, err, place / "report", place / "verdict.json"))
    return nodes


def left_behind(hosts: Hosts, patience_s: float = 5.0) -> list[str]:
    """Command lines that still run on the hosts after the job."""
    end = time.monotonic() + patience_s
    while True:
        pids = [pid for host in range(hosts.count) for pid in hosts.processes_on(host)]
        if not pids or time.monotonic() > end:
            break
        time.sleep(0.1)
    lines = []
    for pid in pids:
        try:
            lines.append(Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return lines
