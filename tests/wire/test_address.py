"""Where the collector listens: files in a run directory that hosts may share, and which addresses others reach."""

from __future__ import annotations

import socket
from pathlib import Path
from types import SimpleNamespace

import pytest

from eroica.errors import InputError
from eroica.wire import address
from eroica.wire.address import (
    Address,
    Endpoint,
    announce,
    announce_to_all,
    can_listen,
    endpoint_of,
    forget,
    is_loopback,
    listening,
    outside_address,
    read_address,
    withdraw,
)


def at(host: str, url: str = "http://127.0.0.1:1", pid: int = 7, domain: str = "here") -> Address:
    return Address(url=url, token="t" * 20, pid=pid, host=host, domain=domain)


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address, "loopback_domain", lambda: "here")


def test_an_address_is_found_until_it_is_taken_back_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    announce(tmp_path, at("a"), "a")
    assert read_address(tmp_path, "a") == at("a")
    assert {path.stat().st_mode & 0o777 for path in tmp_path.rglob("*.json")} == {0o600}
    withdraw(tmp_path, at("a"), "a")
    assert read_address(tmp_path, "a") is None and not list(tmp_path.rglob("*.json"))


def test_hosts_that_share_the_directory_each_find_their_own(tmp_path: Path) -> None:
    announce(tmp_path, at("a", domain="there"), "a")
    announce(tmp_path, at("b"), "b")
    assert read_address(tmp_path, "b") == at("b")
    forget(tmp_path, "b")
    assert (tmp_path / "collector.json").exists() and (tmp_path / "hosts" / "a.json").exists()


def test_a_loopback_address_of_another_host_is_not_used(tmp_path: Path) -> None:
    announce(tmp_path, at("a", domain="there"), "a")
    assert read_address(tmp_path, "b") is None


def test_who_belongs_to_a_host_waits_for_its_own_address_where_hosts_share_the_loopback_interface(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    announce(tmp_path, at("a"), "a")
    assert read_address(tmp_path, "b") is None
    monkeypatch.setenv("EROICA_HOST", "b")
    assert read_address(tmp_path) == at("a"), "who only asks is answered"
    announce(tmp_path, at("b"), "b")
    assert read_address(tmp_path, "b") == at("b")


def test_a_network_address_is_good_everywhere(tmp_path: Path) -> None:
    announce(tmp_path, at("a", domain="there"), "a")
    announce_to_all(tmp_path, at("a", "http://10.0.0.1:5", domain="there"))
    found = read_address(tmp_path, "b")
    assert found is not None and found.url == "http://10.0.0.1:5"


def test_a_host_that_was_sent_elsewhere_finds_that_and_the_old_collector_does_not_take_it_back(tmp_path: Path) -> None:
    home = at("a", "http://10.0.0.1:5", 99, "")
    announce(tmp_path, at("b"), "b")
    announce(tmp_path, home, "b")
    withdraw(tmp_path, at("b"), "b")
    assert read_address(tmp_path, "b") == home and address._read(tmp_path / "collector.json") == home
    withdraw(tmp_path, home, "b")
    assert read_address(tmp_path, "b") is None


def test_who_is_sent_to_home_leaves_what_home_has_written_for_everybody(tmp_path: Path) -> None:
    outside = at("a", "http://10.0.0.1:5", 99, "there")
    announce_to_all(tmp_path, outside)
    seen_from_b = at("a", "http://10.0.0.1:5", 0, "")
    announce(tmp_path, seen_from_b, "b")
    assert read_address(tmp_path, "b") == seen_from_b and address.read_shared(tmp_path) == outside
    withdraw(tmp_path, seen_from_b, "b")
    assert address.read_shared(tmp_path) == outside and not (tmp_path / "hosts" / "b.json").exists()


@pytest.mark.parametrize("text", ["", "[]", '{"url": "http://x", "token": "t", "pid": 1}', '{"url": 1}'])
def test_rubbish_is_no_address(tmp_path: Path, text: str) -> None:
    (tmp_path / "collector.json").write_text(text)
    assert read_address(tmp_path, "a") is None


# ---------------------------------------------------------------------- addresses of hosts


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
