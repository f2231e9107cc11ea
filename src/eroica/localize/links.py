"""Find the host whose network link is slower than the others', from where data waits.

In a ring all links carry the same bytes at the pace of the slowest one, so bytes per second say nothing. Bytes per
second *under way* do: over a slow link data is under way nearly all the time, over the others only for moments. The
acknowledgements of what a host receives leave over the same link, so both of its directions look slow even where one
is; directions are told apart only where they clearly differ.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec
import numpy as np

from eroica.model.pattern import LinkUse, WorkerPattern

#: Sending is slow below this share of what others achieve: healthy ones differ by two.
SLOWER = 1 / 3
#: Data that waits on a link has a round trip of this many times the others', or is sent again.
_LONGER_TRIP = 2.0
#: Or at least twice so many bytes are on their way on average: small messages never fill a queue.
_FULL_QUEUE_BYTES = 64_000.0
#: Flows with less than this share of the largest flow's bytes are not judged.
_LEAST_BYTES = 0.1
#: The longest tick of kernels in use; shorter busy times are not measured.
_TICK_S = 0.01
#: Share of a host's flows that must be slow.
_MOST_FLOWS = 0.75

Way = Literal["both", "outgoing", "incoming", "path"]


class Flow(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that the workers of one host sent to those of another.

    Attributes:
        source: Host that sends.
        target: Host that receives.
        sent_bytes: Of all its workers.
        busy_s: Seconds with data under way, summed over workers.
        busiest_s: The same of the busiest worker.
        retransmits: Segments sent again.
        rtt_s: Mean round trip while data was under way, 0 if unknown.
        queued_bytes: Mean of what was not yet acknowledged.
        window_s: Length of the window.
    """

    source: str
    target: str
    sent_bytes: float
    busy_s: float
    busiest_s: float
    retransmits: float
    rtt_s: float
    queued_bytes: float
    window_s: float

    @property
    def rate(self) -> float:
        """Bytes per second while data was under way, for at least a tick of the kernel's."""
        return self.sent_bytes / max(self.busy_s, _TICK_S)

    @property
    def joint_rate(self) -> float:
        """Bytes per second under way if all workers sent at once; `rate` takes them to have sent in turns."""
        return self.sent_bytes / max(self.busiest_s, _TICK_S)

    @property
    def busy_share(self) -> float:
        """Share of the window in which the busiest worker had data under way."""
        return min(self.busiest_s / self.window_s, 1.0) if self.window_s > 0 else 0.0

    @property
    def resent(self) -> float:
        """Segments sent again per byte."""
        return self.retransmits / self.sent_bytes if self.sent_bytes > 0 else 0.0

    def touches(self, host: str) -> bool:
        """Return whether the host sends or receives the flow."""
        return host in (self.source, self.target)


class SlowLink(msgspec.Struct, frozen=True, kw_only=True):
    """A link that is slower than the others.

    Attributes:
        hosts: Whose; of a path the sender and the receiver.
        way: Which direction of the host's link; "path" where only the way from one host to another is known.
        slow: Flows over it.
        others: Flows that do not touch it.
        peers_rate: Median of what the others achieve, bytes per second under way.
    """

    hosts: tuple[str, ...]
    way: Way
    slow: tuple[Flow, ...]
    others: tuple[Flow, ...]
    peers_rate: float

    @property
    def rate(self) -> float:
        """Rate of the slowest flow over the link, bytes per second under way."""
        return min(flow.rate for flow in self.slow)

    @property
    def busiest(self) -> Flow:
        """The flow with data under way for the longest time."""
        return max(self.slow, key=lambda flow: flow.busiest_s)


def read_flows(patterns: Sequence[WorkerPattern]) -> tuple[Flow, ...]:
    """Sum up sent bytes by pair of hosts.

    Addresses are those that workers see on their own connections. One that several hosts have (behind a bridge of
    their own each) names nobody; traffic with addresses of no worker, and inside a host, is left out.
    """
    owner = _owners(patterns)
    parts: dict[tuple[str, str], list[tuple[LinkUse, float]]] = defaultdict(list)
    for pattern in patterns:
        for use in pattern.links:
            target = owner.get(use.remote)
            if use.sent_bytes > 0 and target is not None and target != pattern.worker.host:
                parts[pattern.worker.host, target].append((use, pattern.duration_s))
    flows = [_flow(ends, uses) for ends, uses in sorted(parts.items())]
    most = max((flow.sent_bytes for flow in flows), default=0.0)
    return tuple(flow for flow in flows if flow.sent_bytes >= _LEAST_BYTES * most)


def _owners(patterns: Sequence[WorkerPattern]) -> Mapping[str, str]:
    """Address -> host."""
    hosts: dict[str, set[str]] = defaultdict(set)
    for pattern in patterns:
        for use in pattern.links:
            hosts[use.local].add(pattern.worker.host)
    return {address: next(iter(names)) for address, names in hosts.items() if len(names) == 1 and "" not in names}


