"""Both tiers of a plan, loaded: their tables as Python values, and packets through them without a device.

Without a device the kernel runs the fast tier by BPF_PROG_TEST_RUN, and this process runs the slow tier. This is how
plans are compared with the interpreter and how coefficients are measured: with the same compiled programs, maps and
hand-over as on devices, one packet at a time or a trace in a loop.
"""

from __future__ import annotations

import ctypes
import socket
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cora import bpf
from cora.build import Built, compile_tiers, load_fast, load_slow
from cora.errors import BadInput, BuildError
from cora.interpret import Key, Outcome
from cora.placement import BOTH, FAST, SLOW, SPLIT, SPLIT_HEADER_BYTES, Placement, header_bytes
from cora.program import VERDICTS, Program, Table

State = dict[str, dict[Key, dict[str, int]]]


def key_bytes(table: Table, key: Sequence[int]) -> bytes:
    """Return a key as the fast tier's map has it."""
    if table.kind == "lpm":
        key = (key[0], socket.htonl(key[1]))
    elif table.kind == "sketch":
        key = (key[0] * table.entries + key[1],)
    return table.key_layout.pack(*key)


def read_key(table: Table, data: bytes) -> Key:
    """Return the key that bytes of a map stand for."""
    key = table.key_layout.unpack(data)
    if table.kind == "lpm":
        return (key[0], socket.ntohl(key[1]))
    return divmod(key[0], table.entries) if table.kind == "sketch" else key


def _words(key: bytes) -> bytes:
    """Return a key padded to eight bytes, as the slow tier compares keys."""
    return key + bytes(-len(key) % 8)


class Tables:
    """The tables of a loaded plan: presets at the start, one state over both tiers, moves of entries."""

    def __init__(self, built: Built, fast: bpf.Object, slow: Any) -> None:
        self.built, self.fast, self.slow = built, fast, slow
        self.program, self.placement = built.program, built.placement
        self.numbers = {name: number for number, name in enumerate(self.program.tables)}
        for table in self.program.tables.values():
            home = self.placement.homes[table.name]
            if home == SPLIT:
                map_fd = fast.maps[f"t_{table.name}"].fd
                slow.cora_connect(self.numbers[table.name], map_fd, fast.programs[f"freeze_{table.name}"])
            for key, values in table.preset:
                self._preset(table, home, key_bytes(table, key), table.value_layout.pack(*values))

    def _preset(self, table: Table, home: str, key: bytes, value: bytes) -> None:
        header = bytes(header_bytes(self.program, table, home))
        fast = home == FAST or (home == BOTH and not self.program.written(table.name))
        if fast and not self.fast.maps[f"t_{table.name}"].set(key, header + value):
            raise BadInput(f"table {table.name} cannot hold the entries that the settings give; make it larger")
        if home != FAST:
            self.slow.cora_set(self.numbers[table.name], _words(key), value)

    def slow_items(self, table: Table) -> list[tuple[int, bytes, bytes]]:
        """Return (uses, key, value) of a table's entries in the slow tier."""
        number, size = self.numbers[table.name], table.key_layout.size
        row = struct.Struct(f"=Q{size}s{-size % 8}x{table.value_layout.size}s")
        room = self.slow.cora_used(number)
        out = ctypes.create_string_buffer(max(1, room * row.size))
        count = self.slow.cora_dump(number, out, room)
        return list(row.iter_unpack(out.raw[: count * row.size]))

    def fast_items(self, table: Table) -> list[tuple[int, bytes, bytes]]:
        """Return (uses, key, value) of a table's entries in the fast tier; uses are counted for split tables."""
        header, items = header_bytes(self.program, table, self.placement.homes[table.name]), []
        for key, value in self.fast.maps[f"t_{table.name}"].items():
            frozen, hits = struct.unpack_from("=4xII", value) if header else (0, 0)
            if not frozen:
                items.append((hits, key, value[header : header + table.value_layout.size]))
        return items

    def raise_key(self, table: str, key: bytes) -> int:
        """Move an entry up: 0 done, 1 there is none, -1 no room. The caller lets no packet be processed meanwhile."""
        return int(self.slow.cora_raise(self.numbers[table], _words(key), SPLIT_HEADER_BYTES))

    def lower_key(self, table: str, key: bytes) -> int:
        """Move an entry down: 0 done, 1 there was none."""
        return int(self.slow.cora_lower(self.numbers[table], _words(key)))

    def state(self) -> State:
        """Return all entries of both tiers; arrays and sketches without entries that are zero."""
        return {table.name: self._state(table) for table in self.program.tables.values()}

    def _state(self, table: Table) -> dict[Key, dict[str, int]]:
        home = self.placement.homes[table.name]
        found: dict[Key, dict[str, int]] = {}
        parts = [(key, value) for _, key, value in self.fast_items(table)] if home != SLOW else []
        if home != FAST and not (home == BOTH and not self.program.written(table.name)):
            parts += self._slow_parts(table)
        for key, value in parts:
            name, fields = read_key(table, key), table.value_layout.unpack(value)
            before = found.get(name, {})
            found[name] = {
                one: (field + before.get(one, 0)) & table.mask(one)
                for (one, _), field in zip(table.value, fields, strict=True)
            }
        if table.storage in {"array", "sketch"}:
            found = {key: entry for key, entry in found.items() if any(entry.values())}
        return found

    def _slow_parts(self, table: Table) -> list[tuple[bytes, bytes]]:
        if table.storage not in {"array", "sketch"}:
            return [(key, value) for _, key, value in self.slow_items(table)]
        size = table.value_layout.size
        memory = ctypes.string_at(self.slow.cora_array(self.numbers[table.name]), table.cells * size)
        chunks = enumerate(struct.iter_unpack(f"{size}s", memory))
        return [(struct.pack("=I", i), chunk) for i, (chunk,) in chunks if any(chunk)]


