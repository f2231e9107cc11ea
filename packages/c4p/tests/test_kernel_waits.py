"""What the kernel says of a socket's acknowledgements."""

from __future__ import annotations

import struct
from typing import Any, cast

import pytest

from c4p.connections import Outgoing, kernel_waits_s
from c4p.flows import Flow

WAY = ("s1",)


class Kernel:
    """A socket that only answers for `TCP_INFO`."""

    def __init__(self) -> None:
        self.unacked, self.acked, self.not_sent, self.peers_window = 0, 0, 0, 60_000

    def getsockopt(self, *_: object) -> bytes:
        info = bytearray(232)
        struct.pack_into("I", info, 24, self.unacked)
        struct.pack_into("Q", info, 120, self.acked)
        struct.pack_into("I", info, 144, self.not_sent)
        struct.pack_into("I", info, 228, self.peers_window)
        return bytes(info)


@pytest.fixture
def kernel() -> Kernel:
    return Kernel()


@pytest.fixture
def connection(kernel: Kernel) -> Outgoing:
    return Outgoing(0, 61000, WAY, cast("Any", kernel), Flow("p"), 0.0, 1, 0.3, 1.0)


def test_acknowledgements_that_acknowledge_nothing_more_are_none(kernel: Kernel, connection: Outgoing) -> None:
    kernel.acked, kernel.unacked = 1000, 40
    assert kernel_waits_s(connection, 100.0) == 0.0
    assert kernel_waits_s(connection, 100.3) == pytest.approx(0.3)  # however lately some segment carried one
    kernel.acked = 2000
    assert kernel_waits_s(connection, 100.4) == 0.0


def test_a_kernel_with_nothing_to_be_acknowledged_does_not_wait(kernel: Kernel, connection: Outgoing) -> None:
    kernel.acked = 1000
    for now in (1.0, 5.0):
        assert kernel_waits_s(connection, now) == 0.0
    kernel.unacked = 1  # only now
    assert kernel_waits_s(connection, 5.1) == pytest.approx(0.1)


def test_what_waits_for_the_receivers_room_is_not_the_paths_doing(kernel: Kernel, connection: Outgoing) -> None:
    kernel.acked, kernel.not_sent, kernel.peers_window = 1000, 90_000, 0
    assert [kernel_waits_s(connection, now) for now in (1.0, 2.0)] == [0.0, 0.0]
    kernel.peers_window = 60_000  # its link is down: nothing leaves though there is room
    assert kernel_waits_s(connection, 2.5) == pytest.approx(0.5)
