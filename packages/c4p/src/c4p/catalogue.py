"""Which source port takes which way to a neighbour.

Learned from the kernel's routing answer where the first hop decides, by hop-limited probes where routers beyond it
choose again; checked by whole connections. An entry is dropped as a whole when a route changes or a spot check
disagrees, since a hash over another set of next hops moves most ports.

Source:
    C4, section on C4P's path probing. Deviations: TCP instead of RDMA source ports; hop-limited probes instead of a
    full mesh with switch telemetry; a port is dropped on its own where only its way back fails.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from c4p import probes, routes
from c4p.errors import NoWay
from c4p.model import UNKNOWN, Way

FIRST_PORT = 61000  # above the range from which Linux takes ports by itself
PORTS = 64  # at once; more as long as a way was seen only once
MOST_PORTS = 256
MOST_HOPS = 8
ROUNDS = 3
LOSSY = 0.1
AGE_S = 600.0

Prober = Callable[[Sequence[probes.Probe]], Mapping[probes.Probe, probes.Answer]]


@dataclass(frozen=True, slots=True)
class Entry:
    """Ways from one host to one listening port of another.

    Attributes:
        source: Own address.
        target: The other host's address.
        target_port: Its listening port.
        ways: Source ports by way: "a|b|c" names the routers in order. "" where nothing is known.
        left_out: Ways that are dead or lossy, with the share of connections that failed.
        learned: Seconds since the epoch.
        how: "kernel", "probes" or "none".
        firsts: First router of each of the host's ports, in the order of its interfaces: left, right.
    """

    source: str
    target: str
    target_port: int
    ways: dict[str, list[int]]
    left_out: dict[str, float]
    learned: float
    how: str
    firsts: list[str]

    def by_way(self) -> dict[Way, list[int]]:
        """Ports by way, as a tuple of routers."""
        return {parse_way(text): ports for text, ports in self.ways.items()}


def write_way(way: Way) -> str:
    """A way as text: routers joined by "|"."""
    return "|".join(way)


def parse_way(text: str) -> Way:
    """A way from its text."""
    return tuple(text.split("|")) if text else UNKNOWN


def learn(source: str, target: tuple[str, int], ports: Sequence[int] | None = None, rounds: int = ROUNDS) -> Entry:
    """Learn the ways to a neighbour that listens.

    Args:
        source: Own address.
        target: The neighbour's address and listening port.
        ports: Source ports to try; None: some above the kernel's own range, 64 at a time until each way that was seen
            was seen twice (a way that nobody has seen yet is then unlikely), 256 at most.
        rounds: How often each port is tried; one does not see losses, and is faster.

    Raises:
        NoWay: No route, or no port leads to the neighbour.
    """

    def send(items: Sequence[probes.Probe]) -> Mapping[probes.Probe, probes.Answer]:
        return probes.probe(source, target, items)

    hops: dict[int, routes.NextHop] = {}
    found: dict[int, Way] = {}
    for some in [list(ports)] if ports else _portions():
        fresh = routes.next_hops(source, *target, some)
        if all(hop.local for hop in fresh.values()):
            return Entry(source, *target, {"": [0]}, {}, time.time(), "none", [])
        more, how = find_ways({port: hop.gateway or hop.interface for port, hop in fresh.items()}, send)
        hops |= fresh
        found |= more
        if not _seen_once(found):
            break
    ways, left_out = keep_good(found, check_ports(list(hops), send, rounds))
    if not ways:
        address = f"{target[0]}:{target[1]}"
        raise NoWay(f"none of {len(hops)} source ports leads from {source} to {address}: is it up, and listening?")
    text = {write_way(way): ports for way, ports in sorted(ways.items())}
    order = sorted({(routes.index_of(hop.interface), found[port][0]) for port, hop in hops.items() if found[port]})
    shares = {write_way(way): share for way, share in left_out.items()}
    return Entry(source, *target, text, shares, time.time(), how, list(dict.fromkeys(name for _, name in order)))


def _portions() -> Iterator[list[int]]:
    for first in range(FIRST_PORT, FIRST_PORT + MOST_PORTS, PORTS):
        yield list(range(first, first + PORTS))


def _seen_once(found: Mapping[int, Way]) -> bool:
    """Whether a way was seen only once.

    Source:
        Good (1953), The population frequencies of species: the share of what was never seen is about the share of what
        was seen once.
    """
    return 1 in Counter(found.values()).values()


def find_ways(firsts: Mapping[int, str], send: Prober) -> tuple[dict[int, Way], str]:
    """The way of each source port.

    Args:
        firsts: The kernel's next hop by source port.
        send: Sends probes.

    Returns:
        Routers on the way by source port, and "kernel" or "probes". A router that keeps silent is "?" and its hop;
        ports that are in use are left out where only probes could tell.
    """
    ports = list(firsts)
    hops = _count_hops(ports, send)
    if hops <= 1:
        # One router, or none, between the hosts: the kernel's own choice is the whole way. One probe by next hop
        # gives the router the name that other hosts see too.
        names = {first: first for first in firsts.values()}
        if hops:
            samples = {port: first for first in names for port in [p for p in ports if firsts[p] == first][-4:]}
            answers = dict(send([(port, 1) for port in samples]))
            if silent := [key for key, answer in answers.items() if not answer.router and not answer.busy]:
                answers |= send(silent)
            names |= {first: router for port, first in samples.items() if (router := answers[port, 1].router)}
        return {port: (names[first],) for port, first in firsts.items()}, "kernel"
    answers = dict(send([(port, ttl) for ttl in range(1, hops + 1) for port in ports]))
    silent = [key for key, answer in answers.items() if not answer.router and not answer.busy]
    answers |= send(silent) if silent else {}
    heard = [port for port in ports if not answers[port, 1].busy]
    ways = {port: tuple(answers[port, ttl].router or f"?{ttl}" for ttl in range(1, hops + 1)) for port in heard}
    return ways, "probes"


def _count_hops(ports: Sequence[int], send: Prober) -> int:
    """Routers between the hosts: one less than the time to live that reaches the target."""
    some = ports[-4:]
    for ttl in range(1, MOST_HOPS + 1):
        answers = send([(port, ttl) for port in some])
        if any(answer.connected for answer in answers.values()):
            return ttl - 1
    return 0


def check_ports(ports: Sequence[int], send: Prober, rounds: int = ROUNDS) -> dict[int, list[bool]]:
    """Whether connections from each port come about, `rounds` times; nothing of a port that is in use."""
    came: dict[int, list[bool]] = {port: [] for port in ports}
    for _ in range(rounds):
        for (port, _), answer in send([(port, probes.FULL_TTL) for port in ports]).items():
            if not answer.busy:
                came[port].append(answer.connected)
    return came


def keep_good(
    found: Mapping[int, Way], came: Mapping[int, Sequence[bool]]
) -> tuple[dict[Way, list[int]], dict[Way, float]]:
    """Ways without those that are dead or lossy, and ports without those that never connect.

    A port whose *way back* is dead never connects, however good its way is: it is dropped alone. A way is dead when
    four fifths of its ports never connect; it is lossy when of the connections of its other ports more than a tenth
    fail beyond what fails on the best way.

    Returns:
        Ports by way; and the ways left out, with the share of connections that failed.
    """
    by_way: dict[Way, list[int]] = defaultdict(list)
    for port, way in found.items():
        by_way[way].append(port)
    good: dict[Way, list[int]] = {}
    failed: dict[Way, float] = {}
    dead: dict[Way, float] = {}
    for way, ports in by_way.items():
        alive = [port for port in ports if any(came[port]) or not came[port]]
        if len(alive) <= len(ports) / 5:
            dead[way] = 1 - sum(sum(came[port]) for port in ports) / max(1, sum(len(came[port]) for port in ports))
            continue
        tries = Counter(ok for port in alive for ok in came[port])
        good[way], failed[way] = alive, tries[False] / max(1, tries[True] + tries[False])
    least = min(failed.values(), default=0.0)
    lossy = {way: share for way, share in failed.items() if share > least + LOSSY}
    return {way: ports for way, ports in good.items() if way not in lossy}, dead | lossy


def agree(one: Entry, other: Entry) -> bool:
    """Return True if two entries have the same ways, and the same way for each port that both know."""
    first, second = ({p: way for way, ports in entry.ways.items() for p in ports} for entry in (one, other))
    return one.ways.keys() == other.ways.keys() and all(first[p] == second[p] for p in first.keys() & second.keys())


def still_true(entry: Entry) -> bool:
    """Return True if two ports of each way, or all where the kernel's answer is enough, still take it."""
    if entry.how == "none":
        return True
    some = slice(None) if entry.how == "kernel" else slice(-2, None)
    samples = {port: parse_way(text) for text, ports in entry.ways.items() for port in ports[some]}
    target = (entry.target, entry.target_port)
    try:
        hops = routes.next_hops(entry.source, *target, samples)
    except NoWay:
        return False
    firsts = {port: hop.gateway or hop.interface for port, hop in hops.items()}
    found, _ = find_ways(firsts, lambda items: probes.probe(entry.source, target, items))
    return all(samples[port] == way for port, way in found.items())
