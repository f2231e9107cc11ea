"""The network functions that come with the package, each a program made from settings.

Device 0 is the inside or client side, device 1 the outside or server side. A function's arguments are its settings, in
JSON form; durations end in `_s`, addresses are dotted.
"""

from __future__ import annotations

import hashlib
import inspect
import ipaddress
import json
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from runpy import run_path
from typing import Any

from cora.errors import BadInput, CoraError
from cora.expressions import Expr, Local, Value, both, either, field, hash_of, maximum, now, old, select
from cora.packet import TCP_ACK, TCP_RST, TCP_SYN, address
from cora.program import Build, Program, Result, Table

NS = 1_000_000_000
SRC, DST, PROTO = field("ip.src"), field("ip.dst"), field("ip.proto")
SPORT, DPORT, PORT, LENGTH = field("l4.sport"), field("l4.dport"), field("pkt.port"), field("pkt.len")


def _count(b: Build, stats: Table, index: int, verdict: str = "") -> None:
    """Count the packet, and end its path if a verdict is given."""
    b.add(stats, [index], count=1)
    if verdict:
        b.end(verdict)


def _count_made(b: Build, stats: Table, made: Result, done: int, full: int) -> None:
    """Count the packet by whether there was room for its entry."""
    with b.when(made.full):
        _count(b, stats, full)
    with b.otherwise():
        _count(b, stats, done)


def firewall(
    *, flows: int = 65536, idle_s: int = 120, rules: Sequence[Any] = ({"source": "10.0.0.0/8", "allow": True},)
) -> Program:
    """Stateful firewall: inside hosts that the rules allow open flows; only packets of such flows come in."""
    b = Build("firewall")
    networks = [(ipaddress.IPv4Network(rule["source"]), int(rule["allow"])) for rule in rules]
    preset = [((one.prefixlen, int(one.network_address)), (allow,)) for one, allow in networks]
    prefixes = b.table(
        "rules", "lpm", key={"source": 32}, value={"allow": 8}, entries=max(64, len(preset)), preset=preset
    )
    key = {"inside": 32, "outside": 32, "inside_port": 16, "outside_port": 16, "protocol": 8}
    table = b.table("flows", "hash", key=key, value={"last_ns": 64, "packets": 32}, entries=flows)
    stats = b.table("stats", "counter", entries=4)  # allowed out, allowed in, denied, table full
    b.parse("ipv4", "ports")
    with b.when(PORT.eq(0)):
        rule = b.lookup(prefixes, [SRC], "allow")
        with b.when(rule["allow"].eq(0)):
            _count(b, stats, 2, "drop")
        flow = b.access(
            table, [SRC, DST, SPORT, DPORT, PROTO], {"last_ns": now(), "packets": old("packets") + 1}, create=True
        )
        with b.when(flow.full):
            _count(b, stats, 3, "drop")
        _count(b, stats, 0, "forward")
    fresh = now() - old("last_ns") < idle_s * NS
    sets = {"last_ns": select(fresh, now(), old("last_ns")), "packets": old("packets") + fresh}
    flow = b.access(table, [DST, SRC, DPORT, SPORT, PROTO], sets, {"fresh": fresh})
    with b.when(both(flow.hit, flow["fresh"])):
        _count(b, stats, 1, "forward")
    _count(b, stats, 2, "drop")
    return b.done()


