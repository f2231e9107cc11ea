"""Network namespaces as hosts, leaves and spines, joined by links of a stated rate: a small data-center network.

Needs root, `ip` and `tc` (iproute2). Two shapes:

- `parallel`: each host has one link to each of the spines; a path is a spine.
- `clos`: hosts in groups; each host has two ports, left and right, to the left and the right leaf of its group; each
  leaf is joined to every spine. A spine reaches a host by its left or its right leaf, whichever the hash takes.

Hosts and routers choose among equal routes by addresses and ports (layer 4), each with a seed of its own. There is no
`netem` on many kernels: rates are set by `tbf`, a path fails when a link at its far end is taken down.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from c4p.errors import BadRequest, TestbedError

QUEUE_MS = 20
BURST_BYTES = 131072
_serial = itertools.count()


@dataclass(frozen=True, slots=True)
class Link:
    """One direction of a link: from a namespace over its interface to another namespace."""

    source: str
    interface: str
    target: str


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a testbed.

    Attributes:
        kind: "parallel" or "clos".
        hosts: Hosts in all.
        spines: Spines; in "parallel" this is the number of paths.
        mbit: Rate of a host's port, Mbit/s.
        groups: Pairs of leaves (clos); hosts are spread evenly over them.
        oversubscription: Sum of a leaf's host ports over the sum of its uplinks (clos): 1 or 2.
    """

    kind: str = "parallel"
    hosts: int = 2
    spines: int = 4
    mbit: float = 200.0
    groups: int = 2
    oversubscription: float = 1.0

    def checked(self) -> Shape:
        """Return the shape.

        Raises:
            BadRequest: It cannot be built.
        """
        if self.kind not in ("parallel", "clos"):
            raise BadRequest(f"shape {self.kind!r}: there are parallel and clos")
        if not 2 <= self.hosts <= 64 or not 1 <= self.spines <= 16:
            raise BadRequest(f"{self.hosts} hosts and {self.spines} spines: 2 to 64 hosts, 1 to 16 spines")
        if self.kind == "clos" and (self.groups < 1 or self.hosts % self.groups):
            raise BadRequest(f"{self.hosts} hosts cannot be spread evenly over {self.groups} groups")
        if self.mbit <= 0 or self.oversubscription <= 0:
            raise BadRequest("rate and oversubscription are more than 0")
        return self

    @property
    def uplink_mbit(self) -> float:
        """Rate of a leaf's link to one spine, Mbit/s."""
        return self.hosts / self.groups * self.mbit / (self.spines * self.oversubscription)


