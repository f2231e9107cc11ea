"""Network namespaces for tests and the demo, and checks of devices before a program is attached.

A namespace is held by a process that dies with this one, and has no name in the file system. So nothing is left,
however this process ends.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cora.errors import DeviceError, Unsupported

#: Alias of devices that cora made; `check_device` accepts them without --device-is-mine.
ALIAS = "cora-testbed"
#: Largest MTU at which a veth accepts a native XDP program, with pages of 4 KiB.
LARGEST_MTU = 3498
CLIENT, SERVERS = "10.0.0.2", ("10.1.0.2", "10.1.0.3")
PUBLIC, VIP = "192.0.2.1", "10.0.0.100"
#: MAC addresses of the devices of a test bed.
MACS = {name: bytes([2, 0, 0, 0, 0, number]) for number, name in enumerate(("c0", "in", "out", "s0"), start=1)}


def why_not() -> str:
    """Return why namespaces cannot be made here, or ""."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [tool for tool in ("ip", "nsenter", "setpriv", "unshare", "ethtool") if not shutil.which(tool)]
    return f"{', '.join(missing)} missing; install iproute2, util-linux and ethtool" if missing else ""


#: Prefix of a command that is killed when the process that starts it ends.
_DIES_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL")


class Testbed:
    """Three namespaces in a row: client - middle (devices `in` and `out`) - server.

    Example:
        >>> with Testbed() as bed:  # doctest: +SKIP
        ...     bed.run("client", ["ping", "-c1", "10.1.0.2"])
    """

    __test__ = False

    def __init__(self) -> None:
        self.holders: dict[str, subprocess.Popen[bytes]] = {}
        self.started: list[subprocess.Popen[Any]] = []

    def __enter__(self) -> Testbed:
        if why := why_not():
            raise Unsupported(why)
        for name in ("client", "middle", "server"):
            command = [*_DIES_WITH_PARENT, "unshare", "--net", "sh", "-c", "echo; exec sleep infinity"]
            self.holders[name] = holder = subprocess.Popen(command, stdout=subprocess.PIPE)
            if not holder.stdout or not holder.stdout.readline():
                self.close()
                raise Unsupported("this machine does not allow new network namespaces")
        try:
            self._connect()
        except subprocess.CalledProcessError as error:
            self.close()
            raise Unsupported(f"the test network cannot be made: {error.stderr.strip()}") from error
        return self

    def _connect(self) -> None:
        for outer, inner, near in (("client", "in", "c0"), ("server", "out", "s0")):
            ends = [
                f"{name} address {MACS[name].hex(':')} netns {self.holders[place].pid}"
                for name, place in ((near, outer), (inner, "middle"))
            ]
            self.ip("middle", f"link add {ends[0]} type veth peer name {ends[1]}")
            self.ip("middle", f"link set {inner} alias {ALIAS} up")
            for place in (outer, "middle"):
                self.ip(place, "link set lo up")
            self.ip(outer, f"link set {near} up")
            # A veth takes redirected frames only with GRO or a program, and nobody fills in checksums after a redirect.
            self.run(outer, ["ethtool", "-K", near, "gro", "on", "tx", "off"], check=True)
        for place, near, addresses in (
            ("client", "c0", [f"{CLIENT}/24"]),
            ("server", "s0", [f"{server}/24" for server in SERVERS]),
            ("middle", "in", ["10.0.0.1/24", f"{VIP}/32"]),
            ("middle", "out", ["10.1.0.1/24", f"{PUBLIC}/32"]),
        ):
            for address in addresses:
                self.ip(place, f"addr add {address} dev {near}")
        for address, inner, far in ((CLIENT, "in", "c0"), *((one, "out", "s0") for one in SERVERS)):
            self.ip("middle", f"neigh add {address} lladdr {MACS[far].hex(':')} dev {inner}")
        self.ip("client", "route add default via 10.0.0.1")
        self.ip("server", "route add default via 10.1.0.1")

    def command(self, place: str, argv: Sequence[str]) -> list[str]:
        """Return a command that runs in a namespace."""
        return ["nsenter", f"--net=/proc/{self.holders[place].pid}/ns/net", *argv]

    def ip(self, place: str, arguments: str) -> str:
        """Run `ip` in a namespace and return its output."""
        return self.run(place, ["ip", *arguments.split()], check=True).stdout

    def run(
        self, place: str, argv: Sequence[str], check: bool = False, timeout: float = 100
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in a namespace to its end."""
        command = self.command(place, argv)
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=check)

    def start(self, place: str, argv: Sequence[str], **more: Any) -> subprocess.Popen[Any]:
        """Start a command in a namespace; it ends with the test bed."""
        process = subprocess.Popen([*_DIES_WITH_PARENT, *self.command(place, argv)], **more)
        self.started.append(process)
        return process

    def close(self) -> None:
        """End what runs in the namespaces, and the namespaces."""
        for process in [*self.started, *self.holders.values()]:
            if process.poll() is None:
                process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream:
                    stream.close()

    def __exit__(self, *_: object) -> None:
        self.close()


def ip_json(*arguments: str) -> list[dict[str, Any]]:
    """Return what `ip` shows in this process's namespace; nothing if it fails."""
    done = subprocess.run(["ip", "-j", *arguments], capture_output=True, text=True, check=False)
    return json.loads(done.stdout) if done.returncode == 0 and done.stdout.strip() else []


class Device(NamedTuple):
    """A device that a program can be attached to."""

    name: str
    ifindex: int
    mac: bytes
    queues: int
    addressed: bool
    made_here: bool


def check_device(name: str, device_is_mine: bool) -> Device:
    """Return a device of this process's namespace, or raise DeviceError with what to do."""
    shown = ip_json("-d", "addr", "show", "dev", name)
    if not shown:
        raise DeviceError(f"there is no device {name} in this network namespace; `ip link` lists them")
    link = shown[0]
    made_here, mtu = link.get("ifalias", "") == ALIAS, link["mtu"]
    rules = {
        "is not in a namespace that cora made; a mistake there cuts this machine off. "
        "Add --device-is-mine if the device may be used": not made_here and not device_is_mine,
        f"already carries an XDP program; remove it with `ip link set {name} xdp off`": bool(link.get("xdp")),
        f"has an MTU of {mtu}; native XDP takes one page a packet. "
        f"Set it to {LARGEST_MTU} or less: `ip link set {name} mtu 1500`": mtu > LARGEST_MTU,
        f"is down; `ip link set {name} up`": "UP" not in link["flags"],
        "is no Ethernet device": "address" not in link or link.get("link_type") != "ether",
    }
    for words, broken in rules.items():
        if broken:
            raise DeviceError(f"{name} {words}")
    mac = bytes.fromhex(link["address"].replace(":", ""))
    addressed = any(one["family"] == "inet" for one in link["addr_info"])
    return Device(name, link["ifindex"], mac, link.get("num_rx_queues", 1), addressed, made_here)


def advice(device: Device) -> str:
    """Return what to check for a device that cora did not make, since its peer cannot be seen from here."""
    return (
        f"{device.name}: if it is a veth, its peer needs an XDP program or `ethtool -K PEER gro on` to take redirected "
        "packets, and `ethtool -K PEER tx off` if a socket sends there"
    )


def forwards(device: str) -> bool:
    """Return True if the stack would route IPv4 packets that come in by the device."""
    path = Path(f"/proc/sys/net/ipv4/conf/{device}/forwarding")
    try:
        return path.read_text(encoding="ascii").strip() == "1"
    except OSError:
        return True
