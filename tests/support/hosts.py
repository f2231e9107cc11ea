"""Network namespaces as hosts: several machines on one, for tests and benchmarks. Linux, root only.

Each host is a network namespace with one veth to a bridge in a namespace of its own, so nothing of the machine's own
network is touched. A namespace lives as long as the process that holds it, and that one dies with us; what runs there
is sent SIGTERM if we are killed. Hosts share files, processes and the wall clock; the monotonic clock may be set apart.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Literal

_TOOLS = ("ip", "tc", "nsenter", "unshare", "setpriv")
_DIES_WITH_US = ("setpriv", "--pdeathsig")
_SWITCH = -1
_PATIENCE_S = 5.0
Direction = Literal["send", "receive"]


def available() -> tuple[bool, str]:
    """Whether hosts can be made here, and why not."""
    if os.geteuid() != 0:
        return False, "needs root"
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return False, f"needs {', '.join(missing)}"
    tried = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True, check=False)
    return tried.returncode == 0, tried.stderr.strip()


def clocks_available() -> bool:
    """Whether hosts can have monotonic clocks of their own."""
    command = ["unshare", "-T", "--monotonic", "1", "--boottime", "1", "--fork", "true"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


class Hosts:
    """Hosts 0 ... count-1 behind one switch, from entering the context until leaving it.

    Args:
        count: How many.

    Attributes:
        processes: Everything that `run` started, in order.
    """

    _made: ClassVar[int] = 0

    def __init__(self, count: int) -> None:
        self.count = count
        self.processes: list[subprocess.Popen[Any]] = []
        self._holders: dict[int, subprocess.Popen[bytes]] = {}
        self._name = f"er{os.getpid()}{chr(ord('a') + Hosts._made % 26)}"  # fits with a number into 15 characters
        self._subnet = f"10.213.{(os.getpid() + Hosts._made) % 254}"
        Hosts._made += 1

    # ------------------------------------------------------------------ making and removing

    def __enter__(self) -> Hosts:
        """Make switch and hosts.

        Raises:
            RuntimeError: They cannot be made here; `available` tells before.
        """
        possible, why = available()
        if not possible:
            raise RuntimeError(f"no network namespaces here: {why}")
        try:
            self._make()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove everything."""
        self.close()

    def _make(self) -> None:
        for host in (_SWITCH, *range(self.count)):
            self._holders[host] = self._hold()
            self._inside(host, "ip", "link", "set", "lo", "up")
        self._inside(_SWITCH, "ip", "link", "add", self._name, "type", "bridge")
        self._inside(_SWITCH, "ip", "link", "set", self._name, "up")
        for host in range(self.count):
            name, port, namespace = self.interface(host), self._port(host), str(self._holders[host].pid)
            pair = f"{port} type veth peer name {name} netns {namespace}".split()
            self._inside(_SWITCH, "ip", "link", "add", *pair)
            self._inside(_SWITCH, "ip", "link", "set", port, "master", self._name, "up")
            self._inside(host, "ip", "address", "add", f"{self.address(host)}/24", "dev", name)
            self._inside(host, "ip", "link", "set", name, "up")

    @staticmethod
    def _hold() -> subprocess.Popen[bytes]:
        """A process in a new network namespace; it writes a line once it is there."""
        command = ["unshare", "--net", *_DIES_WITH_US, "KILL", "sh", "-c", "echo; exec sleep infinity"]
        holder = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True)
        assert holder.stdout is not None
        with holder.stdout:
            holder.stdout.readline()
        return holder

    def close(self) -> None:
        """End everything that runs on the hosts and remove them; more than once does no harm."""
        end = time.monotonic() + _PATIENCE_S
        while (here := [pid for host in self._holders for pid in self.processes_on(host)]) and time.monotonic() < end:
            for pid in here:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
        for process in (*self.processes, *self._holders.values()):
            process.kill()
            process.wait()
        self._holders.clear()

    # ------------------------------------------------------------------ using

    def address(self, host: int) -> str:
        """The host's address."""
        return f"{self._subnet}.{host + 1}"

    def interface(self, host: int) -> str:
        """The host's network interface, as its programs see it."""
        return f"{self._name}h{host}"

    def run(
        self,
        host: int,
        arguments: Sequence[str],
        env: Mapping[str, str] | None = None,
        clock_offset_s: int = 0,
        **options: Any,
    ) -> subprocess.Popen[Any]:
        """Start a program on a host.

        Args:
            host: Its number.
            arguments: The program.
            env: Its environment, default ours.
            clock_offset_s: How far its monotonic and boot clocks are ahead; then a process stands between it and us
                that takes its signals, so end it by `processes_on` or let it end.
            options: More for `subprocess.Popen`.

        Returns:
            The process, in a session of its own.
        """
        clocks = ["unshare", "-T", "--monotonic", str(clock_offset_s), "--boottime", str(clock_offset_s)]
        apart = [*_DIES_WITH_US, "KILL", *clocks, "--fork", "--kill-child=TERM"] if clock_offset_s else []
        with_us = apart or [*_DIES_WITH_US, "TERM"]
        process = subprocess.Popen(
            [*self.entrance(host), *with_us, *arguments],
            env=dict(os.environ if env is None else env),
            start_new_session=True,
            **options,
        )
        self.processes.append(process)
        return process

    def processes_on(self, host: int) -> list[int]:
        """Ids of the processes that run on a host, whoever started them."""
        with contextlib.suppress(OSError):
            holder = self._holders[host].pid
            namespace = os.stat(f"/proc/{holder}/ns/net").st_ino  # noqa: PTH116 - a link that must be followed once
            return [pid for pid in _in_namespace(namespace) if pid != holder]
        return []

    def limit(self, host: int, rate: str = "20mbit", directions: Collection[Direction] = ("send", "receive")) -> None:
        """Slow the host's link down.

        Args:
            host: Its number.
            rate: As `tc` takes it.
            directions: What the host sends, what it receives (by limiting the switch's port to it), or both.
        """
        shape = f"root tbf rate {rate} burst 64kb latency 50ms".split()
        if "send" in directions:
            self._inside(host, "tc", "qdisc", "replace", "dev", self.interface(host), *shape)
        if "receive" in directions:
            self._inside(_SWITCH, "tc", "qdisc", "replace", "dev", self._port(host), *shape)

    def limit_path(self, host: int, to: int, rate: str = "20mbit") -> None:
        """Slow down what one host sends to another one, and nothing else; `unlimit` ends it.

        Args:
            host: The sender.
            to: The receiver.
            rate: As `tc` takes it.
        """
        device = ("dev", self.interface(host))
        for words in (
            "qdisc replace {} root handle 1: htb default 10",
            "class replace {} parent 1: classid 1:10 htb rate 10gbit quantum 60000",
            f"class replace {{}} parent 1: classid 1:20 htb rate {rate} quantum 3000",
            f"filter replace {{}} parent 1: protocol ip prio 1 u32 match ip dst {self.address(to)}/32 flowid 1:20",
        ):
            self._inside(host, "tc", *words.format(" ".join(device)).split())

    def unlimit(self, host: int) -> None:
        """Give the host its full speed back."""
        for place, device in ((host, self.interface(host)), (_SWITCH, self._port(host))):
            with contextlib.suppress(RuntimeError):  # it had no limit
                self._inside(place, "tc", "qdisc", "delete", "dev", device, "root")

    def _port(self, host: int) -> str:
        return f"{self._name}p{host}"

    def entrance(self, host: int) -> list[str]:
        """Words in front of a command line that make it run on the host; for launchers that run on another one."""
        return ["nsenter", f"--net=/proc/{self._holders[host].pid}/ns/net", "--"]

    def _inside(self, host: int, *arguments: str) -> None:
        done = subprocess.run([*self.entrance(host), *arguments], capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(arguments)} failed: {done.stderr.strip()}")


def _in_namespace(namespace: int) -> Iterator[int]:
    """Living processes whose network namespace has this inode."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if (entry / "ns" / "net").stat().st_ino == namespace:
                    yield int(entry.name)
