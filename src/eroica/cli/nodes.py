"""What one `eroica run` of several does on its node: who starts the collector, who the agent, who prints.

Under torchrun there is one on each node, and all do the same: where the job's collector is turns out later (see
`eroica.agent.home`). Under Slurm there is one per task (`srun eroica run -- python train.py`: the first on each node
works, the others only run their command) or one for all (`eroica run -- srun python train.py`: agents on other nodes
are started by the workers and told where the collector is). `EROICA_COLLECTOR` and `EROICA_TOKEN` say it beforehand.

At any time one `eroica run` of a host has a job's name and its run directory for itself: a second collector would take
the first one's address away and mix both jobs' workers. `Claim` holds a lock of each in the runtime directory of this
user, on this host's own disk or memory, because locks are not dependable on shared file systems.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from eroica.errors import InputError
from eroica.wire.address import (
    Address,
    Endpoint,
    can_listen,
    endpoint_of,
    good_token,
    outside_address,
    read_address,
    read_own,
)
from eroica.wire.places import Places, file_name, host_name, private_directory, private_file, read_private

_NO_TOKEN = (
    "the job runs unwatched: EROICA_COLLECTOR needs an EROICA_TOKEN of 16 to 200 characters, the same on all nodes; "
    "nobody listens on the network without one"
)


@dataclass(frozen=True)
class Part:
    """What this `eroica run` does.

    Attributes:
        agent: It starts this node's agent.
        collector: It starts the collector.
        speaks: It prints and writes the verdict.
        variables: More environment, for helpers and command.
        problem: Why the job is not watched from here; empty if all is well.
        refused: Nobody watches it, for its name or its place is another job's.
    """

    agent: bool = True
    collector: bool = True
    speaks: bool = True
    variables: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""
    refused: bool = False


def part_of(environ: Mapping[str, str], command: Sequence[str]) -> Part:
    """Decide from the environment.

    Args:
        environ: Ours.
        command: What shall be run.
    """
    first = environ.get("SLURM_PROCID", "0") == "0"
    if environ.get("SLURM_LOCALID", "0") != "0":
        return Part(agent=False, collector=False, speaks=False)
    url = environ.get("EROICA_COLLECTOR", "")
    if url:
        try:
            endpoint = endpoint_of(url)
        except InputError as error:
            return Part(agent=False, collector=False, problem=f"EROICA_COLLECTOR: {error}")
        if not good_token(environ.get("EROICA_TOKEN", "")):
            return Part(agent=False, collector=False, problem=_NO_TOKEN)
        here = can_listen(endpoint)
        return Part(collector=here, speaks=here)
    if _launches_elsewhere(environ, command):
        return _for_all_nodes()
    return Part(speaks=first)


def tasks_share(environ: Mapping[str, str]) -> bool:
    """We are one of several tasks of a Slurm step, which find each other by the step's name.

    In a batch script, or in a shell on a node, each `eroica run` is a job of its own: there may be more than one.
    """
    tasks = environ.get("SLURM_STEP_NUM_TASKS") or environ.get("SLURM_NTASKS") or "1"
    return {"SLURM_JOB_ID", "SLURM_STEP_ID"} <= environ.keys() and tasks != "1"


def enclosing(environ: Mapping[str, str]) -> bool:
    """Another `eroica run` on this host, which still lives, has started us and watches the job."""
    launcher, _, host = environ.get("EROICA_LAUNCHED", "").partition("@")
    if host != host_name(environ) or not launcher.isascii() or not launcher.isdigit() or int(launcher) == os.getpid():
        return False
    try:
        words = Path(f"/proc/{int(launcher)}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"run" in words and any(b"eroica" in word for word in words)


def _launches_elsewhere(environ: Mapping[str, str], command: Sequence[str]) -> bool:
    """From a batch script of several nodes, outside of any step: the command will start the tasks."""
    nodes = environ.get("SLURM_NNODES") or environ.get("SLURM_JOB_NUM_NODES") or "1"
    if "SLURM_JOB_ID" not in environ or not nodes.isdigit() or int(nodes) < 2:
        return False
    return "SLURM_STEP_ID" not in environ or Path(command[0]).name == "srun"


def _for_all_nodes() -> Part:
    """A collector that listens on the network from the start; its address and token go where the command goes."""
    try:
        host = outside_address()
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as free:
            free.bind((host, 0))
            endpoint = Endpoint(host, free.getsockname()[1])
    except OSError as error:
        return Part(problem=f"only this node is watched: {error}; set EROICA_COLLECTOR and EROICA_TOKEN")
    return Part(variables={"EROICA_COLLECTOR": endpoint.url, "EROICA_TOKEN": secrets.token_urlsafe(32)})


def home_of(where: Places, collects: bool = True) -> Address | None:
    """The other host's collector that this host's agent reports to; None if it reports to our own.

    Args:
        where: The places of the job.
        collects: There is a collector of our own. Then what only the shared `collector.json` says does not count: it
            may be of an earlier job, which was lost with its host.
    """
    address = read_own(where.run, where.host) if collects else read_address(where.run, where.host)
    return None if address is None or address.host in ("", where.host) else address


class Claim:
    """The locks of one `eroica run`.

    Args:
        where: The places of its job.
    """

    def __init__(self, where: Places) -> None:
        self._where = where
        self._held: list[tuple[Path, int]] = []
        self._refused = False

    def take(self) -> str:
        """Take both locks; why that cannot be, in one clause, "" if it could.

        Raises:
            OSError: Nothing can be locked here; the job cannot be watched either.
        """
        root = private_directory(self._where.runtime).parent
        run = hashlib.sha256(os.fsencode(self._where.run.resolve())).hexdigest()[:16]
        wanted = (
            (f"{self._where.runtime.name}.claim", f"the job {self._where.job}"),
            (f"run-{run}@{file_name(self._where.host)}.claim", f"the report in {self._where.run}"),
        )
        for name, what in wanted:
            handle = _lock(root / name)
            if handle is None:
                self.release()
                self._refused = True
                return f"{what} is that of another `eroica run`, process {_holder(root / name)}, which still runs"
            self._held.append((root / name, handle))
        return ""

    def release(self) -> None:
        """Give the locks back. Idempotent."""
        while self._held:
            path, handle = self._held.pop()
            with contextlib.suppress(OSError):
                path.unlink()
            os.close(handle)
        if self._refused:
            with contextlib.suppress(OSError):  # the other one's has something in it
                self._where.runtime.rmdir()


def _lock(path: Path) -> int | None:
    """A file of ours, locked, with our process id in it; None if another process has it."""
    while True:
        handle = private_file(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return None
        if os.fstat(handle).st_nlink:
            os.pwrite(handle, f"{os.getpid():<10}".encode(), 0)
            return handle
        os.close(handle)  # who had it has just given it back and removed the file


def _holder(path: Path) -> str:
    with contextlib.suppress(OSError):
        return read_private(path).decode("ascii", "replace").strip() or "unknown"
    return "unknown"