def nat(
    *, public: str = "192.0.2.1", ports: Sequence[int] = (20000, 24095), idle_s: int = 120, sweep: int = 2
) -> Program:
    """NAT with a pool of ports: each flow from inside gets one; flows are refused when no port is free."""
    b = Build("nat", keeps_inside=True)
    first, last = ports
    count, outside = last - first + 1, address(public)
    key = {"inside": 32, "remote": 32, "inside_port": 16, "remote_port": 16, "protocol": 8}
    forward = b.table("outward", "hash", key=key, value={"last_ns": 64, "packets": 32, "port": 16}, entries=count)
    reverse = b.table(
        "inward",
        "hash",
        key={"remote": 32, "remote_port": 16, "port": 16, "protocol": 8},
        value={"last_ns": 64, "inside": 32, "packets": 32, "inside_port": 16},
        entries=count,
    )
    owners = b.table("owners", "array", value={**key, "busy": 8}, entries=count)
    free = [((i,), (last - i,)) for i in range(count)]
    pool = b.table("pool", "array", value={"port": 16}, entries=count, preset=free)
    heads = b.table("heads", "array", value={"free": 32, "sweep": 32}, entries=1, preset=[((0,), (count, 0))])
    stats = b.table("stats", "counter", entries=4)  # out, in, refused: no free port, unknown from outside
    used = {"last_ns": now(), "packets": old("packets") + 1}
    b.parse("ipv4", "ports")
    with b.when(PORT.eq(0)):
        flow = b.access(forward, [SRC, DST, SPORT, DPORT, PROTO], used, {"port": old("port")})
        b.assign("port", flow["port"])
        with b.when(flow.hit.eq(0)):
            for _ in range(sweep):
                _free_one(b, (forward, reverse, owners, pool, heads), count, first, idle_s * NS)
            head = b.access(heads, [0], {"free": select(old("free") > 0, old("free") - 1, 0)}, {"free": old("free")})
            with b.when(head["free"].eq(0)):
                _count(b, stats, 2, "drop")
            port = b.assign("port", b.lookup(pool, [head["free"] - 1], "port")["port"])
            flow_key = {"inside": SRC, "remote": DST, "inside_port": SPORT, "remote_port": DPORT, "protocol": PROTO}
            b.access(owners, [port - first], {**flow_key, "busy": 1})
            b.put(forward, list(flow_key.values()), last_ns=now(), packets=1, port=port)
            b.put(reverse, [DST, DPORT, port, PROTO], last_ns=now(), packets=0, inside=SRC, inside_port=SPORT)
        _count(b, stats, 0)
        b.rewrite(ip_src=outside, l4_sport=Local("port"))
        b.forward()
    with b.when(DST.ne(outside)):
        b.up()
    outs = {name: old(name) for name in ("inside", "inside_port")}
    flow = b.access(reverse, [SRC, SPORT, DPORT, PROTO], used, outs)
    with b.when(flow.hit):
        _count(b, stats, 1)
        b.rewrite(ip_dst=flow["inside"], l4_dport=flow["inside_port"])
        b.forward()
    _count(b, stats, 3, "drop")
    return b.done()


def _free_one(b: Build, tables: tuple[Table, ...], count: int, first: int, timeout: int) -> None:
    """Look at the next port in turn; free it, and both halves of its flow, if neither half was used for long."""
    forward, reverse, owners, pool, heads = tables
    turn = b.access(heads, [0], {"sweep": (old("sweep") + 1) % count}, {"at": old("sweep")})["at"]
    owner = b.lookup(owners, [turn], "inside", "remote", "inside_port", "remote_port", "protocol", "busy")
    with b.when(owner["busy"]):
        out_key = [owner[name] for name in ("inside", "remote", "inside_port", "remote_port", "protocol")]
        in_key = [owner["remote"], owner["remote_port"], turn + first, owner["protocol"]]
        out = b.lookup(forward, out_key, "last_ns")
        back = b.lookup(reverse, in_key, "last_ns")
        with b.when(now() - maximum(out["last_ns"], back["last_ns"]) > timeout):
            b.delete(forward, out_key)
            b.delete(reverse, in_key)
            b.access(owners, [turn], {"busy": 0})
            head = b.access(heads, [0], {"free": old("free") + 1}, {"free": old("free")})
            b.access(pool, [head["free"]], {"port": turn + first})


def consistent_ring(backends: Sequence[str], slots: int) -> list[int]:
    """Return the backend number of each slot: the highest random weight wins, so few slots change with the list."""

    def weight(backend: str, slot: int) -> bytes:
        return hashlib.blake2b(f"{backend}/{slot}".encode(), digest_size=8).digest()

    return [max(range(len(backends)), key=lambda i: weight(backends[i], slot)) for slot in range(slots)]


