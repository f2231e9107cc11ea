"""Random programs, placements and packets for the comparison of both tiers with the interpreter."""

from __future__ import annotations

import random

from cora.expressions import Expr, Op, field, hash_of, maximum, minimum, now, old, select
from cora.packet import ICMP, TCP, UDP, make_frame
from cora.placement import SPLIT, Placement, options, why_illegal
from cora.program import Build, Program, Table

KEYS = {"ip.src": 32, "ip.dst": 32, "l4.sport": 16, "l4.dport": 16, "ip.proto": 8}
OPERATORS = ("+", "-", "*", "/", "%", "&", "|", "^", "<<", ">>", "<", "<=", ">", ">=", "==", "!=", "and", "or")
BUDGET = 6


class Maker:
    """Makes one random program."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.b = Build(f"random_{seed}")
        self.tables: list[Table] = []
        self.known: list[Expr] = []
        self.budget = BUDGET
        self.may_go_up = True

    def value(self, depth: int = 2, olds: tuple[str, ...] = ()) -> Expr:
        pick = self.random.random()
        if depth and pick < 0.5:
            one, other = self.value(depth - 1, olds), self.value(depth - 1, olds)
            if pick < 0.1:
                return self.random.choice([maximum, minimum])(one, other)
            if pick < 0.2:
                return select(one, other, self.value(depth - 1, olds))
            if pick < 0.25:
                return hash_of(one, other)
            return Op(self.random.choice(OPERATORS), (one, other))
        leaves: list[Expr] = [field(name) for name in (*KEYS, "pkt.len", "pkt.port", "ip.ttl")]
        leaves += [now(), *self.known[-6:], *[old(name) for name in olds]]
        return self.random.choice(leaves) if pick < 0.9 else field("ip.src") * 0 + self.random.randrange(1000)

    def make_tables(self) -> None:
        for number in range(self.random.randint(1, 4)):
            kind = self.random.choice(["array", "counter", "hash", "hash", "hash", "bucket", "sketch", "lpm"])
            names = self.random.sample(sorted(KEYS), self.random.randint(1, 3))
            key = {name.replace(".", "_"): KEYS[name] for name in names}
            value = {f"f{i}": self.random.choice([8, 16, 32, 64]) for i in range(self.random.randint(1, 3))}
            entries = self.random.choice([3, 8, 64])
            preset: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
            if kind == "lpm":
                preset = [
                    ((length, 10 << 24 & (0xFFFFFFFF << 32 - length) if length else 0), (length,) * len(value))
                    for length in self.random.sample([0, 8, 24, 32], self.random.randint(1, 3))
                ]
            if kind in {"array", "counter", "lpm"}:
                key = {"index": 32}
            if kind in {"sketch", "bucket"}:
                value = {}
            table = self.b.table(f"t{number}", kind, key=key, value=value or None, entries=entries, preset=preset)
            self.tables.append(table)

    def key(self, table: Table) -> list[Expr]:
        if table.storage == "array":
            return [self.value(1) % (table.entries + 1)]
        if table.kind == "lpm":
            return [field(self.random.choice(["ip.src", "ip.dst"]))]
        if self.random.random() < 0.8:
            return [field(name.replace("_", ".", 1)) for name, _ in table.key]
        return [self.value(1) % 5 for _ in table.key]

    def access(self) -> None:
        table = self.random.choice(self.tables)
        fields = [name for name, _ in table.value]
        key = self.key(table)
        self.may_go_up = False
        if table.kind in {"counter", "sketch"}:
            amounts = {name: self.value(1) % 1000 for name in fields}
            result = self.b.add(table, key, **amounts)
            if table.kind == "counter":
                return
            self.known += [result.hit]
            return
        outs = {name: old(name) for name in self.random.sample(fields, self.random.randint(0, len(fields)))}
        if table.kind == "lpm":
            result = self.b.access(table, key, None, outs)
        else:
            sets = {
                name: self.value(2, tuple(fields))
                for name in self.random.sample(fields, self.random.randint(0, len(fields)))
            }
            delete = table.storage == "hash" and self.random.random() < 0.15
            create = table.storage == "hash" and self.random.random() < 0.7
            result = self.b.access(table, key, sets, outs, create=create, delete=delete)
        self.known += [result.hit, result.full, *(result[name] for name in outs)]

    def block(self, depth: int) -> bool:
        """Append random statements; return True if every path ended."""
        for _ in range(self.random.randint(1, 4)):
            pick = self.random.random()
            self.budget -= 1
            if pick < 0.5:
                self.access()
            elif pick < 0.65:
                self.known.append(self.b.assign(f"x{len(self.b.steps)}", self.value()))
            elif pick < 0.8:
                name = self.random.choice(["ip_ttl", "ip_src", "ip_dst", "l4_sport", "l4_dport"])
                self.b.rewrite(**{name: self.value()})
            elif depth and self.budget > 0:
                before = list(self.known)
                with self.b.when(self.value()):
                    ended = self.block(depth - 1)
                self.known = list(before)
                if self.random.random() < 0.5:
                    with self.b.otherwise():
                        other = self.block(depth - 1)
                    self.known = before
                    if ended and other:
                        return True
        if depth < 2 and self.random.random() < 0.5:
            self.end()
            return True
        return False

    def end(self) -> None:
        kinds = ["forward", "forward", "reply", "drop"] + (["up"] if self.may_go_up else [])
        getattr(self.b, self.random.choice(kinds))()


def random_program(seed: int) -> Program:
    maker = Maker(seed)
    maker.make_tables()
    maker.b.parse("ipv4", "ports")
    if not maker.block(2):
        maker.end()
    return maker.b.done()


def random_placement(program: Program, seed: int) -> Placement:
    """Return a legal placement; every other one lets packets bounce."""
    chooser = random.Random(seed)
    for _ in range(200):
        homes = {table.name: chooser.choice(options(program, table)) for table in program.tables.values()}
        rooms = {name: chooser.choice([1, 2, 8]) for name, home in homes.items() if home == SPLIT}
        placement = Placement(homes, rooms, bounces=chooser.random() < 0.2)
        if not why_illegal(program, placement):
            return placement
    return Placement(dict.fromkeys(program.tables, "fast"))


def random_packets(seed: int, count: int) -> list[tuple[bytes, int, int]]:
    """Return (frame, port, time in ns): few addresses, so that keys repeat; some packets that are not supported."""
    chooser = random.Random(seed)
    packets, clock = [], 1000
    for _ in range(count):
        clock += chooser.choice([1, 1000, 10**9])
        frame = bytearray(
            make_frame(
                (10 << 24) + chooser.randrange(6),
                (10 << 24) + 256 * chooser.randrange(2) + chooser.randrange(4),
                chooser.randrange(1, 4),
                chooser.choice([80, 443]),
                protocol=chooser.choice([TCP, UDP, UDP, UDP, ICMP]),
                payload=bytes(chooser.randrange(30)),
                udp_checksum=chooser.random() < 0.8,
            )
        )
        odd = chooser.random()
        if odd < 0.02:
            frame[20] |= 0x20  # a fragment
        elif odd < 0.04:
            frame[14] = 0x46  # options
        elif odd < 0.05:
            frame = frame[: chooser.randrange(14, len(frame))]
        packets.append((bytes(frame), chooser.randrange(2), clock))
    return packets
