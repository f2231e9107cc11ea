"""A whole network on one machine: one process a member, each in its own network namespace on one bridge.

With root, members share a bridge as clients of one LAN do; the relay has a second link to a "web" namespace with a
server at 198.51.100.1. Without root everything runs on loopback. Delay and loss are injected in user space.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prifi.config import write_network
from prifi.errors import LabError

#: The far end of the lab: addresses that are reserved for documentation.
WEB, WEB_GATE, WEB_PORT = "198.51.100.1", "198.51.100.2", 8080
RELAY_PORT, STATUS_PORT, SOCKS_PORT = 7000, 7070, 1080


def can_make_namespaces() -> bool:
    """Return whether this process may make network namespaces."""
    return os.geteuid() == 0 and shutil.which("ip") is not None


@dataclass(frozen=True, slots=True)
class Plan:
    """What to build.

    Attributes:
        clients: Number of clients.
        trustees: Number of trustees.
        udp: Whether links are UDP.
        delay_ms: Injected one-way delay.
        loss: Injected loss.
        misbehave: Misbehaviour by member.
        namespaces: Whether to use namespaces; needs root.
        realtime: Whether members run before all else (`chrt`), as if each had a machine of its own; needs root.
        base_port: First port on loopback without namespaces.
        parameters: Settings that differ from the defaults.
    """

    clients: int = 5
    trustees: int = 3
    udp: bool = False
    delay_ms: float = 5.0
    loss: float = 0.0
    misbehave: dict[str, str] = field(default_factory=dict)
    namespaces: bool = True
    realtime: bool = False
    base_port: int = 23000
    parameters: dict[str, Any] = field(default_factory=dict)


class Lab:
    """A running network; a context manager that leaves nothing behind.

    Args:
        plan: What to build.
        web: Folder that the web server shows.
    """

    def __init__(self, plan: Plan, web: Path) -> None:
        self.plan = plan
        self.members = [
            "relay",
            *(f"trustee-{j}" for j in range(plan.trustees)),
            *(f"client-{i}" for i in range(plan.clients)),
        ]
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._web = web
        self._prefix = f"pf{os.getpid() % 100000}"
        self._spaces: list[str] = []
        self._folder = Path(tempfile.mkdtemp(prefix="prifi-lab-"))

    def __enter__(self) -> Lab:
        try:
            if self.plan.namespaces:
                if not can_make_namespaces():
                    raise LabError("namespaces need root and `ip` (iproute2); without them use --loopback")
                self._make_spaces()
            self._start_all()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Where things are.

    def address(self, member: str) -> str:
        """Return a member's address on the LAN."""
        if not self.plan.namespaces:
            return "127.0.0.1"
        index = self.members.index(member) + 1
        return f"10.77.{index // 250}.{index % 250 + 1}"

    def ports(self, client: int) -> tuple[int, int]:
        """Return the SOCKS and the status port of a client."""
        if self.plan.namespaces:
            return SOCKS_PORT, STATUS_PORT
        return self.plan.base_port + 10 + client, self.plan.base_port + 2010 + client

    @property
    def url(self) -> str:
        """URL of the web server, as clients ask for it."""
        return f"http://{WEB}:{WEB_PORT}" if self.plan.namespaces else f"http://127.0.0.1:{self.plan.base_port + 1}"

    def log(self, member: str) -> str:
        """Return a member's log."""
        path = self._folder / f"{member}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def inside(self, space: str, command: Sequence[str]) -> list[str]:
        """Return a command that runs in a member's namespace, or "lan", or "web"."""
        return ["ip", "netns", "exec", f"{self._prefix}-{space}", *command] if self.plan.namespaces else [*command]

    # What users of the lab do.

    def wait(self, clients: int = 0, seconds: float = 120.0) -> float:
        """Wait until an epoch with so many clients runs; return how long that took.

        Raises:
            LabError: It did not come; the message has the relay's last lines.
        """
        began, wanted = time.monotonic(), clients or self.plan.clients
        while time.monotonic() - began < seconds:
            status = self.status("relay")
            if status.get("anonymity_set") == wanted and status.get("rounds", 0) > 0:
                return time.monotonic() - began
            if self.processes["relay"].poll() is not None:
                break
            time.sleep(0.1)
        raise LabError(f"no epoch with {wanted} clients: {self.log('relay')[-500:]}")

    def status(self, member: str) -> dict[str, Any]:
        """Return a member's status, empty if its page does not answer."""
        port = STATUS_PORT if self.plan.namespaces else self.plan.base_port + 2
        if member.startswith("client"):
            port = self.ports(int(member.split("-")[1]))[1]
        answer = self.run(member, ["curl", "-s", "--max-time", "5", f"http://127.0.0.1:{port}/status.json"])
        return dict(json.loads(answer.stdout)) if answer.returncode == 0 else {}

    def run(self, space: str, command: Sequence[str], seconds: float = 120.0) -> subprocess.CompletedProcess[bytes]:
        """Run a command in a namespace to its end."""
        return subprocess.run(self.inside(space, command), capture_output=True, timeout=seconds, check=False)

    def curl(self, client: int, path: str, out: Path | None = None, seconds: int = 100) -> subprocess.Popen[bytes]:
        """Start a curl of a client through its SOCKS port."""
        socks = f"127.0.0.1:{self.ports(client)[0]}"
        command = ["curl", "-s", "-S", "--max-time", str(seconds), "--socks5-hostname", socks, f"{self.url}/{path}"]
        command += ["-o", str(out)] if out else []
        return subprocess.Popen(
            self.inside(f"client-{client}", command), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def capture(self, path: Path) -> subprocess.Popen[bytes]:
        """Start an eavesdropper on the LAN that writes every packet's first bytes to a file; end it with SIGINT.

        Raises:
            LabError: tcpdump is missing, or there are no namespaces.
        """
        if not self.plan.namespaces or shutil.which("tcpdump") is None:
            raise LabError("an eavesdropper needs namespaces and tcpdump (apt-get install tcpdump)")
        command = ["tcpdump", "-i", "br0", "-n", "-s", "96", "-B", "16384", "-U", "-Z", "root", "-w", str(path)]
        command += ["port", str(RELAY_PORT)]
        with (self._folder / "tcpdump.log").open("wb") as log:
            process = subprocess.Popen(self.inside("lan", command), stdout=log, stderr=log)
        time.sleep(1.0)
        if process.poll() is not None:
            raise LabError(f"tcpdump does not run: {self.log('tcpdump')}")
        return process

    def stop(self, member: str, number: int = signal.SIGTERM) -> None:
        """End a member."""
        process = self.processes.pop(member, None)
        if process is not None:
            process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(15)
            if process.poll() is None:
                process.kill()
                process.wait()

    def start(self, member: str) -> None:
        """Start a member's process."""
        role = member.split("-", maxsplit=1)[0]
        command = ["chrt", "-r", "1"] if self.plan.realtime else []
        command += [sys.executable, "-m", "prifi", "--verbose", role, "--config", str(self._folder / "prifi.toml")]
        command += ["--key", str(self._folder / f"{member}.key"), "--delay-ms", str(self.plan.delay_ms)]
        command += ["--loss", str(self.plan.loss)]
        if member in self.plan.misbehave:
            command += ["--insecure-misbehave", self.plan.misbehave[member]]
        if role == "client":
            socks, status = self.ports(int(member.split("-")[1]))
            command += ["--socks", f"127.0.0.1:{socks}", "--status", f"127.0.0.1:{status}"]
        elif role == "relay":
            status = STATUS_PORT if self.plan.namespaces else self.plan.base_port + 2
            command += ["--status", f"127.0.0.1:{status}"]
        with (self._folder / f"{member}.log").open("ab") as log:
            self.processes[member] = subprocess.Popen(self.inside(member, command), stdout=log, stderr=log)

    def replace(self, member: str, misbehaviour: str) -> None:
        """Start a member again, now with a misbehaviour."""
        self.stop(member)
        self.plan.misbehave[member] = misbehaviour
        self.start(member)

    def close(self) -> None:
        """End every process and remove every namespace."""
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        for member in list(self.processes):
            self.stop(member)
        for space in self._spaces:
            subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)
        self._spaces.clear()
        shutil.rmtree(self._folder, ignore_errors=True)

    # Building.

    def _start_all(self) -> None:
        port = RELAY_PORT if self.plan.namespaces else self.plan.base_port
        allow = (f"{WEB}/32",) if self.plan.namespaces else ("127.0.0.0/8",)
        relay = f"{self.address('relay')}:{port}"
        parameters = {"gather_s": 1.0, **self.plan.parameters}
        write_network(self._folder, self.plan.clients, self.plan.trustees, relay, self.plan.udp, allow, **parameters)
        host, web_port = (WEB, WEB_PORT) if self.plan.namespaces else ("127.0.0.1", self.plan.base_port + 1)
        server = [sys.executable, "-m", "http.server", str(web_port), "--bind", host, "--directory", str(self._web)]
        self.processes["web"] = subprocess.Popen(
            self.inside("web", server), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for member in self.members:
            self.start(member)

    def _make_spaces(self) -> None:
        """Make a namespace for each member, one with a bridge between them, and one for the web."""
        for space in ("lan", "web", *self.members):
            self._ip("netns", "add", f"{self._prefix}-{space}")
            self._spaces.append(f"{self._prefix}-{space}")
            self._ip("-n", f"{self._prefix}-{space}", "link", "set", "lo", "up")
        lan = f"{self._prefix}-lan"
        self._ip("-n", lan, "link", "add", "br0", "type", "bridge")
        self._ip("-n", lan, "link", "set", "br0", "up")
        for index, member in enumerate(self.members):
            space = f"{self._prefix}-{member}"
            self._join(space, "eth0", lan, f"m{index}")
            self._ip("-n", lan, "link", "set", f"m{index}", "master", "br0")
            self._ip("-n", space, "addr", "add", f"{self.address(member)}/16", "dev", "eth0")
        relay, web = f"{self._prefix}-relay", f"{self._prefix}-web"
        self._join(relay, "eth1", web, "eth0")
        self._ip("-n", relay, "addr", "add", f"{WEB_GATE}/30", "dev", "eth1")
        self._ip("-n", web, "addr", "add", f"{WEB}/30", "dev", "eth0")

    def _join(self, left: str, left_name: str, right: str, right_name: str) -> None:
        self._ip("link", "add", left_name, "netns", left, "type", "veth", "peer", "name", right_name, "netns", right)
        self._ip("-n", left, "link", "set", left_name, "up")
        self._ip("-n", right, "link", "set", right_name, "up")

    @staticmethod
    def _ip(*words: str) -> None:
        done = subprocess.run(["ip", *words], capture_output=True, check=False)
        if done.returncode:
            raise LabError(f"ip {' '.join(words)}: {done.stderr.decode().strip()}")
