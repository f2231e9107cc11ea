"""Running a plan on two devices: load, attach, process, watch, adapt, and leave nothing behind.

One process does it all. BPF links, maps and sockets are descriptors of this process, so the kernel removes them when it
ends, for whatever reason. The packet loop is C (`cora_poll`); between its calls this process moves keys, reads
counters and writes files. So no packet is processed by the slow tier while an entry moves.
"""

from __future__ import annotations

import ctypes
import errno
import ipaddress
import json
import os
import re
import signal
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cora import bpf
from cora.build import compile_tiers, load_fast, load_slow
from cora.controller import TICK_S, Controller, Replan, SplitTable, Use
from cora.errors import DeviceError
from cora.files import write
from cora.namespaces import Device, advice
from cora.neighbours import PORTS_OFFSET, NextHops
from cora.offline import Tables
from cora.placement import SPLIT, Placement
from cora.program import Program, Table

_BY_VERDICT = ("packets", "forwarded", "replied", "dropped", "up")
FAST_COUNTS = (*_BY_VERDICT, "unsupported", "crossed", "no_next_hop", "guarded", "errors", "bytes")
SLOW_COUNTS = (*_BY_VERDICT, "errors", "no_next_hop", "bounced", "bad_checksums", "checksums_checked", "unsent")
#: Entries up to which the state file holds all tables each second; larger tables are written at the end.
LIVE_STATE_ENTRIES = 2000
CHECKSUM_WARNING = (
    "warning: packets come in with unfinished TCP checksums; run `ethtool -K PEER tx off` on the sender's device\n"
)
#: Slow-tier ns that an operation saves in the fast tier, for the controller.
SAVED_NS = 1500.0
#: Promotions wait so long after demotions, so that no program still holds an entry that is used again.
REUSE_PAUSE_S = 0.02


@dataclass
class Options:
    """Settings of a run.

    Attributes:
        state: File for counters and tables, or None.
        adapt: False leaves the keys where they are.
        seconds: Stop after this time; 0 runs until a signal.
        resolve: Addresses whose next hops are looked for before the first packet.
        report: Called once a second with the counters.
    """

    state: Path | None = None
    adapt: bool = True
    seconds: float = 0.0
    resolve: tuple[str, ...] = ()
    report: Callable[[dict[str, Any]], None] = lambda _: None


