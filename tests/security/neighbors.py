"""A watched job, and those it is to be kept from: other users of the host, and strangers at the collector's port."""

from __future__ import annotations

import contextlib
import encodings.idna  # noqa: F401 - sockets want it, and a neighbor cannot load it any more
import os
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from eroica.wire.address import Address
from eroica.wire.places import Places, places

NEIGHBOR = 12345
EROICA = str(Path(sys.executable).with_name("eroica"))
TRAINING = """
import pathlib, threading, time
import eroica

threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
end = time.monotonic() + 50
while not pathlib.Path("stop").exists() and time.monotonic() < end:
    time.sleep(0.02)
    eroica.step()
"""
PLANTED = "import pathlib\npathlib.Path(__file__).with_name('planted').touch()\n"
"""A module in the working directory that bears the name of a library."""


def await_true(condition: Callable[[], object], limit_s: float = 20.0) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "this took too long"
        time.sleep(0.02)


def as_neighbor(act: Callable[[], object]) -> str:
    """Run `act` as another user; its last line of trouble, empty if there was none.

    A fork, not another program: the interpreter itself may lie where only we can read it.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        trouble = ""
        try:
            os.setgroups([])
            os.setresgid(NEIGHBOR, NEIGHBOR, NEIGHBOR)
            os.setresuid(NEIGHBOR, NEIGHBOR, NEIGHBOR)
            os.umask(0)
            act()
        except BaseException:  # noqa: BLE001 - it ends here, whatever it is
            trouble = traceback.format_exc().strip().splitlines()[-1]
        finally:
            os.write(writing, trouble.encode())
            os._exit(0)
    os.close(writing)
    _, status = os.waitpid(child, 0)
    with os.fdopen(reading, "rb") as answer:
        return answer.read().decode() or ("" if status == 0 else f"the child ended with status {status}")


def environment(root: Path, **variables: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("EROICA_")}
    return {
        **clean,
        "EROICA_JOB": "ours",
        "EROICA_HOST": "here",
        "EROICA_RUNTIME_DIR": str(root / "memory"),
        "EROICA_SCRATCH_DIR": str(root / "scratch"),
        "EROICA_RUN_DIR": str(root / "report"),
        **variables,
    }


class Job:
    """`eroica run` on a loop that knows nothing of torch, in a directory where planted modules wait to be imported."""

    def __init__(self, root: Path, command: tuple[str, ...] = (), **variables: str) -> None:
        self.root = root
        self.where: Places = places(environment(root, **variables))
        self.desk = root / "desk"
        self.desk.mkdir(parents=True, exist_ok=True)
        (self.desk / "train.py").write_text(TRAINING)
        for name in ("msgspec", "httpx", "uvicorn", "psutil"):
            (self.desk / f"{name}.py").write_text(PLANTED)
        self.process = subprocess.Popen(
            [*command, EROICA, "run", "--", sys.executable, "train.py"],
            env=environment(root, **variables), cwd=self.desk, umask=0,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self._told: tuple[bytes, bytes] | None = None

    @property
    def address(self) -> Address:
        """Where its collector listens; read as it stands there, for Eroica itself reads no other user's."""
        return msgspec.json.decode((self.where.run / "collector.json").read_bytes(), type=Address)

    @property
    def port(self) -> int:
        return int(self.address.url.rpartition(":")[2])

    def status(self) -> dict:
        with contextlib.suppress(OSError, ValueError):
            return msgspec.json.decode((self.where.run / "status.json").read_bytes())
        return {}

    def iteration(self) -> int:
        return max((worker["iteration"] for worker in self.status().get("workers", ())), default=0)

    def moves_on(self) -> None:
        """Agent and collector still do their work: the job's iterations go on counting in status.json."""
        before = self.iteration()
        await_true(lambda: self.iteration() > before + 5)

    def processes(self) -> dict[int, str]:
        """`eroica run` and everything that carries this job's name in its environment: pid -> command line."""
        found = {}
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                mine = f"EROICA_RUN_DIR={self.where.run}".encode() in (entry / "environ").read_bytes().split(b"\0")
                if mine:
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        return found

    def end(self) -> tuple[bytes, bytes]:
        """Let the training end; what `eroica run` wrote."""
        if self._told is None:
            (self.desk / "stop").touch()
            try:
                self._told = self.process.communicate(timeout=30)
            finally:
                self.process.kill()
        return self._told


@contextlib.contextmanager
def watched(*jobs: Job) -> Iterator[None]:
    try:
        await_true(lambda: all(job.iteration() > 0 or job.process.poll() is not None for job in jobs))
        yield
    finally:
        for job in jobs:
            (job.desk / "stop").touch()
        for job in jobs:
            job.end()


def say(port: int, data: bytes, patience_s: float = 5.0) -> bytes:
    """Send bytes to a port of this host and read until the other side closes or is silent."""
    with socket.create_connection(("127.0.0.1", port), timeout=patience_s) as line, contextlib.suppress(OSError):
        line.sendall(data)
        answer = b""
        while part := line.recv(65_536):
            answer += part
        return answer
    return b""


def request(method: str, path: str, token: str = "", body: bytes = b"", more: Mapping[str, str] = {}) -> bytes:
    headers = {"Host": "c", "Content-Length": str(len(body)), "Connection": "close", **more}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body
