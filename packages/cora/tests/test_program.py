from __future__ import annotations

import dpkt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cora.engine import csv_of
from cora.errors import BadProgram
from cora.expressions import Const, Op, evaluate, field, now, old
from cora.functions import FUNCTIONS, load
from cora.interpret import Interpreter
from cora.packet import (
    ICMP,
    TCP,
    TCP_ACK,
    TCP_RST,
    TCP_SYN,
    UDP,
    address,
    make_frame,
    read_field,
    supported,
    write_field,
)
from cora.placement import Placement, options, why_illegal
from cora.program import Build


def checksums_right(frame: bytes | bytearray) -> bool:
    """Return True if another library computes the same checksums."""
    packet = dpkt.ip.IP(bytes(frame[14:]))
    before = bytes(packet)
    packet.sum = packet.data.sum = 0
    return bytes(packet) == before


def test_a_field_must_be_parsed_before_it_is_used_on_every_path() -> None:
    b = Build("early")
    b.parse("ipv4")
    with b.when(field("ip.proto").eq(TCP)):
        b.parse("tcp")
    b.rewrite(l4_sport=1)
    b.forward()
    with pytest.raises(BadProgram, match=r"step 3 \(rewrite l4.sport\) uses l4.sport before parse\('ports'\)"):
        b.done()


def test_a_local_must_be_set_on_every_path() -> None:
    b = Build("unset")
    b.parse("ipv4")
    with b.when(field("pkt.port")):
        x = b.assign("x", 1)
    with b.when(x):
        b.drop()
    b.forward()
    with pytest.raises(BadProgram, match="reads x, which is not set on every path"):
        b.done()


def test_a_path_without_a_verdict_is_refused() -> None:
    b = Build("open")
    b.parse("ipv4")
    with pytest.raises(BadProgram, match="ends without a verdict"):
        b.done()


def test_a_counter_cannot_be_read() -> None:
    b = Build("read")
    counter = b.table("hits", "counter", entries=1)
    b.parse("ipv4")
    b.lookup(counter, [0], "count")
    b.forward()
    with pytest.raises(BadProgram, match="steps may only add to it"):
        b.done()


def test_an_output_cannot_be_named_like_a_result() -> None:
    b = Build("names")
    table = b.table("t", "hash", key={"source": 32}, value={"hit": 8}, entries=4)
    b.parse("ipv4")
    with pytest.raises(BadProgram, match="cannot be named hit or full"):
        b.lookup(table, [field("ip.src")], "hit")


def test_an_entry_set_beforehand_must_fit_its_fields() -> None:
    b = Build("wide")
    table = b.table("t", "array", value={"n": 8}, entries=4, preset=[((0,), (256,))])
    b.parse("ipv4")
    b.lookup(table, [0], "n")
    b.forward()
    with pytest.raises(BadProgram, match="an entry set beforehand that does not fit"):
        b.done()


def test_rows_of_csv_have_keys_before_values_and_only_ipv4_keys_dotted() -> None:
    b = Build("rows")
    flow = {"source": 32, "port": 16}
    same_names = b.table("t", "hash", key=flow, value={"port": 16, "target": 64}, entries=4)
    wide = b.table("w", "hash", key={"source": 64}, entries=4)
    routes = b.table("r", "lpm", key={"target": 32}, value={"port": 8}, entries=4)
    entries = {(0x0A000001, 80): {"port": 443, "target": 1 << 40}}
    assert csv_of(same_names, entries) == f"source,port,port,target\n10.0.0.1,80,443,{1 << 40}\n"
    assert csv_of(wide, {(1 << 40,): {"count": 2}}) == f"source,count\n{1 << 40},2\n"
    assert csv_of(routes, {(8, 10 << 24): {"port": 1}}) == f"prefix_bits,address,port\n8,{10 << 24},1\n"


def test_division_by_zero_gives_zero() -> None:
    assert evaluate(Op("/", (Const(7), Const(0))), lambda _: 0) == 0
    assert evaluate(Op("%", (Const(7), Const(0))), lambda _: 0) == 0


@settings(deadline=None)  # a busy machine takes its time
@given(
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**32 - 1),
    st.integers(0, 65535),
    st.sampled_from([TCP, UDP]),
    st.binary(max_size=40),
)
def test_checksums_follow_each_rewritten_field(
    source: int, target: int, port: int, protocol: int, payload: bytes
) -> None:
    frame = bytearray(make_frame(1, 2, 3, 4, protocol=protocol, payload=payload))
    for name, value in (("ip.src", source), ("ip.dst", target), ("l4.sport", port), ("l4.dport", port), ("ip.ttl", 7)):
        write_field(frame, name, value)
        assert read_field(frame, name, 0) == value
        assert checksums_right(frame)


def test_a_udp_checksum_of_zero_stays_zero_and_a_computed_zero_leaves_as_ffff() -> None:
    frame = bytearray(make_frame(1, 2, 3, 4, udp_checksum=False))
    write_field(frame, "ip.src", 99)
    assert frame[40:42] == b"\0\0"
    for port in range(65536):
        frame = bytearray(make_frame(1, 2, 3, 4))
        write_field(frame, "l4.sport", port)
        assert frame[40:42] != b"\0\0"
        if frame[40:42] == b"\xff\xff":
            return
    pytest.fail("no port gives a sum of zero")


