"""The reference interpreter: one packet at a time over tables that are Python dictionaries."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from cora.expressions import Expr, FieldOf, Local, Now, Old, evaluate, hash_values
from cora.packet import has_header, read_field, supported, write_field
from cora.program import SKETCH_ROWS, Access, Assign, Branch, Parse, Program, Rewrite, Table, Verdict

Key = tuple[int, ...]
Entry = dict[str, int]


class Outcome(NamedTuple):
    """A packet's verdict and its bytes afterwards."""

    verdict: str
    frame: bytes


@dataclass
class Interpreter:
    """Runs a program packet by packet.

    Attributes:
        program: The program.
        tables: Entries by table and key. An array holds the entries that are not zero, a sketch its cells.
        visit: Called for each step of a packet with its number, "went on to `then`" or "there was an entry", and
            the key of a table operation, else ().
    """

    program: Program
    tables: dict[str, OrderedDict[Key, Entry]] = field(default_factory=dict)
    visit: Callable[[int, bool, Key], None] = lambda *_: None

    def __post_init__(self) -> None:
        for table in self.program.tables.values():
            entries: OrderedDict[Key, Entry] = OrderedDict()
            for key, values in table.preset:
                entries[key] = {name: value for (name, _), value in zip(table.value, values, strict=True)}
            self.tables[table.name] = entries

    def run(self, frame: bytes, port: int, now_ns: int) -> Outcome:
        """Process one frame that came in by device `port` at a time; unsupported ones go up untouched."""
        if not supported(frame):
            return Outcome("up", frame)
        packet, local, at = bytearray(frame), dict[str, int](), 0

        def read(leaf: Expr) -> int:
            if isinstance(leaf, FieldOf):
                return read_field(packet, leaf.name, port)
            if isinstance(leaf, Local):
                return local[leaf.name]
            assert isinstance(leaf, Now)
            return now_ns

        while True:
            step, took, key = self.program.steps[at], True, Key()
            if isinstance(step, Parse):
                took = has_header(packet, step.header)
            elif isinstance(step, Branch):
                took = bool(evaluate(step.condition, read))
            elif isinstance(step, Assign):
                local[step.local] = evaluate(step.value, read)
            elif isinstance(step, Rewrite):
                for name, value in [(name, evaluate(value, read)) for name, value in step.sets]:
                    write_field(packet, name, value)
            elif isinstance(step, Access):
                key, took = self._access(step, read, local)
            self.visit(at, took, key)
            if isinstance(step, Verdict):
                return Outcome(step.kind, bytes(packet))
            at = step.then if took or not isinstance(step, Parse | Branch) else step.otherwise

    def _access(self, step: Access, read: Callable[[Expr], int], local: dict[str, int]) -> tuple[Key, bool]:
        """Carry a table operation out; return its key, and True if there was an entry."""
        table = self.program.tables[step.table]
        key = tuple(evaluate(one, read) & ((1 << bits) - 1) for one, (_, bits) in zip(step.key, table.key, strict=True))
        entries, zero = self.tables[table.name], {name: 0 for name, _ in table.value}
        rows = range(SKETCH_ROWS) if table.kind == "sketch" else ()
        cells = [(row, hash_values(key, row + 1) % table.entries) for row in rows]  # a sketch's, to which the key adds
        if cells:
            before = {"count": min(entries.get(cell, zero)["count"] for cell in cells)}
            found, entry = (before if before["count"] else None), None
        else:
            found = entry = self._find(table, key)
        local[step.hit], local[step.full] = int(found is not None), 0
        if entry is None and step.create and not cells:
            entry = self._make(table, key)
            local[step.full] = int(entry is None)
        if table.kind == "lru" and entry is not None:
            entries.move_to_end(key)
        if not cells:
            before = dict(entry or zero)

        def with_old(leaf: Expr) -> int:
            return before[leaf.name] if isinstance(leaf, Old) else read(leaf)

        for name, value in step.outs:
            local[name] = evaluate(value, with_old)
        sets = {name: evaluate(value, with_old) for name, value in step.sets}
        for cell in cells if sets else ():
            count = entries.get(cell, zero)["count"] + sets["count"] - before["count"]
            entries[cell] = {"count": count & table.mask("count")}
        if entry is not None:
            entry.update({name: value & table.mask(name) for name, value in sets.items()})
            if step.delete:
                entries.pop(key, None)
            elif table.storage == "array":
                entries[key] = entry
        return key, found is not None

    def _make(self, table: Table, key: Key) -> Entry | None:
        """Return a new entry of zeros, or None if the table is full."""
        entries = self.tables[table.name]
        if len(entries) >= table.entries and table.kind == "lru":
            entries.popitem(last=False)
        return None if len(entries) >= table.entries else entries.setdefault(key, {name: 0 for name, _ in table.value})

    def _find(self, table: Table, key: Key) -> Entry | None:
        entries = self.tables[table.name]
        if table.storage == "array":
            return entries.get(key, {name: 0 for name, _ in table.value}) if key[0] < table.entries else None
        if table.kind != "lpm":
            return entries.get(key)
        prefixes = ((length, key[0] >> (32 - length) << (32 - length)) for length in range(32, -1, -1))
        return next((entries[prefix] for prefix in prefixes if prefix in entries), None)
