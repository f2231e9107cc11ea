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


def sketch_cells(table: Table, key: Key) -> list[Key]:
    """Return the cells of a count-min sketch that a key adds to: (row, column) each."""
    return [(row, hash_values(key, row + 1) % table.entries) for row in range(SKETCH_ROWS)]


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
            if isinstance(step, Verdict):
                self.visit(at, took, key)
                return Outcome(step.kind, bytes(packet))
            if isinstance(step, Parse):
                took = has_header(packet, step.header)
            elif isinstance(step, Branch):
                took = bool(evaluate(step.condition, read))
            elif isinstance(step, Assign):
                local[step.local] = evaluate(step.value, read)
            elif isinstance(step, Rewrite):
                for name, value in [(name, evaluate(value, read)) for name, value in step.sets]:
                    write_field(packet, name, value)
            else:
                key, took = self._access(step, read, local)
            self.visit(at, took, key)
            at = step.then if took or not isinstance(step, Parse | Branch) else step.otherwise

    def _access(self, step: Access, read: Callable[[Expr], int], local: dict[str, int]) -> tuple[Key, bool]:
        table = self.program.tables[step.table]
        key = tuple(evaluate(one, read) & ((1 << bits) - 1) for one, (_, bits) in zip(step.key, table.key, strict=True))
        entries = self.tables[table.name]
        if table.kind == "sketch":
            return key, self._sketch(step, table, key, read, local)
        found = self._find(table, key)
        local[step.hit], local[step.full] = int(found is not None), 0
        entry = found
        if entry is None and step.create:
            if len(entries) >= table.entries and table.kind == "lru":
                entries.popitem(last=False)
            if len(entries) < table.entries:
                entry = entries[key] = {name: 0 for name, _ in table.value}
            else:
                local[step.full] = 1
        if table.kind == "lru" and entry is not None:
            entries.move_to_end(key)
        before = dict(entry) if entry is not None else {name: 0 for name, _ in table.value}

        def with_old(leaf: Expr) -> int:
            return before[leaf.name] if isinstance(leaf, Old) else read(leaf)

        for name, value in step.outs:
            local[name] = evaluate(value, with_old)
        if entry is not None:
            entry.update({name: evaluate(value, with_old) & table.mask(name) for name, value in step.sets})
            if step.delete:
                entries.pop(key, None)
            elif table.storage == "array":
                entries[key] = entry
        return key, found is not None

    def _find(self, table: Table, key: Key) -> Entry | None:
        entries = self.tables[table.name]
        if table.storage == "array":
            return entries.get(key, {name: 0 for name, _ in table.value}) if key[0] < table.entries else None
        if table.kind != "lpm":
            return entries.get(key)
        for length in range(32, -1, -1):
            prefix = key[0] >> (32 - length) << (32 - length)
            if (length, prefix) in entries:
                return entries[(length, prefix)]
        return None

    def _sketch(self, step: Access, table: Table, key: Key, read: Callable[[Expr], int], local: dict[str, int]) -> bool:
        entries = self.tables[table.name]
        cells = sketch_cells(table, key)
        estimate = min(entries.get(cell, {"count": 0})["count"] for cell in cells)

        def with_old(leaf: Expr) -> int:
            return estimate if isinstance(leaf, Old) else read(leaf)

        local[step.hit], local[step.full] = int(estimate > 0), 0
        for name, value in step.outs:
            local[name] = evaluate(value, with_old)
        for _, value in step.sets:
            amount = (evaluate(value, with_old) - estimate) & table.mask("count")
            for cell in cells:
                entry = entries.setdefault(cell, {"count": 0})
                entry["count"] = (entry["count"] + amount) & table.mask("count")
        return estimate > 0