def test_fragments_options_and_vlan_are_not_supported() -> None:
    good = make_frame(1, 2, 3, 4)
    assert supported(good)
    for offset, value in ((20, 0x20), (21, 1), (14, 0x46), (12, 0x81)):
        frame = bytearray(good)
        frame[offset] = value
        assert not supported(bytes(frame))
        for name in FUNCTIONS:
            assert Interpreter(load(name)).run(bytes(frame), 0, 1) == ("up", bytes(frame))


def test_nat_gives_each_flow_a_port_and_refuses_the_flow_after_the_last() -> None:
    nat = Interpreter(load("nat", {"ports": [20000, 20063]}))
    ports = set()
    for i in range(64):
        verdict, frame = nat.run(make_frame(address("10.0.0.2"), address("8.8.8.8"), 1000 + i, 53), 0, 10**12 + i)
        assert verdict == "forward"
        assert read_field(frame, "ip.src", 0) == address("192.0.2.1")
        assert checksums_right(frame)
        ports.add(read_field(frame, "l4.sport", 0))
    assert ports == set(range(20000, 20064))
    assert nat.run(make_frame(address("10.0.0.2"), address("8.8.8.8"), 2000, 53), 0, 10**12 + 99).verdict == "drop"
    assert nat.tables["stats"][(2,)]["count"] == 1


def test_an_icmp_error_about_a_translated_flow_goes_up_whole() -> None:
    """A router's "fragmentation needed" holds the translated header; translating half of it would mislead the host."""
    nat = Interpreter(load("nat"))
    out = nat.run(make_frame(address("10.0.0.2"), address("8.8.8.8"), 1000, 53), 0, 10**12).frame
    error = make_frame(address("198.51.100.1"), address("192.0.2.1"), 3, 4, protocol=ICMP, payload=out[14:42])
    assert nat.run(error, 1, 10**12 + 1) == ("up", error)


def test_both_halves_of_a_live_nat_flow_outlive_a_full_turn_of_the_pool() -> None:
    nat = Interpreter(load("nat", {"ports": [20000, 20007], "idle_s": 10, "sweep": 8}))
    inside, remote = address("10.0.0.2"), address("8.8.8.8")
    clock = 10**12
    port = read_field(nat.run(make_frame(inside, remote, 5000, 53), 0, clock).frame, "l4.sport", 0)
    refused = 0
    for i in range(200):
        clock += 2 * 10**9
        refused += nat.run(make_frame(inside, remote, 6000 + i, 53), 0, clock).verdict == "drop"
        back = nat.run(make_frame(remote, address("192.0.2.1"), 53, port), 1, clock)
        assert read_field(back.frame, "l4.dport", 1) == 5000
        out = nat.run(make_frame(inside, remote, 5000, 53), 0, clock)
        assert read_field(out.frame, "l4.sport", 0) == port
    assert refused == 0
    assert len(nat.tables["outward"]) == len(nat.tables["inward"]) <= 8


def test_a_bucket_passes_burst_plus_rate_times_time() -> None:
    rate, burst = 700, 20
    bucket = Interpreter(load("bucket", {"rate_per_s": rate, "burst": burst}))
    frame = make_frame(address("10.0.0.2"), 2, 3, 4)
    passed = sum(bucket.run(frame, 0, 10**12 + i * 10**9 // (2 * rate)).verdict == "forward" for i in range(8 * rate))
    assert passed == pytest.approx(burst + 4 * rate, rel=0.03)


def test_the_guard_admits_after_the_reset_that_carries_the_cookie() -> None:
    guard = Interpreter(load("guard"))
    client, server = address("10.0.0.2"), address("10.1.0.2")
    syn = make_frame(client, server, 4000, 80, protocol=TCP, flags=TCP_SYN, seq=77)
    answer = guard.run(syn, 0, 10**12)
    assert answer.verdict == "reply"
    assert read_field(answer.frame, "tcp.flags", 0) == TCP_SYN | TCP_ACK
    cookie = read_field(answer.frame, "tcp.ack", 0)
    assert cookie != 78
    wrong = make_frame(client, server, 4000, 80, protocol=TCP, flags=TCP_RST, seq=cookie + 1)
    assert guard.run(wrong, 0, 10**12 + 1).verdict == "drop"
    assert guard.run(syn, 0, 10**12 + 2).verdict == "reply"
    right = make_frame(client, server, 4000, 80, protocol=TCP, flags=TCP_RST, seq=cookie)
    assert guard.run(right, 0, 10**12 + 3).verdict == "drop"
    assert guard.run(syn, 0, 10**12 + 4).verdict == "forward"


def test_tables_shared_by_flows_cannot_be_fast_behind_a_split() -> None:
    """Splitting a NAT by traffic would give each tier a pool of its own; the check refuses it."""
    nat = load("nat")
    homes = {table.name: "slow" for table in nat.tables.values()} | {"outward": "split", "pool": "fast"}
    assert "needs the fast tier after packets have crossed" in why_illegal(nat, Placement(homes, {"outward": 8}))


def test_lru_tables_lose_entries_and_say_so() -> None:
    b = Build("lossy")
    table = b.table("recent", "lru", key={"source": 32}, value={"n": 64}, entries=4)
    b.parse("ipv4")
    b.access(
        table,
        [field("ip.src")],
        {
            "n": old("n") + 1,
        },
        create=True,
    )
    b.assign("t", now())
    b.forward()
    program = b.done()
    assert program.tables["recent"].consistency == "loss allowed"
    assert "split" not in options(program, program.tables["recent"])
