from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence

import pytest

from c4p import catalogue, routes
from c4p.catalogue import drop_failing, find_paths
from c4p.cli import parse_target
from c4p.errors import BadRequest
from c4p.probes import Answer, Probe, probe


def network(hops: int, silent: int = 0):
    """Probes in a made-up network: the router at hop t of port p is "t.(p mod (t + 1))"."""

    def send(items: Sequence[Probe]) -> Mapping[Probe, Answer]:
        answers = {}
        for port, ttl in items:
            if ttl > hops:
                answers[port, ttl] = Answer(connected=True)
            else:
                answers[port, ttl] = Answer(router="" if ttl == silent else f"{ttl}.{port % (ttl + 1)}")
        return answers

    return send


def test_one_router_on_the_path_is_known_from_the_kernels_answer() -> None:
    first_routers = {port: f"gw{port % 2}" for port in range(8)}
    paths, how = find_paths(first_routers, network(1))
    assert how == "kernel"
    assert paths == {port: (f"1.{port % 2}",) for port in range(8)}
    assert find_paths(first_routers, network(0)) == ({port: (f"gw{port % 2}",) for port in range(8)}, "kernel")


def test_several_routers_are_probed_and_a_silent_one_is_marked() -> None:
    paths, how = find_paths(dict.fromkeys(range(6), "gw"), network(3, silent=2))
    assert how == "probes"
    assert paths[5] == ("1.1", "?2", "3.1")


def test_ports_that_are_in_use_are_left_out_where_only_probes_could_tell() -> None:
    def send(items: Sequence[Probe]) -> Mapping[Probe, Answer]:
        return {item: Answer(busy=True) if item[0] == 2 else network(2)([item])[item] for item in items}

    paths, _ = find_paths(dict.fromkeys(range(9), "gw"), send)
    assert 2 not in paths
    assert len(paths) == 8


def test_dead_and_lossy_paths_are_left_out_and_a_dead_path_back_costs_one_port() -> None:
    found = {port: (f"s{port % 4}",) for port in range(40)}
    came = {port: [True, True, True] for port in range(40)}
    for port in range(0, 40, 4):  # s0 is dead
        came[port] = [False] * 3
    for port in range(1, 40, 8):  # s1 loses half of what half of its ports send
        came[port] = [True, False, False]
    came[2] = [False] * 3  # the path back of one port
    came[3] = []  # in use
    paths, excluded = drop_failing(found, came)
    assert sorted(paths) == [("s2",), ("s3",)]
    assert excluded[("s0",)] == 1.0
    assert 0.2 < excluded[("s1",)] < 0.5
    assert 2 not in paths[("s2",)]
    assert 3 in paths[("s3",)]


def test_this_host_has_one_path_to_itself() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        target = listener.getsockname()
        entry = catalogue.learn("127.0.0.1", target)
        assert entry.how == "none"
        assert entry.by_path() == {(): [0]}
        assert catalogue.is_current(entry)
        assert probe("127.0.0.1", target, [(0, 64)])[0, 64].connected
        assert all(hop.local for hop in routes.next_hops("127.0.0.1", *target, [1000]).values())


def test_a_target_is_host_and_port() -> None:
    with pytest.raises(BadRequest, match="HOST:PORT"):
        parse_target("host")
