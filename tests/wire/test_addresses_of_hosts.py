"""Addresses of collectors: which are taken, and which of ours the others reach."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import pytest

from eroica.errors import InputError
from eroica.wire.address import (
    Endpoint,
    can_listen,
    endpoint_of,
    is_loopback,
    listening,
    outside_address,
)


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("http://node0:29400", Endpoint("node0", 29400)),
        ("http://10.0.0.1:1/", Endpoint("10.0.0.1", 1)),
        ("http://[fe80::1]:80", Endpoint("fe80::1", 80)),
    ],
)
def test_a_collectors_url_is_host_and_port(url: str, endpoint: Endpoint) -> None:
    assert endpoint_of(url) == endpoint and endpoint_of(endpoint.url) == endpoint


@pytest.mark.parametrize(
    "url",
    ["", "node0:29400", "https://node0:1", "http://node0", "http://node0:0", "http://node0:99999", "http://a@b:1",
     "http://node0:1/path", "http://node0:1?x", "http://no de:1", "http://[::1:1", "http://node0:1\n", "file:///x"],
)  # fmt: skip
def test_anything_else_is_refused(url: str) -> None:
    with pytest.raises(InputError):
        endpoint_of(url)


def test_loopback_is_recognized_by_name_and_number() -> None:
    assert all(map(is_loopback, ("localhost", "127.0.0.1", "127.1.2.3", "::1")))
    assert not any(map(is_loopback, ("node0", "10.0.0.1", "fe80::1", "")))


def test_a_taken_port_and_a_foreign_address_are_nothing_to_listen_on() -> None:
    with listening(Endpoint("127.0.0.1", 0)) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        assert taken.getsockname()[0] == "127.0.0.1"
        assert not can_listen(Endpoint("127.0.0.1", port))
    assert not can_listen(Endpoint("192.0.2.77", 0))


def test_loopback_is_never_given_out_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eroica.wire.address.address_towards", lambda host: "127.0.1.1")
    here = SimpleNamespace(family=socket.AF_INET, address="127.0.0.1")
    monkeypatch.setattr("psutil.net_if_addrs", lambda: {"lo": [here]})
    with pytest.raises(OSError, match="loopback"):
        outside_address("node0")


def test_a_host_whose_own_name_means_loopback_gives_the_address_of_its_route(monkeypatch: pytest.MonkeyPatch) -> None:
    ways = {"node0": "127.0.1.1", socket.gethostname(): "127.0.1.1", "192.0.2.1": "10.1.2.3"}
    monkeypatch.setattr("eroica.wire.address.address_towards", ways.__getitem__)
    assert outside_address("node0") == "10.1.2.3"