def balancer(
    *,
    vip: str = "10.0.0.100",
    backends: Sequence[str] = ("10.1.0.2", "10.1.0.3"),
    slots: int = 251,
    connections: int = 65536,
) -> Program:
    """L4 load balancer: consistent hashing spreads connections over backends; a connection keeps its backend."""
    b = Build("balancer")
    service, hosts = address(vip), [address(one) for one in backends]
    preset = [((i,), (hosts[n], n)) for i, n in enumerate(consistent_ring(backends, slots))]
    ring = b.table("ring", "array", value={"address": 32, "number": 8}, entries=slots, preset=preset)
    key = {"client": 32, "client_port": 16, "service_port": 16, "protocol": 8}
    value = {"last_ns": 64, "packets": 32, "address": 32, "number": 8}
    flows = b.table("connections", "hash", key=key, value=value, entries=connections)
    known = [((one,), (1,)) for one in hosts]
    ours = b.table("hosts", "hash", key={"address": 32}, value={"known": 8}, entries=max(16, len(known)), preset=known)
    served = b.table("served", "counter", value={"packets": 64, "bytes": 64}, entries=max(1, len(hosts)))
    stats = b.table("stats", "counter", entries=4)  # to backends, back, other traffic, table full
    b.parse("ipv4", "ports")
    with b.when(PORT.eq(0)):
        with b.when(DST.ne(service)):
            _count(b, stats, 2, "forward")
        sets = {"last_ns": now(), "packets": old("packets") + 1}
        outs = {name: old(name) for name in ("address", "number")}
        found = b.access(flows, [SRC, SPORT, DPORT, PROTO], sets, outs)
        target, number = b.assign("target", found["address"]), b.assign("number", found["number"])
        with b.when(found.hit.eq(0)):
            slot = b.lookup(ring, [hash_of(SRC, SPORT, DPORT, PROTO) % slots], "address", "number")
            b.assign("target", slot["address"])
            b.assign("number", slot["number"])
            made = b.put(flows, [SRC, SPORT, DPORT, PROTO], last_ns=now(), packets=1, address=target, number=number)
            with b.when(made.full):
                _count(b, stats, 3)
        b.add(served, [number], packets=1, bytes=LENGTH)
        _count(b, stats, 0)
        b.rewrite(ip_dst=target)
        b.forward()
    with b.when(b.lookup(ours, [SRC]).hit):
        _count(b, stats, 1)
        b.rewrite(ip_src=service)
        b.forward()
    _count(b, stats, 2, "forward")
    return b.done()


def bucket(*, rate_per_s: int = 1000, burst: int = 100, sources: int = 65536) -> Program:
    """Token bucket for each source; the bucket holds time, so that no fraction of a token is lost."""
    b = Build("bucket")
    cost = NS // rate_per_s
    table = b.table("sources", "bucket", key={"source": 32}, entries=sources)
    stats = b.table("stats", "counter", entries=3)  # passed, dropped, table full
    b.parse("ipv4")
    with b.when(PORT.ne(0)):
        b.forward()
    after = maximum(old("tat_ns"), now()) + cost
    conforms = after <= now() + cost * burst
    taken = b.access(table, [SRC], {"tat_ns": select(conforms, after, old("tat_ns"))}, {"ok": conforms}, create=True)
    with b.when(taken.full):
        _count(b, stats, 2, "drop")
    with b.when(taken["ok"]):
        _count(b, stats, 0, "forward")
    _count(b, stats, 1, "drop")
    return b.done()


def monitor(*, flows: int = 65536, columns: int = 4096) -> Program:
    """Flow monitor: packets and bytes of each flow exactly, packets of each source in a count-min sketch."""
    b = Build("monitor")
    key = {"source": 32, "target": 32, "source_port": 16, "target_port": 16, "protocol": 8}
    table = b.table("flows", "hash", key=key, value={"packets": 64, "bytes": 64}, entries=flows)
    sources = b.table("sources", "sketch", key={"source": 32}, entries=columns)
    stats = b.table("stats", "counter", value={"packets": 64, "bytes": 64}, entries=3)  # each way, not in the table
    b.parse("ipv4", "ports")
    b.add(stats, [PORT], packets=1, bytes=LENGTH)
    b.add(sources, [SRC], count=1)
    flow = b.add(table, [SRC, DST, SPORT, DPORT, PROTO], packets=1, bytes=LENGTH)
    with b.when(flow.full):
        b.add(stats, [2], packets=1, bytes=LENGTH)
    b.forward()
    return b.done()


