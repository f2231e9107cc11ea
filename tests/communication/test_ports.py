"""Trouble that RDMA ports count goes with the verdict that names their host."""

from __future__ import annotations

from eroica.collector.intake import clean_communication
from eroica.communication.conclusion import ports_in_words, slow_verdict
from eroica.communication.slow import Slow, Usual
from eroica.communication.stretch import Ledger, Stretch, stretch_of
from eroica.model.communication import HostCommunication, Place, PortCount
from eroica.model.verdict import Coverage
from eroica.model.window import Window


def stretch(**trouble: dict[str, int]) -> Stretch:
    """Two records of each host, each with half of its trouble."""
    ledger = Ledger()
    for at in (1.0, 2.0):
        for host in ("node0", "node1", "node2"):
            half = {name: more // 2 for name, more in trouble.get(host, {}).items()}
            ports = (PortCount(device="mlx5_0/1", sent_bytes=1000, trouble=half),)
            ledger.take(at, host, HostCommunication(interval_s=1.0, ports=ports), {})
    return stretch_of(ledger.between(0.0, 2.0))


def test_ports_of_the_named_host_are_told_with_their_sum_and_that_nobody_else_has_trouble() -> None:
    said = ports_in_words(stretch(node1={"out_of_sequence": 12, "np_cnp_sent": 3000}), ["node1"])
    assert said == (
        "RDMA port mlx5_0/1 of node1 counted in these 2 s: np_cnp_sent 3,000, out_of_sequence 12.",
        "No other host's port did.",
    )


def test_trouble_elsewhere_is_told_as_such_and_alone_says_nothing() -> None:
    both = stretch(node1={"out_of_sequence": 12}, node2={"np_cnp_sent": 2})
    assert ports_in_words(both, ["node1"])[-1] == "1 other hosts' ports did, too."
    assert ports_in_words(both, ["node0"]) == ()


def test_the_verdict_on_a_host_has_it_among_its_evidence() -> None:
    now = stretch(node1={"local_ack_timeout_err": 4})
    slow = Slow("communication-slow", (Place(kind="sending", hosts=("node1",)),), 0.4, 5.0)
    window = Window(window_id=1, purpose="communication", reason="", first_iteration=1, last_iteration=1)
    verdict = slow_verdict(
        "j", window, slow, now, Usual(iteration_s=0.1), Coverage(workers_expected=3, workers_reported=3)
    )
    assert any("local_ack_timeout_err 4" in sentence for sentence in verdict.findings[0].evidence)


def test_what_comes_in_is_bounded() -> None:
    port = PortCount(device="mlx\x1b[31m" + "x" * 500, sent_bytes=-5, trouble={f"c{at}": at for at in range(99)})
    told = clean_communication(HostCommunication(interval_s=1.0, ports=(port,) * 999))
    assert told is not None and len(told.ports) == 64
    one = told.ports[0]
    assert one.device.isprintable() and len(one.device) <= 80 and one.sent_bytes == 0 and len(one.trouble) == 16
