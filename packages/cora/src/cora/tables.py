"""Table entries of both tiers as Python values: encode, decode, set beforehand, read as one state."""

from __future__ import annotations

import ctypes
import socket
import struct
from collections.abc import Sequence
from typing import Any

from cora import bpf
from cora.build import Built
from cora.errors import BadInput
from cora.placement import BOTH, FAST, SLOW, SPLIT, SPLIT_HEADER_BYTES, header_bytes
from cora.program import Table

Key = tuple[int, ...]
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