class Engine:
    """A plan on two devices; see the module."""

    def __init__(
        self, program: Program, placement: Placement, devices: tuple[Device, Device], options: Options
    ) -> None:
        self.program, self.placement, self.devices, self.options = program, placement, devices, options
        self.links: list[int] = []
        self.pending: list[tuple[str, bytes]] = []
        self.pending_at, self.stopping, self.warned, self.read_counts = 0.0, False, False, (0, 0)
        self.replans = self.moved = self.lost_moves = self.slowest_move_ns = self.crossed = 0
        with tempfile.TemporaryDirectory(prefix="cora-") as scratch:
            built = compile_tiers(program, placement, Path(scratch))
            self.fast, self.slow = load_fast(built), load_slow(built)
        self.shared = self.fast.maps["globals"].memory()
        self.tables = Tables(built, self.fast, self.slow)
        self.splits = [table for table in program.tables.values() if placement.homes[table.name] == SPLIT]
        known = {t.name: SplitTable(placement.fast_entries[t.name], SAVED_NS) for t in self.splits}
        self.controller = Controller(known)
        self.before: dict[str, dict[bytes, int]] = {table.name: {} for table in self.splits}
        self.began_at, self.read_at = time.monotonic(), dict[str, float]()
        self._connect()

    def _connect(self) -> None:
        window = (ctypes.c_char * len(self.shared)).from_buffer(self.shared)
        bounce = self.fast.programs.get("cora_bounce", -1)
        self.slow.cora_wire(ctypes.addressof(window) + PORTS_OFFSET, self.fast.maps["cora_neighbours"].fd, bounce)
        for port, device in enumerate(self.devices):
            for queue in range(device.queues):
                fd = self.slow.cora_listen(port, device.ifindex, queue)
                if queue and fd == -errno.EINVAL:
                    break  # a queue that the device could have, and has not
                if fd < 0:
                    raise DeviceError(f"{device.name}: no AF_XDP socket on queue {queue}: {os.strerror(-fd)}")
                self.fast.maps["cora_sockets"].set(struct.pack("=I", port * 64 + queue), struct.pack("=I", fd))
            self.fast.maps["cora_devices"].set(struct.pack("=I", port), struct.pack("=I", device.ifindex))
            if failed := self.slow.cora_send_by(port, device.ifindex):
                raise DeviceError(f"{device.name}: no packet socket: {os.strerror(-failed)}")
        self.hops = NextHops(self.devices, self.shared, self.fast.maps["cora_neighbours"], self.program.keeps_inside)
        self.hops.resolve(self.options.resolve)

    def __enter__(self) -> Engine:
        for port, device in enumerate(self.devices):
            self.links.append(bpf.attach(self.fast.programs[f"cora_in{port}"], device.ifindex, device.name))
        return self

    def __exit__(self, *_: object) -> None:
        for link in self.links:
            os.close(link)
        self.links = []
        self.slow.cora_poll(20, 1)  # packets that were on their way
        if self.options.state:
            self.write_state(everything=True)

    def stop(self, *_: object) -> None:
        """Leave the loop soon; a signal handler."""
        self.stopping = True

    def run(self) -> None:
        """Process packets until stopped."""
        begin = tick = second = time.monotonic()
        while not self.stopping:
            self.slow.cora_poll(5 if self.pending else 20, 0)
            now = time.monotonic()
            self.hops.follow(self.slow)
            if self.pending and now >= self.pending_at:
                self._promote()
            if now - tick >= TICK_S:
                if self.options.adapt and self.splits:
                    self._adapt(now, now - tick)
                tick = now
            if now - second >= 1.0:
                second = now
                if self.hops.changed():
                    self.hops.refresh()
                if self.options.state:
                    self.write_state()
                self.options.report(counts := self.counters())
                if counts["slow"]["bad_checksums"] > 8 and not self.warned:
                    self.warned = True
                    sys.stderr.write(CHECKSUM_WARNING)
            if self.options.seconds and now - begin >= self.options.seconds:
                return

    def _adapt(self, now: float, seconds: float) -> None:
        crossed, done = self._fast_counts()["crossed"], self._slow_counts()["packets"]
        came, self.crossed = crossed - self.crossed, crossed
        if not self.controller.due(now, came / seconds):
            return
        # Rates are of packets that came: a slow tier that lags behind or loses packets must not change its keys' ranks.
        came, done = crossed - self.read_counts[0], done - self.read_counts[1]
        since, self.read_counts = self._since("counts"), (self.read_counts[0] + came, self.read_counts[1] + done)
        for table in self.splits:
            self.controller.observe_slow(table.name, self._slow_uses(table), since * max(1, done) / max(1, came))
            self.controller.observe_fast(table.name, self._fast_uses(table), self._since(table.name))
        if replan := self.controller.decide(now):
            self.carry_out(replan)

    def _since(self, what: str) -> float:
        """Return the seconds since the last call for the same thing; a busy machine may stop between two readings."""
        before, self.read_at[what] = self.read_at.get(what, self.began_at), time.monotonic()
        return max(1e-3, self.read_at[what] - before)

    def _slow_uses(self, table: Table) -> list[Use]:
        size = table.key_layout.size
        row = struct.Struct(f"=Q{size}s{-size % 8}x")
        out = ctypes.create_string_buffer(2048 * row.size)
        count = self.slow.cora_heavy(self.tables.numbers[table.name], out)
        return [(key, float(uses)) for uses, key in row.iter_unpack(out.raw[: count * row.size])]

    def _fast_uses(self, table: Table) -> list[Use]:
        now = {key: hits for hits, key, _ in self.tables.fast_items(table)}
        before, self.before[table.name] = self.before[table.name], now
        return [(key, float((hits - before.get(key, 0)) & 0xFFFFFFFF)) for key, hits in now.items()]

    def carry_out(self, replan: Replan) -> None:
        """Move keys: down at once, up a little later."""
        self.replans += 1
        for name, keys in replan.down.items():
            for key in keys:
                self._move(self.tables.lower_key, name, key)
        self.pending = [(name, key) for name, keys in replan.up.items() for key in keys]
        self.pending_at = time.monotonic() + (REUSE_PAUSE_S if any(replan.down.values()) else 0.0)

    def _promote(self) -> None:
        """Move the pending keys up, in parts, so that no packet waits long."""
        self.slow.cora_poll(2, 1)  # packets of these keys that wait already
        for name, key in self.pending[:256]:
            self._move(self.tables.raise_key, name, key)
        self.pending = self.pending[256:]

    def _move(self, move: Callable[[str, bytes], int], name: str, key: bytes) -> None:
        begin, done = time.perf_counter_ns(), move(name, key)
        self.slowest_move_ns = max(self.slowest_move_ns, time.perf_counter_ns() - begin)
        self.moved += done == 0
        self.lost_moves += done < 0

    def _fast_counts(self) -> dict[str, int]:
        raw = self.fast.maps["cora_counts"].get(bytes(4)) or b""
        cpus = struct.iter_unpack(f"={len(FAST_COUNTS)}Q", raw)
        return dict(zip(FAST_COUNTS, map(sum, zip(*cpus, strict=True)), strict=True))

    def _slow_counts(self) -> dict[str, int]:
        own = (ctypes.c_uint64 * len(SLOW_COUNTS)).in_dll(self.slow, "cora_slow_counts")
        return dict(zip(SLOW_COUNTS, own, strict=True))

    def counters(self) -> dict[str, Any]:
        """Return the counters of both tiers; those of the fast tier are summed over CPUs that count on meanwhile."""
        found: dict[str, Any] = {"fast": self._fast_counts(), "slow": self._slow_counts()}
        found["pulled_keys"] = sum(self.slow.cora_pulls(self.tables.numbers[table.name]) for table in self.splits)
        found |= {name: getattr(self, name) for name in ("replans", "moved", "lost_moves", "slowest_move_ns")}
        return found

    def write_state(self, everything: bool = False) -> None:
        """Write the state file; see docs/commands.md."""
        assert self.options.state is not None
        everything = everything or sum(one.entries for one in self.program.tables.values()) <= LIVE_STATE_ENTRIES
        data: dict[str, Any] = {
            "function": self.program.name,
            "time_unix_s": round(time.time(), 3),
            "plan": self.placement.label(),
            "counters": self.counters(),
        }
        state = self.tables.state() if everything or self.program.export else {}
        if self.program.export:
            text = csv_of(self.program.tables[self.program.export], state[self.program.export])
            write(self.options.state.with_suffix(".csv"), text)
        if everything:
            tables = self.program.tables
            data["tables"] = {
                name: [{"key": _named(tables[name], key), "value": value} for key, value in entries.items()]
                for name, entries in state.items()
            }
        write(self.options.state, data)


