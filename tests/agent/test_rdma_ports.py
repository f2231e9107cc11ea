"""What the agent's record says of RDMA ports: growth since the last record."""

from __future__ import annotations

from eroica.agent.communication import Communication
from eroica.hardware.network import PortTotals
from eroica.model.communication import PortCount
from eroica.settings import Settings


def record(*totals: dict[str, PortTotals]) -> tuple[PortCount, ...]:
    """Ports of the record that is made after the last of these totals were read."""
    now, readings = [0.0], iter(totals)
    watched = Communication(Settings(communication=True), list, lambda: False, lambda: now[0], lambda: next(readings))
    ports: tuple[PortCount, ...] = ()
    for _ in totals[1:]:
        now[0] += 1.0
        told = watched.take()
        assert told is not None
        ports = told.ports
    return ports


def test_only_ports_that_did_something_are_told_and_only_counters_that_grew() -> None:
    before = {
        "mlx5_0/1": PortTotals(1000, 500, {"out_of_sequence": 3, "np_cnp_sent": 7}),
        "mlx5_1/1": PortTotals(9, 9, {}),
    }
    after = {
        "mlx5_0/1": PortTotals(5000, 700, {"out_of_sequence": 15, "np_cnp_sent": 7}),
        "mlx5_1/1": PortTotals(9, 9, {}),
    }
    one = PortCount(device="mlx5_0/1", sent_bytes=4000, received_bytes=200, trouble={"out_of_sequence": 12})
    assert record(before, after) == (one,)
    assert record(before, after, after) == ()


def test_counters_that_go_back_and_ports_that_come_say_nothing() -> None:
    before = {"mlx5_0/1": PortTotals(1000, 500, {"out_of_sequence": 3})}
    again = {"mlx5_0/1": PortTotals(10, 5, {"out_of_sequence": 0}), "mlx5_1/1": PortTotals(10, 5, {})}
    assert record(before, again) == ()


def test_a_host_without_rdma_is_not_looked_at_again() -> None:
    assert record({}, {"mlx5_0/1": PortTotals(1, 1, {})}) == ()