def guard(*, sources: int = 65536, valid_s: int = 60, secret: int = 0x5EED) -> Program:
    """SYN cookie guard: admits TCP clients only after a cookie came back.

    The way in is reset and retry: the first SYN is answered by a SYN-ACK whose acknowledgement number is the cookie and
    wrong for the client. Its stack answers with a reset that carries the cookie, and repeats the SYN, which passes.
    """
    b = Build("guard")
    valid = b.table("valid", "hash", key={"source": 32}, value={"until_ns": 64}, entries=sources)
    stats = b.table("stats", "counter", entries=5)  # admitted packets, cookies sent, cookies back, dropped, table full
    flags, epoch = field("tcp.flags"), now() >> 36

    def cookie(at: Expr) -> Expr:
        return hash_of(secret, SRC, DST, (SPORT << 16) | DPORT, at)

    b.parse("ipv4")
    with b.when(PORT.ne(0)):
        b.forward()
    with b.parsed("tcp"):
        source = b.lookup(valid, [SRC], "until_ns")
        with b.when(source["until_ns"] > now()):
            _count(b, stats, 0, "forward")
        with b.when(flags & TCP_RST):
            right = either(field("tcp.seq").eq(cookie(epoch)), field("tcp.seq").eq(cookie(epoch - 1)))
            with b.when(right):
                made = b.put(valid, [SRC], until_ns=now() + valid_s * NS)
                _count(b, stats, 2)
                with b.when(made.full):
                    _count(b, stats, 4)
                b.drop()
            _count(b, stats, 3, "drop")
        with b.when((flags & (TCP_SYN | TCP_ACK)).eq(TCP_SYN)):
            _count(b, stats, 1)
            swapped = {"ip_src": DST, "ip_dst": SRC, "l4_sport": DPORT, "l4_dport": SPORT}
            number = hash_of(secret, field("tcp.seq"))
            b.rewrite(**swapped, tcp_flags=TCP_SYN | TCP_ACK, tcp_ack=cookie(epoch), tcp_seq=number)
            b.reply()
        _count(b, stats, 3, "drop")
    b.forward()
    return b.done()


KV_GET, KV_ANSWER, KV_SET = 1, 2, 3
KV_MAGIC = 0x4B56


def cache(*, entries: int = 65536, port: int = 7000) -> Program:
    """Key-value cache over UDP: answers reads, learns from the server's answers, forgets on writes.

    The protocol: magic 0x4B56, operation (1 get, 2 answer, 3 set), found, key and value of eight bytes each.
    """
    b = Build("cache")
    values = b.table("values", "hash", key={"key": 64}, value={"value": 64, "hits": 32}, entries=entries)
    stats = b.table("stats", "counter", entries=5)  # hits, misses, learned, forgotten, not learned: full
    key, op = field("kv.key"), field("kv.op")
    b.parse("ipv4")
    with b.parsed("kv"), b.when(field("kv.magic").eq(KV_MAGIC)):
        with b.when(both(PORT.eq(0), DPORT.eq(port))):
            with b.when(op.eq(KV_GET)):
                found = b.access(values, [key], {"hits": old("hits") + 1}, {"value": old("value")})
                with b.when(found.hit):
                    _count(b, stats, 0)
                    swapped = {"ip_src": DST, "ip_dst": SRC, "l4_sport": DPORT, "l4_dport": SPORT}
                    b.rewrite(**swapped, kv_op=KV_ANSWER, kv_found=1, kv_value=found["value"])
                    b.reply()
                _count(b, stats, 1, "forward")
            with b.when(op.eq(KV_SET)):
                b.delete(values, [key])
                _count(b, stats, 3)
            b.forward()
        with b.when(both(both(PORT.eq(1), SPORT.eq(port)), both(op.eq(KV_ANSWER), field("kv.found").eq(1)))):
            made = b.put(values, [key], value=field("kv.value"), hits=0)
            _count_made(b, stats, made, 2, 4)
    b.forward()
    return b.done()