def csv_of(table: Table, entries: dict[tuple[int, ...], dict[str, int]]) -> str:
    """Return a table as CSV: one row an entry, its key before its values, and keys that are IPv4 addresses dotted."""
    dotted = {name for name, bits in table.key if name in {"source", "target"} and bits == 32}
    rows: list[list[object]] = [[*_key_names(table), *(name for name, _ in table.value)]]
    for key, value in sorted(entries.items()):
        named = _named(table, key).items()
        cells = [ipaddress.IPv4Address(part) if name in dotted else part for name, part in named]
        rows.append([*cells, *value.values()])
    return "".join(",".join(map(str, row)) + "\n" for row in rows)


def _key_names(table: Table) -> list[str]:
    usual = [name for name, _ in table.key]
    return {"lpm": ["prefix_bits", "address"], "sketch": ["row", "column"]}.get(table.kind, usual)


def _named(table: Table, key: tuple[int, ...]) -> dict[str, int]:
    return dict(zip(_key_names(table), key, strict=True))


def addresses_in(settings: dict[str, Any]) -> tuple[str, ...]:
    """Return the IPv4 addresses that settings name, whose next hops a run will need."""
    return tuple(dict.fromkeys(re.findall(r"\"(\d+\.\d+\.\d+\.\d+)\"", json.dumps(settings))))


def run(program: Program, placement: Placement, devices: tuple[Device, Device], options: Options) -> None:
    """Run a plan until SIGINT, SIGTERM or the time is over; prints `ready` when packets are processed."""
    engine = Engine(program, placement, devices, options)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, engine.stop)
    with engine:
        for device in engine.devices:
            if not device.made_here:
                sys.stderr.write(f"note: {advice(device)}\n")
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        engine.run()
