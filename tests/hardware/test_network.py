import math
from pathlib import Path

import pytest

from eroica.hardware import host
from eroica.hardware.store import read_samples
from eroica.hardware.writer import SampleWriter

HEAD = (
    "Inter-|   Receive                                                |  Transmit\n"
    " face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls\n"
)
LINE = "{:>6}: {} 13798 0 0 0 0 0 0 {} 1020 0 0 0 0 0 0\n"


def _net_dev(**interfaces: tuple[int, int]) -> bytes:
    return (HEAD + "".join(LINE.format(name, *totals) for name, totals in interfaces.items())).encode()


@pytest.mark.parametrize(("text", "speed"), [("10000\n", 1.25e9), ("-1\n", math.nan), ("", math.nan), ("0", math.nan)])
def test_a_speed_is_bytes_per_second_or_unknown(text: str, speed: float) -> None:
    assert host.parse_speed(text) == pytest.approx(speed, nan_ok=True)


@pytest.mark.parametrize(
    ("text", "rate"),
    [("100 Gb/sec (4X EDR)\n", 12.5e9), ("2.5 Gb/sec (1X)", 312.5e6), ("x Gb/sec", math.nan), ("", math.nan)],
)
def test_an_rdma_rate_is_bytes_per_second_or_unknown(text: str, rate: float) -> None:
    assert host.parse_rdma_rate(text) == pytest.approx(rate, nan_ok=True)


def test_traffic_is_a_fraction_of_a_stated_speed_and_bytes_per_second_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter([1_000_000_000, 1_500_000_000])
    monkeypatch.setattr(host.time, "monotonic_ns", lambda: next(now))
    (tmp_path / "speed" / "eth0").mkdir(parents=True)
    (tmp_path / "speed" / "eth0" / "speed").write_text("1000\n")
    file = tmp_path / "dev"
    file.write_bytes(_net_dev(lo=(100, 100), eth0=(10, 0), idle=(0, 0)))
    writer = SampleWriter(tmp_path / "out")
    probe = host.InterfaceProbe(writer, file, tmp_path / "speed")
    probe.read()
    file.write_bytes(_net_dev(lo=(600, 600), eth0=(31_250_010, 0), idle=(0, 0)))
    probe.read()
    probe.close()
    writer.close()
    samples = read_samples(tmp_path / "out")
    eth0, loopback = samples.find("net", "eth0/rx"), samples.find("net", "lo/tx")
    assert eth0 is not None
    assert loopback is not None
    assert (eth0.value.tolist(), eth0.channel.unit, eth0.channel.capacity) == ([0.5], "fraction", 125e6)
    assert (loopback.value.tolist(), loopback.channel.unit) == ([1000.0], "B/s")
    assert math.isnan(loopback.channel.capacity)
    assert samples.find("net", "idle/rx") is None