CROSSED, FAILED = 4, 5
TRACE_BYTES = 96
REPLAYED_FRAME_BYTES = 128


class Offline:
    """A plan, compiled and loaded for single packets and traces.

    Example:
        >>> with Offline(program, placement, directory) as tiers:  # doctest: +SKIP
        ...     tiers.run(frame, port=0, now_ns=1)
    """

    def __init__(
        self, program: Program, placement: Placement, directory: Path, trace: int = 0, runtime: Path | None = None
    ) -> None:
        self.built: Built = compile_tiers(program, placement, directory, runtime)
        self.fast = load_fast(self.built, offline=True, trace=trace)
        self.slow = load_slow(self.built)
        self.shared, self.trace = self.fast.maps["globals"].memory(), self.fast.maps["cora_trace"].memory()
        self.slow.cora_wire(None, -1, self.fast.programs.get("cora_bounce", -1))
        self.tables = Tables(self.built, self.fast, self.slow)
        self.crossed = 0

    def __enter__(self) -> Offline:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free both tiers."""
        self.slow.cora_close()
        self.shared.close()
        self.trace.close()
        self.fast.close()

    def reset(self) -> None:
        """Put every table back to its first state."""
        for one in self.fast.maps.values():
            if not one.name.startswith("t_"):
                continue
            for key, value in one.items():
                if not one.delete(key):  # entries of arrays stay, and become zero
                    one.set(key, bytes(len(value)))
        self.slow.cora_close()
        if self.slow.cora_open():
            raise BuildError(f"{self.built.program.name}: no memory for the tables of the slow tier")
        self.tables = Tables(self.built, self.fast, self.slow)

    def _enter(self, frame: bytes, port: int, now_ns: int) -> tuple[int, bytes]:
        self.shared[:8] = struct.pack("=Q", now_ns)
        return bpf.test_run(self.fast.programs[f"cora_test{port}"], frame)[:2]

    def run(self, frame: bytes, port: int, now_ns: int) -> Outcome:
        """Process one packet through both tiers."""
        verdict, out = self._enter(frame, port, now_ns)
        if verdict == CROSSED:
            self.crossed += 1
            buffer = ctypes.create_string_buffer(out, len(out))
            length = ctypes.c_uint32(len(out))
            verdict = self.slow.cora_finish(ctypes.addressof(buffer), ctypes.addressof(length))
            out = buffer.raw[self.built.hand_bytes : length.value]
        if verdict >= FAILED:
            raise BuildError(f"{self.built.program.name}: a tier failed on a packet of {len(frame)} bytes")
        return Outcome(VERDICTS[verdict], out)

    def hand_over(self, frame: bytes, port: int, now_ns: int = 1) -> bytes:
        """Return the packet as the fast tier hands it over; raise BuildError if it does not cross."""
        verdict, out = self._enter(frame, port, now_ns)
        if verdict != CROSSED:
            raise BuildError(f"{self.built.program.name}: the packet does not cross under this placement")
        return out

    def load_trace(self, packets: Sequence[tuple[bytes, int]], start: int = 0) -> None:
        """Store (frame, port) pairs for `replay_fast` from a place on; frames are cut or padded to 96 bytes."""
        rows = [frame[:TRACE_BYTES].ljust(TRACE_BYTES, b"\0") + struct.pack("=Q", port) for frame, port in packets]
        data, at = b"".join(rows), start * (TRACE_BYTES + 8)
        self.trace[at : at + len(data)] = data

    def replay_fast(self, packets: int, start: int = 0) -> float:
        """Return ns per packet of the fast tier over stored packets, in the kernel's own loop."""
        self.shared[:32] = struct.pack("=QQQQ", 0, start, start, start + packets)
        verdict, _, mean = bpf.test_run(self.fast.programs["cora_replay"], bytes(REPLAYED_FRAME_BYTES), packets)
        if verdict >= FAILED:
            raise BuildError(f"{self.built.program.name}: the fast tier failed on the trace")
        return float(mean)

    def slow_trace(self, frames: Sequence[bytes]) -> bytes:
        """Return packets as `replay_slow` takes them, all handed over with the header of the first."""
        header = self.hand_over(frames[0], 0)[: self.built.hand_bytes]
        return b"".join(header + frame[:REPLAYED_FRAME_BYTES].ljust(REPLAYED_FRAME_BYTES, b"\0") for frame in frames)

    def replay_slow(self, trace: bytes) -> float:
        """Return ns per packet of the slow tier over a trace."""
        stride = self.built.hand_bytes + REPLAYED_FRAME_BYTES
        count = len(trace) // stride
        return float(self.slow.cora_replay(trace, stride, count)) / count
