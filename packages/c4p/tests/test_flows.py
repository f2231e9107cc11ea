from __future__ import annotations

from c4p.flows import Flow, dead_flows, late_pieces, slow_flows
from c4p.path_choice import PathChoice

KIB = 1024


def deliver(flow: Flow, start: float, seconds: float, rate: float, piece: int = 64 * KIB, keep: int = 4) -> float:
    """A flow that always has `keep` pieces in flight and delivers `rate` bytes a second."""
    now, number = start, 0
    for _ in range(keep):
        flow.sent((0, number), piece, now)
        number += 1
    while now < start + seconds:
        now += piece / rate
        flow.acknowledged((0, number - keep), now)
        flow.sent((0, number), piece, now)
        number += 1
    return now


def test_the_window_is_what_a_flow_delivers_and_no_more() -> None:
    flow = Flow("a")
    assert flow.has_room(10**9)  # one piece always
    deliver(flow, 0.0, 1.0, 25e6)
    assert 0.8 * 25e6 < flow.rate < 1.2 * 25e6
    assert 25e6 * 0.03 <= flow.window() <= 25e6 * 0.05
    fast, slow = Flow("f"), Flow("s")
    deliver(fast, 0.0, 1.0, 50e6)
    deliver(slow, 0.0, 1.0, 5e6)
    assert fast.window() > 4 * slow.window()


def test_a_flow_that_stops_while_another_goes_on_is_dead_and_a_receiver_that_stops_is_not() -> None:
    a, b = Flow("a"), Flow("b")
    now = deliver(a, 0.0, 1.0, 20e6)
    deliver(b, 0.0, 1.0, 20e6)
    deliver(b, now, 0.35, 20e6)
    later = now + 0.35
    assert [v.flow for v in dead_flows([a, b], {"a": True}, later)] == [a]
    assert dead_flows([a, b], {"a": False}, later) == []  # the kernel's segments arrive: nobody reads them
    assert dead_flows([a, b], {"a": True}, now + 0.2) == []


def test_when_all_stop_none_is_accused_before_a_second() -> None:
    a, b = Flow("a"), Flow("b")
    now = max(deliver(a, 0.0, 1.0, 20e6), deliver(b, 0.0, 1.0, 20e6))
    both = {"a": True, "b": True}
    assert dead_flows([a, b], both, now + 0.6) == []
    assert len(dead_flows([a, b], both, now + 1.2)) == 2


def test_a_slow_flow_is_left_after_a_while_and_one_of_half_the_speed_is_not() -> None:
    for rate, left in ((2e6, True), (10e6, False)):
        a, b, c = Flow("a"), Flow("b"), Flow("c")
        found = []
        for step in range(12):
            start = step * 0.1
            for flow, speed in ((a, rate), (b, 20e6), (c, 20e6)):
                deliver(flow, start, 0.1, speed)
            found += slow_flows([a, b, c], start + 0.1)
        assert not slow_flows([a], 1.3)  # nothing to compare with
        assert bool(found) == left
        assert all(verdict.flow is a for verdict in found)


def test_late_pieces_are_sent_again_oldest_first() -> None:
    a, b = Flow("a"), Flow("b")
    deliver(a, 0.0, 1.0, 20e6)
    deliver(b, 0.0, 1.0, 20e6)
    assert late_pieces([a, b], 1.01) == []
    late = late_pieces([a], 2.0)
    assert len(late) == len(a.outstanding)
    assert late == sorted(late)


def test_paths_that_are_left_are_tried_again_with_longer_pauses() -> None:
    paths = PathChoice({("s0",): [1, 2], ("s1",): [3], ("s2",): [4]}, [("s0",), ("s1",), ("s2",)])
    assert [paths.next_port(("s0",)) for _ in range(3)] == [1, 2, 1]
    assert paths.leave(0, "dead", 0.0) == ("s1",)
    assert paths.leave(1, "dead", 0.0) == ("s2",)
    assert list(paths._failed) == [("s0",), ("s1",)]
    assert paths.due(0.5) == []
    assert dict(paths.due(1.5)) == {0: ("s0",), 1: ("s1",)}
    paths.failed(("s0",), "dead", 1.5)
    assert dict(paths.due(2.0)) == {1: ("s1",)}
    assert dict(paths.due(3.6))[0] == ("s0",)
    paths.arrived(0, ("s0",))
    paths.works(("s0",))
    assert list(paths._failed) == [("s1",)]
    assert 0 not in dict(paths.due(9.0))


def test_without_knowledge_a_socket_stays_with_the_kernels_choice() -> None:
    paths = PathChoice({(): [0]}, [(), ()])
    assert not paths.known
    assert paths.leave(0, "dead", 0.0) == ()
    assert paths.next_port(()) == 0


def test_a_new_plan_names_the_sockets_to_move() -> None:
    paths = PathChoice({("a",): [1], ("b",): [2]}, [("a",), ("b",)])
    assert paths.replan({("a",): [1], ("b",): [2]}, [("a",), ("a",)], False) == [1]
    assert paths.replan({("b",): [2]}, [("b",), ("b",)], False) == [0, 1]
    assert paths.replan({("b",): [5]}, [("b",), ("b",)], True) == [0, 1]
