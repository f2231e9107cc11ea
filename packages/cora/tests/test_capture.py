from __future__ import annotations

import struct
from pathlib import Path

import pytest
from click.testing import CliRunner

from cora.cli import main
from cora.errors import BadInput
from cora.functions import load
from cora.packet import make_frame
from cora.profile import make_profile, zipf_exponent
from cora.traffic import Shape, capture, make_traffic, write_pcap

TIMES_NS = [1_700_000_000_000_000_000 + i * 2_000_000 for i in range(50)]
FRAME = make_frame(0x0A000001, 2, 3, 4)


def pcap(magic: int, unit_ns: int) -> bytes:
    head = struct.pack("<IHHIIII", magic, 2, 4, 0, 0, 65535, 1)
    parts = [struct.pack("<IIII", t // 10**9, t % 10**9 // unit_ns, len(FRAME), len(FRAME)) + FRAME for t in TIMES_NS]
    return head + b"".join(parts)


def pcapng(resolution: int, per_s: int) -> bytes:
    def block(kind: int, body: bytes) -> bytes:
        size = 12 + len(body)
        return struct.pack("<II", kind, size) + body + struct.pack("<I", size)

    out = block(0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1))
    out += block(1, struct.pack("<HHI", 1, 0, 65535) + struct.pack("<HHBxxxHH", 9, 1, resolution, 0, 0))
    for t in TIMES_NS:
        ticks = t * per_s // 10**9
        data = FRAME.ljust(-(-len(FRAME) // 4) * 4, b"\0")
        out += block(6, struct.pack("<IIIII", 0, ticks >> 32, ticks & 0xFFFFFFFF, len(FRAME), len(FRAME)) + data)
    return out


def test_one_trace_written_four_ways_has_equal_rates(tmp_path: Path) -> None:
    rates = []
    for number, data in enumerate([pcap(0xA1B2C3D4, 1000), pcap(0xA1B23C4D, 1), pcapng(6, 10**6), pcapng(9, 10**9)]):
        path = tmp_path / str(number)
        path.write_bytes(data)
        packets = capture(path, "10.0.0.0/8")
        assert [packet.port for packet in packets] == [0] * 50
        rates.append(make_profile(load("monitor"), packets, warm=0).rate_per_s)
    assert rates == pytest.approx([50 / 0.098] * 4, rel=1e-4)


def test_a_capture_of_another_link_type_or_no_capture_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "raw.pcap"
    path.write_bytes(struct.pack("<IHHIIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 101))
    with pytest.raises(BadInput, match="link type 101"):
        capture(path, "10.0.0.0/8")
    path.write_bytes(b"hello, this is no capture file at all")
    with pytest.raises(BadInput, match="no pcap or pcapng file"):
        capture(path, "10.0.0.0/8")


def test_the_skew_of_made_traffic_is_found_again() -> None:
    profile = make_profile(load("bucket"), make_traffic("bucket", Shape(keys=2000, skew=1.1, packets=20000, back=0)))
    use = profile.uses[0]
    assert use.skew == pytest.approx(1.1, abs=0.1)
    assert use.working_set < use.keys
    assert zipf_exponent(__import__("numpy").ones(50)) < 0.01


def test_the_commands_up_to_explain_work_without_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_pcap(tmp_path / "trace.pcap", make_traffic("balancer", Shape(packets=3000)))
    runner = CliRunner()
    for command in (
        ["functions"],
        ["profile", "balancer", "trace.pcap", "--inside", "172.16.0.0/12"],
        ["plan", "balancer", "--profile", "profile.json", "--memory", "100000", "--page", "page.html"],
        ["explain", "plan.json", "--memory", "100000"],
        ["explain", "plan.json", "--json"],
    ):
        result = runner.invoke(main, command)
        assert result.exit_code == 0, (command, result.output)
    explained = runner.invoke(main, ["explain", "plan.json", "--memory", "100000"]).output
    assert "Bottleneck: " in explained
    assert "Next change: " in explained
    assert "<svg" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_errors_are_one_line_that_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.json").write_text('{"pots": [1, 2]}', encoding="utf-8")
    (tmp_path / "zero.json").write_text('{"rate_per_s": 0}', encoding="utf-8")
    (tmp_path / "prefix.json").write_text('{"rules": [{"source": "10.0.0.0/99", "allow": true}]}', encoding="utf-8")
    (tmp_path / "boom.py").write_text("def make(settings):\n    return 1 / 0\n", encoding="utf-8")
    (tmp_path / "plan.json").write_text(
        '{"function": "bucket", "settings": {}, "homes": {"sources": "split", "stats": "both"}, '
        '"fast_entries": {"sources": 0}}',
        encoding="utf-8",
    )
    for command, words in (
        (["plan", "boom.py"], "boom.py: ZeroDivisionError: division by zero (boom.py:2)"),
        (["plan", "bucket", "--settings", "zero.json"], "rate_per_s is 0; it must be a whole number from 1 on"),
        (["plan", "firewall", "--settings", "prefix.json"], "'99' is not a valid netmask"),
        (["build", "plan.json"], "a split table needs room for one entry or more"),
        (["profile", "nat", "bad.json"], "no pcap or pcapng file"),
        (["plan", "nat", "--costs", "bad.json"], "run `cora calibrate`"),
        (["watch", "bad.json"], "is no state file"),
        (["calibrate", "--out", "nowhere/costs.json"], "there is no directory nowhere"),
        (["plan", "nta"], "unknown function 'nta'; use one of firewall"),
        (["plan", "nat", "--settings", "bad.json"], "nat has no setting pots"),
        (["plan", "nat", "--home", "pool=both"], "table pool can be"),
        (["explain", "missing.json"], "missing.json: No such file"),
        (["profile", "nat"], "give a capture file, or --live DEVICE"),
    ):
        result = CliRunner().invoke(main, command)
        assert result.exit_code == 1
        assert words in result.output
        assert "Traceback" not in result.output