@dataclass(slots=True)
class Testbed:
    """A running network; see `build`.

    Attributes:
        shape: What it is.
        hosts: Namespace of each host.
        addresses: Address of each host, on its loopback, reached over every path.
        links: Both directions of every link.
        routers: Address that each router answers hop-limited probes with, by its name such as "leaf0L" or "spine3".
    """

    __test__ = False

    shape: Shape
    prefix: str
    hosts: list[str] = field(default_factory=list)
    addresses: list[str] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    routers: dict[str, str] = field(default_factory=dict)
    namespaces: list[str] = field(default_factory=list)

    def command(self, host: int, argv: Sequence[str]) -> list[str]:
        """Return the command line that runs a command on a host."""
        return ["ip", "netns", "exec", self.hosts[host], *argv]

    def start(self, host: int, argv: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        """Start a program on a host; `options` are those of `subprocess.Popen`."""
        return subprocess.Popen(self.command(host, argv), text=True, **options)

    def namespace(self, name: str) -> str:
        """Return the namespace of a host ("host0") or a router ("spine1", "leaf0L")."""
        return f"{self.prefix}-{name}"

    def between(self, source: str, target: str) -> Link:
        """Return the link from one node to another, such as `between("spine1", "host0")`.

        Raises:
            BadRequest: There is none.
        """
        ends = self.namespace(source), self.namespace(target)
        found = [link for link in self.links if (link.source, link.target) == ends]
        if not found:
            raise BadRequest(f"no link from {source} to {target}")
        return found[0]

    def cut(self, source: str, target: str) -> None:
        """Take the interface at the source of a link down, so that the far end loses its carrier.

        Routes of others stay as they are, so what is sent on this path is lost.
        """
        self._set(source, target, "down")

    def restore(self, source: str, target: str) -> None:
        """Take the interface of a cut link up again."""
        self._set(source, target, "up")
        _run("ip", "-n", self.namespace(source), "-batch", "-", text=self._routes.get(source, ""))

    def _set(self, source: str, target: str, state: str) -> None:
        _run("ip", "-n", self.namespace(source), "link", "set", self.between(source, target).interface, state)

    def throttle(self, source: str, target: str, mbit: float) -> None:
        """Set the rate of one direction of a link."""
        link = self.between(source, target)
        _run("tc", "-n", link.source, *f"qdisc change dev {link.interface} {_tbf(mbit)}".split())

    def sent_bytes(self, link: Link) -> int:
        """Return the bytes sent over one direction of a link, headers included."""
        path = f"/sys/class/net/{link.interface}/statistics/tx_bytes"
        return int(_run("ip", "netns", "exec", link.source, "cat", path))

    _routes: dict[str, str] = field(default_factory=dict)


def why_not() -> str:
    """Return why namespaces cannot be made here; empty if they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    return f"{', '.join(missing)} is missing: install iproute2" if missing else ""


@contextlib.contextmanager
def build(shape: Shape, seed: int | None = None) -> Iterator[Testbed]:
    """Build a network; remove it at the end.

    Args:
        shape: The shape of a testbed.
        seed: Of the hosts' and routers' hashes; None: random.

    Raises:
        BadRequest: The shape cannot be built.
        TestbedError: No root, or a tool or a feature of the kernel is missing.
    """
    reason = why_not()
    if reason:
        raise TestbedError(reason)
    bed = Testbed(shape.checked(), f"c4p{os.getpid()}n{next(_serial)}")
    try:
        network = _Plan(bed)
        for number in range(shape.hosts):
            network.node(f"host{number}", f"10.77.0.{number + 1}")
        for number in range(shape.spines):
            network.node(f"spine{number}", f"10.78.0.{number + 1}")
        (_parallel if shape.kind == "parallel" else _clos)(network)
        network.apply(random.Random(seed))
        yield bed
    finally:
        for name in bed.namespaces:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False, timeout=30)


class _Plan:
    """Nodes, links and routes, collected first and created in a few batches."""

    def __init__(self, bed: Testbed) -> None:
        self.bed = bed
        self.identity: dict[str, str] = {}
        self.gateways: dict[tuple[str, str], tuple[str, str]] = {}  # (node, neighbour): neighbour's address, interface
        self.routes: dict[str, list[str]] = {}
        self.pairs: list[tuple[str, str, float]] = []

    def node(self, name: str, address: str) -> None:
        self.identity[name] = address
        self.routes[name] = []

    def join(self, one: str, other: str, mbit: float) -> None:
        number = len(self.pairs)
        network = f"10.{100 + number // 128}.{number % 128 * 2 % 256}"
        self.gateways[one, other] = (f"{network}.1", other)
        self.gateways[other, one] = (f"{network}.0", one)
        self.pairs.append((one, other, mbit))

    def route(self, node: str, target: str, over: Sequence[str]) -> None:
        hops = " ".join("nexthop via {} dev {} weight 1".format(*self.gateways[node, next_]) for next_ in over)
        self.routes[node].append(f"route replace {target}/32 src {self.identity[node]} {hops}")

    def apply(self, seeds: random.Random) -> None:
        bed = self.bed
        for name, address in self.identity.items():
            space = bed.namespace(name)
            _run("ip", "netns", "add", space)
            bed.namespaces.append(space)
            if name.startswith("host"):
                bed.hosts.append(space)
                bed.addresses.append(address)
            else:
                bed.routers[name] = address
        lines = []
        for one, other, _ in self.pairs:
            a, b = bed.namespace(one), bed.namespace(other)
            lines.append(f"link add {other} netns {a} mtu 9000 type veth peer name {one} netns {b} mtu 9000")
        _run("ip", "-batch", "-", text="\n".join(lines))
        for name, address in self.identity.items():
            self._configure(name, address, seeds.getrandbits(31) | 1)

    def _configure(self, name: str, address: str, seed: int) -> None:
        bed, space = self.bed, self.bed.namespace(name)
        mine = [(other if one == name else one, mbit) for one, other, mbit in self.pairs if name in (one, other)]
        interfaces = [self.gateways[name, neighbour][1] for neighbour, _ in mine]
        routes = not name.startswith("host")
        settings = {
            "net.ipv4.ip_forward": int(routes),
            # Policy 1 of a router would take the random hash that the sending socket left in the packet, since
            # namespaces hand packets on with it; policy 3 reads the packet's own addresses and ports.
            "net.ipv4.fib_multipath_hash_policy": 3 if routes else 1,
            "net.ipv4.fib_multipath_hash_fields": 0x37,
            "net.ipv4.conf.all.rp_filter": 0,
            "net.ipv4.conf.default.rp_filter": 0,
            "net.ipv4.conf.all.ignore_routes_with_linkdown": 1,
            **{f"net.ipv4.conf.{interface}.ignore_routes_with_linkdown": 1 for interface in interfaces},
            "net.ipv4.icmp_ratelimit": 0,
            "net.ipv4.icmp_msgs_per_sec": 100_000,
            "net.ipv4.icmp_msgs_burst": 10_000,
        }
        values = [f"{key}={value}" for key, value in settings.items()]
        _run("ip", "netns", "exec", space, "sysctl", "-q", "-e", "-w", *values)
        with contextlib.suppress(TestbedError):  # kernels before 6.11 have one seed for all
            _run("ip", "netns", "exec", space, "sysctl", "-q", "-w", f"net.ipv4.fib_multipath_hash_seed={seed}")
        lines = [f"addr add {address}/32 dev lo", "link set lo up"]
        shapes = []
        for neighbour, mbit in mine:
            gateway, interface = self.gateways[name, neighbour]
            own = gateway[:-1] + ("0" if gateway.endswith(".1") else "1")
            lines += [f"addr add {own}/31 dev {interface}", f"link set {interface} up"]
            shapes.append(f"qdisc replace dev {interface} {_tbf(mbit)}")
            bed.links.append(Link(space, interface, bed.namespace(neighbour)))
        _run("ip", "-n", space, "-batch", "-", text="\n".join(lines))
        bed._routes[name] = "\n".join(self.routes[name])
        _run("ip", "-n", space, "-batch", "-", text=bed._routes[name])
        _run("tc", "-n", space, "-batch", "-", text="\n".join(shapes))


def _parallel(plan: _Plan) -> None:
    shape = plan.bed.shape
    hosts = [f"host{number}" for number in range(shape.hosts)]
    spines = [f"spine{number}" for number in range(shape.spines)]
    for host, spine in itertools.product(hosts, spines):
        plan.join(host, spine, shape.mbit)
    for host in hosts:
        for other in hosts:
            if other != host:
                plan.route(host, plan.identity[other], spines)
        for spine in spines:
            plan.route(spine, plan.identity[host], [host])
            plan.route(host, plan.identity[spine], [spine])


def _clos(plan: _Plan) -> None:
    shape = plan.bed.shape
    spines = [f"spine{number}" for number in range(shape.spines)]
    size = shape.hosts // shape.groups
    members = [[f"host{group * size + k}" for k in range(size)] for group in range(shape.groups)]
    leaves = [[f"leaf{group}{side}" for side in "LR"] for group in range(shape.groups)]
    for group, pair in enumerate(leaves):
        for side, leaf in enumerate(pair):
            plan.node(leaf, f"10.79.{group}.{side + 1}")
            for host in members[group]:
                plan.join(host, leaf, shape.mbit)
            for spine in spines:
                plan.join(leaf, spine, shape.uplink_mbit)
    for group, pair in enumerate(leaves):
        for host in members[group]:
            address = plan.identity[host]
            for other in itertools.chain(*members):
                if other != host:
                    plan.route(other, address, leaves[int(other[4:]) // size])
            for leaf in itertools.chain(*leaves):
                plan.route(leaf, address, [host] if leaf in pair else spines)
            for spine in spines:
                plan.route(spine, address, pair)
                plan.route(host, plan.identity[spine], pair)
    for leaf, spine in itertools.product(itertools.chain(*leaves), spines):
        plan.route(leaf, plan.identity[spine], [spine])


def _tbf(mbit: float) -> str:
    return f"root tbf rate {int(mbit * 1000)}kbit burst {BURST_BYTES} latency {QUEUE_MS}ms"


def _run(*argv: str, text: str = "") -> str:
    done = subprocess.run(argv, input=text + "\n", capture_output=True, text=True, check=False, timeout=60)
    if done.returncode:
        raise TestbedError(f"{' '.join(argv)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
