"""Table entries of both tiers as Python values: encode, decode, set beforehand, read as one state."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import Any

from cora import bpf
from cora.build import Built
from cora.errors import BadInput
from cora.placement import BOTH, FAST, SLOW, SPLIT, SPLIT_HEADER_BYTES, layout, locked
from cora.program import SKETCH_ROWS, Table

Key = tuple[int, ...]
State = dict[str, dict[Key, dict[str, int]]]


def key_bytes(table: Table, key: Sequence[int]) -> bytes:
    """Return a key as the fast tier's map has it."""
    if table.kind == "lpm":
        return struct.pack("=I", key[0]) + struct.pack("!I", key[1])
    if table.kind == "sketch":
        return struct.pack("=I", key[0] * table.entries + key[1])
    offsets, total = layout(table.key)
    return _pack(offsets, total, [name for name, _ in table.key], key)


def _pack(offsets: dict[str, tuple[int, int]], total: int, names: Sequence[str], values: Sequence[int]) -> bytes:
    out = bytearray(total)
    for name, value in zip(names, values, strict=True):
        at, size = offsets[name]
        out[at : at + size] = (value % (1 << 8 * size)).to_bytes(size, "little")
    return bytes(out)


def _words(key: bytes) -> bytes:
    """Return a key padded to eight bytes, as the slow tier compares keys."""
    return key.ljust(-(-len(key) // 8) * 8, b"\0")


def read_key(table: Table, data: bytes) -> Key:
    """Return the key that bytes of a map stand for."""
    if table.kind == "lpm":
        return (struct.unpack("=I", data[:4])[0], struct.unpack("!I", data[4:8])[0])
    if table.kind == "sketch":
        return divmod(int.from_bytes(data[:4], "little"), table.entries)
    offsets, _ = layout(table.key)
    return tuple(int.from_bytes(data[at : at + size], "little") for at, size in offsets.values())


def value_bytes(table: Table, values: Sequence[int]) -> bytes:
    """Return an entry's fields as both tiers store them, without a header."""
    offsets, total = layout(table.value, 8)
    return _pack(offsets, total, [name for name, _ in table.value], values)


def read_value(table: Table, data: bytes) -> dict[str, int]:
    """Return an entry's fields by name."""
    offsets, _ = layout(table.value, 8)
    return {name: int.from_bytes(data[at : at + size], "little") for name, (at, size) in offsets.items()}


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
                self._preset(table, home, key_bytes(table, key), value_bytes(table, values))

    def header(self, table: Table) -> int:
        """Return the bytes in front of an entry's fields in the fast tier."""
        home = self.placement.homes[table.name]
        return SPLIT_HEADER_BYTES if home == SPLIT or locked(self.program, table, home) else 0

    def _preset(self, table: Table, home: str, key: bytes, value: bytes) -> None:
        copies = {FAST: "f", SLOW: "s", SPLIT: "s", BOTH: "s" if self.program.written(table.name) else "fs"}[home]
        if "f" in copies and not self.fast.maps[f"t_{table.name}"].set(key, bytes(self.header(table)) + value):
            raise BadInput(f"table {table.name} cannot hold the entries that the settings give; make it larger")
        if "s" in copies:
            self.slow.cora_set(self.numbers[table.name], _words(key), value)

    def slow_items(self, table: Table) -> list[tuple[int, bytes, bytes]]:
        """Return (uses, key, value) of a table's entries in the slow tier."""
        number = self.numbers[table.name]
        key_size = layout(table.key)[1] if table.kind != "lpm" else 8
        value_at = 8 + -(-key_size // 8) * 8
        stride = value_at + layout(table.value, 8)[1]
        room = self.slow.cora_used(number)
        out = ctypes.create_string_buffer(max(1, room * stride))
        count = self.slow.cora_dump(number, out, room)
        raw = out.raw[: count * stride]
        rows = [raw[at : at + stride] for at in range(0, len(raw), stride)]
        return [(struct.unpack_from("=Q", row)[0], row[8 : 8 + key_size], row[value_at:]) for row in rows]

    def fast_items(self, table: Table) -> list[tuple[int, bytes, bytes]]:
        """Return (uses, key, value) of a table's entries in the fast tier; uses are counted for split tables."""
        header = self.header(table)
        items = []
        for key, value in self.fast.maps[f"t_{table.name}"].items():
            frozen, hits = struct.unpack_from("=4xII", value) if header else (0, 0)
            if not frozen:
                items.append((hits, key, value[header:]))
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
        parts: list[tuple[bytes, bytes]] = []
        if home != SLOW:
            parts += [(key, value) for _, key, value in self.fast_items(table)]
        if home != FAST and not (home == BOTH and not self.program.written(table.name)):
            parts += self._slow_parts(table)
        for key, value in parts:
            entry, name = read_value(table, value), read_key(table, key)
            if name in found:
                entry = {one: (entry[one] + found[name][one]) & table.mask(one) for one in entry}
            found[name] = entry
        if table.storage in {"array", "sketch"}:
            found = {key: entry for key, entry in found.items() if any(entry.values())}
        return found

    def _slow_parts(self, table: Table) -> list[tuple[bytes, bytes]]:
        if table.storage not in {"array", "sketch"}:
            return [(key, value) for _, key, value in self.slow_items(table)]
        size = layout(table.value, 8)[1]
        entries = table.entries * (SKETCH_ROWS if table.kind == "sketch" else 1)
        memory = ctypes.string_at(self.slow.cora_array(self.numbers[table.name]), entries * size)
        chunks = [(i, memory[i * size : (i + 1) * size]) for i in range(entries)]
        return [(struct.pack("=I", i), chunk) for i, chunk in chunks if any(chunk)]
