"""Which host's link is named from where data waits."""

from __future__ import annotations

import msgspec
import pytest

from eroica.localize.links import Flow, find_slow_link, read_flows
from eroica.model.pattern import LinkUse, WorkerPattern
from eroica.model.worker import Worker


def flow(source: str, target: str, busy_s: float, sent: float = 30e6, rtt_s: float = 0.0, resent: int = 0) -> Flow:
    return Flow(
        source=source,
        target=target,
        sent_bytes=sent,
        busy_s=busy_s,
        busiest_s=busy_s,
        retransmits=resent,
        rtt_s=rtt_s or busy_s / 300,  # what is under way longer waits in a queue
        queued_bytes=1e5,
        window_s=4.0,
    )


def ring(*busy: float) -> list[Flow]:
    names = [f"node-{number}" for number in range(len(busy))]
    return [flow(one, two, s) for one, two, s in zip(names, names[1:] + names[:1], busy, strict=True)]


@pytest.mark.parametrize(
    "busy",
    [(0.1, 0.15, 0.08), (0.1, 0.2, 0.25), (3.0, 2.5, 2.8), (3.0, 3.0, 3.0, 3.0), (3.0, 2.0)],
    ids=["healthy", "uneven", "all slow", "four slow", "two hosts"],
)
def test_where_no_host_stands_out_none_is_named(busy: tuple[float, ...]) -> None:
    assert find_slow_link(ring(*busy)) is None


def test_of_two_hosts_the_slow_direction_is_named() -> None:
    """As measured where node1 sends at 80 Mbit/s: acknowledgements of the other direction wait there, too."""
    fast = msgspec.structs.replace(flow("node0", "node1", 0.1732, 15.58e6, 0.00616), queued_bytes=39_010.0)
    slow = msgspec.structs.replace(flow("node1", "node0", 1.603, 15.64e6, 0.02047), queued_bytes=138_500.0)
    found = find_slow_link([fast, slow])
    assert found is not None
    assert (found.hosts, found.way) == (("node1", "node0"), "path")
    assert (found.rate, found.peers_rate) == (pytest.approx(9.76e6, rel=0.01), pytest.approx(90e6, rel=0.01))
    assert find_slow_link([fast]) is None  # nothing to compare with


def test_late_acknowledgements_tell_which_end_of_a_path_is_slow() -> None:
    """As measured in a ring of three hosts of which node-1 receives at 80 Mbit/s."""
    measured = [
        ("node-2", "node-1", 3.66, 0.0137, 435e3),
        ("node-0", "node-2", 0.84, 0.0051, 0.0),
        ("node-1", "node-0", 1.44, 0.0165, 155e3),
    ]
    flows = [
        msgspec.structs.replace(flow(source, target, busy_s, 35.2e6, rtt_s), queued_bytes=queued)
        for source, target, busy_s, rtt_s, queued in measured
    ]
    found = find_slow_link(flows)
    assert found is not None
    assert (found.hosts, found.way) == (("node-1",), "incoming")
    no_queue = [msgspec.structs.replace(one, queued_bytes=0.0) for one in flows]
    assert find_slow_link(no_queue) is None  # a long time under way alone blames no link


@pytest.mark.parametrize(("at", "way"), [(0, "outgoing"), (1, "incoming")])
def test_a_direction_is_named_where_only_one_is_slow(at: int, way: str) -> None:
    names = [f"node-{number}" for number in range(4)]
    ends = [(one, two) for one in names for two in names if one != two]
    found = find_slow_link([flow(*pair, 3.0 if pair[at] == "node-2" else 0.1) for pair in ends])
    assert found is not None
    assert (found.hosts, found.way) == (("node-2",), way)


@pytest.mark.parametrize("many", [("node-0",), ("node-0", "node-1")], ids=["one host", "two hosts"])
def test_a_host_whose_many_workers_share_its_link_is_not_slow(many: tuple[str, ...]) -> None:
    names = ("node-0", "node-1", "node-2")
    flows = []
    for one, two in ((a, b) for a in names for b in names if a != b):
        usual = flow(one, two, 0.2)
        crowd = msgspec.structs.replace(usual, sent_bytes=8 * usual.sent_bytes, busy_s=8 * 0.8, busiest_s=0.8)
        flows.append(crowd if one in many and (two in many or len(many) == 1) else usual)
    assert find_slow_link(flows) is None


def pattern(rank: int, host: str, *links: LinkUse) -> WorkerPattern:
    return WorkerPattern(
        worker=Worker(global_rank=rank, host=host),
        window_id=1,
        first_iteration=0,
        last_iteration=1,
        duration_s=4.0,
        iteration_us=b"",
        wait_us=b"",
        functions=(),
        links=links,
    )


def test_flows_are_between_hosts_and_small_ones_do_not_count() -> None:
    patterns = [
        pattern(0, "a", LinkUse(local="10.0.0.1", remote="10.0.0.2", sent_bytes=1e6, busy_s=0.5, rtt_s=0.02)),
        pattern(1, "a", LinkUse(local="10.0.0.1", remote="10.0.0.2", sent_bytes=3e6, busy_s=1.5, rtt_s=0.04)),
        pattern(2, "b", LinkUse(local="10.0.0.2", remote="10.0.0.1", sent_bytes=1e3, busy_s=1.0)),
        pattern(3, "b", LinkUse(local="10.0.0.2", remote="10.9.9.9", sent_bytes=9e6, busy_s=1.0)),
    ]
    (found,) = read_flows(patterns)
    assert (found.source, found.target, found.sent_bytes, found.rate) == ("a", "b", 4e6, 2e6)
    assert (found.busiest_s, found.rtt_s) == (1.5, pytest.approx(0.035))


def test_an_address_that_two_hosts_have_names_nobody() -> None:
    patterns = [
        pattern(0, "a", LinkUse(local="172.17.0.2", remote="10.0.0.2", sent_bytes=1e6)),
        pattern(1, "b", LinkUse(local="172.17.0.2", remote="10.0.0.1", sent_bytes=1e6)),
        pattern(2, "c", LinkUse(local="10.0.0.3", remote="172.17.0.2", sent_bytes=1e6)),
    ]
    assert read_flows(patterns) == ()


def test_small_messages_are_no_slow_link_however_long_they_take() -> None:
    healthy = [flow("a", "b", 1.0, 600e6, 5e-4), flow("b", "a", 1.0, 600e6, 5e-4)]
    small = [flow("b", "c", 0.7, 70e6, 4e-4), flow("c", "b", 0.7, 70e6, 4e-4)]
    assert find_slow_link([*healthy, *small]) is None
    lossy = [flow("b", "c", 0.7, 70e6, 4e-4, resent=900), flow("c", "b", 0.7, 70e6, 4e-4, resent=500)]
    found = find_slow_link([*healthy, *lossy])
    assert found is not None and found.hosts == ("c",)