def _flow(ends: tuple[str, str], parts: Sequence[tuple[LinkUse, float]]) -> Flow:
    uses = [use for use, _ in parts]
    busy = sum(use.busy_s for use in uses)
    return Flow(
        source=ends[0],
        target=ends[1],
        sent_bytes=sum(use.sent_bytes for use in uses),
        busy_s=busy,
        busiest_s=max(use.busy_s for use in uses),
        retransmits=sum(use.retransmits for use in uses),
        rtt_s=sum(use.rtt_s * use.busy_s for use in uses) / busy if busy > 0 else 0.0,
        queued_bytes=sum(use.queued_bytes for use in uses),
        window_s=max(window for _, window in parts),
    )


def find_slow_link(flows: Sequence[Flow]) -> SlowLink | None:
    """The link that stands out, None if none or more than one does.

    A host stands out if nearly all flows that touch it are slow against those that do not, and no other host's are. So
    it takes three hosts, and the slow one must not be alone in having anything to compare with. Where no host stands
    out but the flows between two do, the path between them is named. Of two hosts it is the slow direction.
    """
    hosts = sorted({host for flow in flows for host in (flow.source, flow.target)})
    found = [link for host in hosts if (link := _of_host(flows, host)) is not None]
    if len(found) == 1:
        return found[0]
    return _of_path(flows) if not found else None


def _of_host(flows: Sequence[Flow], host: str) -> SlowLink | None:
    mine = [flow for flow in flows if flow.touches(host)]
    others = [flow for flow in flows if not flow.touches(host)]
    if len(mine) < 2 or not others:
        return None
    slow = _slow(mine, others)
    if len(slow) >= _MOST_FLOWS * len(mine):
        return _link((host,), "both", slow, others)
    ways: tuple[tuple[Way, list[Flow]], ...] = (
        ("outgoing", [flow for flow in mine if flow.source == host]),
        ("incoming", [flow for flow in mine if flow.target == host]),
    )
    for way, flown in ways:
        if len(flown) > 1 and len(slow) == len(flown) and all(flow in slow for flow in flown):
            return _link((host,), way, slow, others)
    return None


def _of_path(flows: Sequence[Flow]) -> SlowLink | None:
    """The only pair of hosts between which flows are slow; both must have others that are not.

    Two hosts have nothing but the other direction to compare with. The acknowledgements of its data wait on the slow
    one, too, but data under way for three times as long does not.
    """
    slow = [flow for flow in flows if _slow([flow], [one for one in flows if one is not flow])]
    pairs = {frozenset((flow.source, flow.target)) for flow in slow}
    if len(pairs) != 1:
        return None
    ends = (slow[0].source, slow[0].target)
    others = [flow for flow in flows if {flow.source, flow.target} != set(ends)]
    if len(slow) == 1 and not others:
        return _link(ends, "path", slow, [flow for flow in flows if flow is not slow[0]])
    if not all(any(flow.touches(host) for flow in others) for host in ends):
        return None
    hosts, way = _end_of_path(ends, others) if len(slow) == 1 else (ends, "path")
    return _link(hosts, way, slow, others)


def _end_of_path(ends: tuple[str, str], others: Sequence[Flow]) -> tuple[tuple[str, ...], Way]:
    """Tell the slow end of a slow path, if the acknowledgements of other flows show it, else both ends.

    What a host receives slowly are also the acknowledgements of what it sends; what it sends slowly, also those of what
    it receives.
    """
    source, target = ends
    to_target = max((flow.rtt_s for flow in others if flow.source == target), default=0.0)
    from_source = max((flow.rtt_s for flow in others if flow.target == source), default=0.0)
    if to_target >= _LONGER_TRIP * from_source > 0:
        return (target,), "incoming"
    if from_source >= _LONGER_TRIP * to_target > 0:
        return (source,), "outgoing"
    return ends, "path"


def _slow(flows: Sequence[Flow], others: Sequence[Flow]) -> list[Flow]:
    """Find flows far slower than the others' median, whether a host's workers send in turns or at once.

    Only so are hosts comparable that have different numbers of senders: eight that share a link have an eighth each.
    And data must wait there: small messages are slow, too, one round trip each, and no link is to blame for it.
    """
    if not others:
        return []
    usual = SLOWER * float(np.median([flow.rate for flow in others]))
    joint = SLOWER * float(np.median([flow.joint_rate for flow in others]))
    trip = _LONGER_TRIP * float(np.median([flow.rtt_s for flow in others]))
    again = _LONGER_TRIP * float(np.median([flow.resent for flow in others]))
    queue = _LONGER_TRIP * max(float(np.median([flow.queued_bytes for flow in others])), _FULL_QUEUE_BYTES)
    return [
        flow
        for flow in flows
        if flow.rate <= usual
        and flow.joint_rate <= joint
        and (flow.rtt_s >= trip or flow.resent > again or flow.queued_bytes >= queue)
    ]


def _link(hosts: tuple[str, ...], way: Way, slow: Sequence[Flow], others: Sequence[Flow]) -> SlowLink:
    usual = float(np.median([flow.rate for flow in others]))
    return SlowLink(hosts=hosts, way=way, slow=tuple(slow), others=tuple(others), peers_rate=usual)
