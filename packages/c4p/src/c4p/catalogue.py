"""The catalogue of one connection: which source port takes which path to the other host.

Learned from the kernel's routing answer where the first hop decides, by hop-limited probes where routers beyond it
choose again; checked by whole connections. An entry is dropped as a whole when a route changes or a spot check
disagrees, since a hash over another set of next hops moves most ports.

Source:
    C4, section on C4P's path probing. Deviations: TCP instead of RDMA source ports; hop-limited probes instead of a
    full mesh with switch telemetry; a port is dropped on its own where only its return path fails.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from c4p import probes, routes
from c4p.errors import NoPath
from c4p.model import UNKNOWN, NetworkPath

FIRST_PORT = 61000  # above the range from which Linux takes ports by itself
PORTS = 64  # at once; more as long as a path was seen only once
MOST_PORTS = 256
MOST_HOPS = 8
ROUNDS = 3
LOSSY = 0.1
AGE_S = 600.0

Prober = Callable[[Sequence[probes.Probe]], Mapping[probes.Probe, probes.Answer]]


@dataclass(frozen=True, slots=True)
class Entry:
    """The paths from one host to one listening port of another.

    Attributes:
        source: Own address.
        target: The other host's address.
        target_port: Its listening port.
        paths: Source ports by path: "a|b|c" names the routers in order. "" where nothing is known.
        excluded: Paths that are dead or lossy, with the share of connections that failed.
        learned: Seconds since the epoch.
        how: "kernel", "probes" or "none".
        first_routers: First router of each of the host's ports, in the order of its interfaces: left, right.
    """

    source: str
    target: str
    target_port: int
    paths: dict[str, list[int]]
    excluded: dict[str, float]
    learned: float
    how: str
    first_routers: list[str]

    def by_path(self) -> dict[NetworkPath, list[int]]:
        """Return the source ports by path."""
        return {parse_path(text): ports for text, ports in self.paths.items()}


def write_path(path: NetworkPath) -> str:
    """Return a path as text: its routers, joined by "|"."""
    return "|".join(path)


def parse_path(text: str) -> NetworkPath:
    """Return the path that a text stands for."""
    return tuple(text.split("|")) if text else UNKNOWN


def learn(source: str, target: tuple[str, int], rounds: int = ROUNDS) -> Entry:
    """Learn the paths to a neighbour that listens.

    Source ports above the kernel's own range are tried, 64 at a time until each path that was seen was seen twice (a
    path that nobody has seen yet is then unlikely), 256 at most.

    Args:
        source: Own address.
        target: The neighbour's address and listening port.
        rounds: How often each port is tried; one does not see losses, and is faster.

    Raises:
        NoPath: No route, or no port leads to the neighbour.
    """

    def send(items: Sequence[probes.Probe]) -> Mapping[probes.Probe, probes.Answer]:
        return probes.probe(source, target, items)

    hops: dict[int, routes.NextHop] = {}
    found: dict[int, NetworkPath] = {}
    for first in range(FIRST_PORT, FIRST_PORT + MOST_PORTS, PORTS):
        fresh = routes.next_hops(source, *target, range(first, first + PORTS))
        if all(hop.local for hop in fresh.values()):
            return Entry(source, *target, {"": [0]}, {}, time.time(), "none", [])
        more, how = find_paths({port: hop.gateway or hop.interface for port, hop in fresh.items()}, send)
        hops |= fresh
        found |= more
        # Good (1953): the share of paths that were never seen is about the share of those that were seen once.
        if 1 not in Counter(found.values()).values():
            break
    paths, excluded = drop_failing(found, check_ports(list(hops), send, rounds))
    if not paths:
        address = f"{target[0]}:{target[1]}"
        raise NoPath(f"none of {len(hops)} source ports leads from {source} to {address}: is it up, and listening?")
    text = {write_path(path): ports for path, ports in sorted(paths.items())}
    order = sorted({(routes.index_of(hop.interface), found[port][0]) for port, hop in hops.items() if found[port]})
    shares = {write_path(path): share for path, share in excluded.items()}
    return Entry(source, *target, text, shares, time.time(), how, list(dict.fromkeys(name for _, name in order)))


def find_paths(first_routers: Mapping[int, str], send: Prober) -> tuple[dict[int, NetworkPath], str]:
    """Find the path of each source port.

    Args:
        first_routers: The kernel's next hop by source port.
        send: Sends probes.

    Returns:
        Routers on the path by source port, and "kernel" or "probes". A router that keeps silent is "?" and its hop;
        ports that are in use are left out where only probes could tell.
    """
    ports = list(first_routers)
    hops = _count_hops(ports, send)
    if hops <= 1:
        # One router, or none, between the hosts: the kernel's own choice is the whole path. One probe for each next hop
        # gives the router the name that other hosts see too.
        names = {first: first for first in first_routers.values()}
        if hops:
            samples = {port: first for first in names for port in [p for p in ports if first_routers[p] == first][-4:]}
            answers = dict(send([(port, 1) for port in samples]))
            if silent := [key for key, answer in answers.items() if not answer.router and not answer.busy]:
                answers |= send(silent)
            names |= {first: router for port, first in samples.items() if (router := answers[port, 1].router)}
        return {port: (names[first],) for port, first in first_routers.items()}, "kernel"
    answers = dict(send([(port, ttl) for ttl in range(1, hops + 1) for port in ports]))
    silent = [key for key, answer in answers.items() if not answer.router and not answer.busy]
    answers |= send(silent) if silent else {}
    heard = [port for port in ports if not answers[port, 1].busy]
    paths = {port: tuple(answers[port, ttl].router or f"?{ttl}" for ttl in range(1, hops + 1)) for port in heard}
    return paths, "probes"


def _count_hops(ports: Sequence[int], send: Prober) -> int:
    """Return the number of routers between the hosts: one less than the time to live that reaches the target."""
    some = ports[-4:]
    for ttl in range(1, MOST_HOPS + 1):
        answers = send([(port, ttl) for port in some])
        if any(answer.connected for answer in answers.values()):
            return ttl - 1
    return 0


def check_ports(ports: Sequence[int], send: Prober, rounds: int = ROUNDS) -> dict[int, list[bool]]:
    """Connect `rounds` times from each port. Return the outcomes by port, without those of ports that are in use."""
    came: dict[int, list[bool]] = {port: [] for port in ports}
    for _ in range(rounds):
        for (port, _), answer in send([(port, probes.FULL_TTL) for port in ports]).items():
            if not answer.busy:
                came[port].append(answer.connected)
    return came


def drop_failing(
    found: Mapping[int, NetworkPath], came: Mapping[int, Sequence[bool]]
) -> tuple[dict[NetworkPath, list[int]], dict[NetworkPath, float]]:
    """Drop paths that are dead or lossy, and ports that never connect.

    A port whose *return path* is dead never connects, however good its path is: it alone is dropped. A path is dead
    when four fifths of its ports never connect; it is lossy when more than a tenth of its other ports' connections
    fail beyond what fails on the best path.

    Returns:
        Ports by path; and the paths left out, with the share of connections that failed.
    """
    by_path: dict[NetworkPath, list[int]] = defaultdict(list)
    for port, path in found.items():
        by_path[path].append(port)
    good: dict[NetworkPath, list[int]] = {}
    failed: dict[NetworkPath, float] = {}
    dead: dict[NetworkPath, float] = {}
    for path, ports in by_path.items():
        alive = [port for port in ports if any(came[port]) or not came[port]]
        if len(alive) <= len(ports) / 5:
            dead[path] = 1 - sum(sum(came[port]) for port in ports) / max(1, sum(len(came[port]) for port in ports))
            continue
        tries = Counter(ok for port in alive for ok in came[port])
        good[path], failed[path] = alive, tries[False] / max(1, tries[True] + tries[False])
    least = min(failed.values(), default=0.0)
    lossy = {path: share for path, share in failed.items() if share > least + LOSSY}
    return {path: ports for path, ports in good.items() if path not in lossy}, dead | lossy


def same_paths(one: Entry, other: Entry) -> bool:
    """Return True if two entries have the same paths, and the same path for each port that both know."""
    first, second = ({p: path for path, ports in entry.paths.items() for p in ports} for entry in (one, other))
    return one.paths.keys() == other.paths.keys() and all(first[p] == second[p] for p in first.keys() & second.keys())


def is_current(entry: Entry) -> bool:
    """Return True if two ports of each path, or all where the kernel's answer is enough, still take it."""
    if entry.how == "none":
        return True
    some = slice(None) if entry.how == "kernel" else slice(-2, None)
    samples = {port: parse_path(text) for text, ports in entry.paths.items() for port in ports[some]}
    target = (entry.target, entry.target_port)
    try:
        hops = routes.next_hops(entry.source, *target, samples)
    except NoPath:
        return False
    first_routers = {port: hop.gateway or hop.interface for port, hop in hops.items()}
    found, _ = find_paths(first_routers, lambda items: probes.probe(entry.source, target, items))
    return all(samples[port] == path for port, path in found.items())