def meter(
    *,
    jobs: Sequence[Any] = ({"name": "job-1", "ports": (29500, 29599)},),
    interval_ms: int = 100,
    intervals: int = 64,
    entries: int = 65536,
) -> Program:
    """Traffic meter for each training job, by port range: bytes between each pair of hosts in intervals."""
    b = Build("meter", export="matrix")
    ranges = [range(job["ports"][0], job["ports"][1] + 1) for job in jobs]
    ports = [((port,), (number,)) for number, one in enumerate(ranges, start=1) for port in one]
    known = b.table("jobs", "array", value={"job": 16}, entries=65536, preset=ports)
    key = {"source": 32, "target": 32, "job": 16, "slot": 16}
    value = {"interval": 64, "bytes": 64, "packets": 64}
    matrix = b.table("matrix", "hash", key=key, value=value, entries=entries)
    stats = b.table("stats", "counter", entries=3)  # counted, of no job, table full
    b.parse("ipv4", "ports")
    job = b.assign("job", b.lookup(known, [DPORT], "job")["job"])
    with b.when(job.eq(0)):
        b.assign("job", b.lookup(known, [SPORT], "job")["job"])
    with b.when(job.eq(0)):
        _count(b, stats, 1, "forward")
    at = b.assign("interval", now() // (interval_ms * 1_000_000))
    same = old("interval").eq(at)
    amounts: dict[str, Value] = {"bytes": LENGTH, "packets": 1}
    sets = {"interval": at, **{name: select(same, old(name), 0) + amount for name, amount in amounts.items()}}
    made = b.access(matrix, [SRC, DST, job, at % intervals], sets, create=True)
    _count_made(b, stats, made, 0, 2)
    b.forward()
    return b.done()


FUNCTIONS: dict[str, Callable[..., Program]] = {
    one.__name__: one for one in (firewall, nat, balancer, bucket, monitor, guard, cache, meter)
}


def defaults(name: str) -> dict[str, Any]:
    """Return the settings of a function with their defaults, in JSON form; those of users' files are not known."""
    known = inspect.signature(FUNCTIONS[name]).parameters if name in FUNCTIONS else {}
    return dict(json.loads(json.dumps({setting: one.default for setting, one in known.items()})))


def load(name: str, settings: Mapping[str, Any] | None = None) -> Program:
    """Make a shipped function by name, or the one that `make(settings)` of a Python file gives."""
    given = dict(settings or {})
    if name.endswith(".py"):
        return _load_file(name, given)
    if name not in FUNCTIONS:
        raise BadInput(f"unknown function {name!r}; use one of {', '.join(FUNCTIONS)}, or a Python file")
    known = defaults(name)
    for setting, value in given.items():
        if setting not in known:
            raise BadInput(f"{name} has no setting {setting}; it has {', '.join(known)}")
        usual = known[setting]
        if not isinstance(value, type(usual)) or (isinstance(value, int) and value < 1):
            wanted = "a whole number from 1 on" if isinstance(usual, int) else f"of the form {json.dumps(usual)}"
            raise BadInput(f"{name}: the setting {setting} is {json.dumps(value)}; it must be {wanted}")
    try:
        return FUNCTIONS[name](**given)
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise BadInput(f"the settings of {name} cannot be used: {error}") from error


def _load_file(name: str, settings: dict[str, Any]) -> Program:
    if not Path(name).exists():
        raise BadInput(f"{name}: no such file")
    try:
        made = run_path(name).get("make", lambda _: None)(settings)
    except CoraError:
        raise
    except Exception as error:  # the user's code may raise anything
        line = traceback.extract_tb(error.__traceback__)[-1]
        raise BadInput(f"{name}: {type(error).__name__}: {error} ({line.filename}:{line.lineno})") from error
    if not isinstance(made, Program):
        raise BadInput(f"{name}: a function make(settings) must return a Program; end it with done()")
    return made
