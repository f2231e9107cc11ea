"""The program of a network function: a DAG of steps over named tables, a builder for it, and its checks.

A step is one of five records: `Parse`, `Access` (one atomic table operation), `Assign`, `Branch`, `Rewrite`, or it is
a `Verdict` and ends. Steps stand in topological order: a step's successors have larger numbers. Loops are unrolled
by the builder, so that every program ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partialmethod
from struct import Struct
from typing import Any

from cora.errors import BadProgram
from cora.expressions import Expr, FieldOf, Local, Now, Old, Op, Value, leaves, lift
from cora.packet import FIELDS, HEADERS, INCLUDED

KINDS = ("array", "counter", "hash", "bucket", "lru", "lpm", "sketch")
VERDICTS = ("forward", "reply", "drop", "up")
#: Codes of the struct module by width in bits.
_CODES = {8: "B", 16: "H", 32: "I", 64: "Q"}
WIDTHS = tuple(_CODES)
MAX_STEPS = 400
SKETCH_ROWS = 4


def c_layout(fields: Iterable[tuple[str, int]], align: int = 8) -> Struct:
    """Return the layout that C gives to fields.

    Args:
        fields: Names and widths in bits.
        align: The total is a multiple of it and of the widest field, in bits.
    """
    widths = [bits for _, bits in fields]
    return Struct("@" + "".join(_CODES[bits] for bits in widths) + "0" + _CODES[max(align, *widths)])


@dataclass(frozen=True)
class Table:
    """A named table.

    Attributes:
        name: A C identifier.
        kind: One of `KINDS`. A counter is an array that steps only add to. A bucket is a hash with a theoretical
            arrival time. A sketch is a count-min sketch of `SKETCH_ROWS` rows.
        key: Names and widths in bits. Arrays have one key field, LPM tables one of 32 bits, sketches any.
        value: Names and widths in bits.
        entries: Most entries; a sketch's counters a row.
        preset: Entries before the first packet: ((key values), (entry values)); an LPM key is (prefix length, address).
    """

    name: str
    kind: str
    key: tuple[tuple[str, int], ...]
    value: tuple[tuple[str, int], ...]
    entries: int
    preset: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = ()

    @property
    def consistency(self) -> str:
        """What may happen to entries: "exact", or "loss allowed" for LRU tables."""
        return "loss allowed" if self.kind == "lru" else "exact"

    @property
    def storage(self) -> str:
        """The kind of map that stores it: array, hash, lru, lpm or sketch."""
        return {"counter": "array", "bucket": "hash"}.get(self.kind, self.kind)

    @property
    def cells(self) -> int:
        """Return the number of values that are stored: all rows of a sketch, else the entries."""
        return self.entries * (SKETCH_ROWS if self.kind == "sketch" else 1)

    @cached_property
    def key_layout(self) -> Struct:
        """Layout of a key in a map: that of C; an LPM key has length and address, a sketch's key is a cell's number."""
        return {"lpm": Struct("=II"), "sketch": Struct("=I")}.get(self.kind) or c_layout(self.key)

    @cached_property
    def value_layout(self) -> Struct:
        """How both tiers store an entry's fields: as C lays them out, with a size that is a multiple of eight bytes."""
        return c_layout(self.value, 64)

    def mask(self, name: str) -> int:
        """Return the mask of a value field's width."""
        return (1 << dict(self.value)[name]) - 1


@dataclass(frozen=True)
class Parse:
    """Go to `then` if the packet has the header in full, else to `otherwise`."""

    header: str
    then: int = -1
    otherwise: int = -1


@dataclass(frozen=True)
class Access:
    """Find one entry; create, change or delete it; keep values of it in locals. The whole step is atomic.

    Attributes:
        table: Name of the table.
        key: One expression a key field.
        sets: New values of entry fields; `old` in them means the value before the step.
        outs: Locals and their values, which may use `old`; without an entry `old` is 0.
        create: Insert an entry of zeros first where there is none.
        delete: Remove the entry after the step.
        hit: Local that becomes 1 where there was an entry, else 0.
        full: Local that becomes 1 where no entry could be created, else 0.
        then: Next step.
    """

    table: str
    key: tuple[Expr, ...]
    sets: tuple[tuple[str, Expr], ...]
    outs: tuple[tuple[str, Expr], ...]
    create: bool
    delete: bool
    hit: str
    full: str
    then: int = -1


@dataclass(frozen=True)
class Assign:
    """Set a local."""

    local: str
    value: Expr
    then: int = -1


@dataclass(frozen=True)
class Branch:
    """Go to `then` if the condition is not 0, else to `otherwise`."""

    condition: Expr
    then: int = -1
    otherwise: int = -1


@dataclass(frozen=True)
class Rewrite:
    """Store packet fields, all values being read first; checksums follow."""

    sets: tuple[tuple[str, Expr], ...]
    then: int = -1


@dataclass(frozen=True)
class Verdict:
    """End: forward to the other device, reply by the same one, drop, or hand up to the device's own stack."""

    kind: str


Step = Parse | Access | Assign | Branch | Rewrite | Verdict


def successors(step: Step) -> tuple[int, ...]:
    """Return the numbers of the steps that may follow."""
    if isinstance(step, Verdict):
        return ()
    if isinstance(step, Parse | Branch):
        return (step.then, step.otherwise)
    return (step.then,)


def expressions(step: Step) -> Iterator[Expr]:
    """Yield the expressions of a step."""
    if isinstance(step, Access):
        yield from step.key
        yield from (value for _, value in (*step.sets, *step.outs))
    elif isinstance(step, Assign):
        yield step.value
    elif isinstance(step, Branch):
        yield step.condition
    elif isinstance(step, Rewrite):
        yield from (value for _, value in step.sets)


def leaves_of(step: Step) -> Iterator[Expr]:
    """Yield what the expressions of a step read."""
    return (leaf for expr in expressions(step) for leaf in leaves(expr))


def assigned(step: Step) -> tuple[str, ...]:
    """Return the locals that a step sets."""
    if isinstance(step, Access):
        return (*(name for name, _ in step.outs), step.hit, step.full)
    return (step.local,) if isinstance(step, Assign) else ()


@dataclass(frozen=True)
class Program:
    """A checked network function.

    Attributes:
        name: Its name.
        tables: Tables by name.
        steps: Steps in topological order; the first is the entry.
        keeps_inside: True if unsupported IPv4 packets from device 0 must not be routed by the stack (a NAT).
        export: Table whose rows the runtime also writes as CSV, or "".
    """

    name: str
    tables: dict[str, Table]
    steps: tuple[Step, ...]
    keeps_inside: bool = False
    export: str = ""

    @property
    def uses_time(self) -> bool:
        """True if any expression reads the time."""
        return any(isinstance(leaf, Now) for step in self.steps for leaf in leaves_of(step))

    def accesses(self, table: str) -> list[Access]:
        """Return the steps that access a table."""
        return [step for step in self.steps if isinstance(step, Access) and step.table == table]

    def written(self, table: str) -> bool:
        """Return True if a step creates, changes or deletes entries of the table."""
        return any(step.sets or step.create or step.delete for step in self.accesses(table))

    def add_only(self, table: str) -> bool:
        """Return True if every step only adds to fields of the table and reads nothing of it, nor whether it hit."""
        read = {leaf.name for step in self.steps for leaf in leaves_of(step) if isinstance(leaf, Local)}
        steps = self.accesses(table)
        return bool(steps) and all(
            step.sets and not step.outs and not step.delete and not {step.hit, step.full} & read and adds_all(step)
            for step in steps
        )

    @cached_property
    def live(self) -> list[tuple[str, ...]]:
        """The locals that a packet must carry when it is handed over at each step."""
        live: list[set[str]] = [set() for _ in self.steps]
        for at, step in reversed(list(enumerate(self.steps))):
            after = {name for target in successors(step) for name in live[target]}
            used = {leaf.name for leaf in leaves_of(step) if isinstance(leaf, Local)}
            live[at] = (after - set(assigned(step))) | used
        return [tuple(sorted(names)) for names in live]

    def describe(self, at: int) -> str:
        """Return one line about a step, for messages and the plan page."""
        step = self.steps[at]
        if isinstance(step, Parse):
            return f"parse {step.header}"
        if isinstance(step, Access):
            verb = "delete" if step.delete else "create" if step.create else "update" if step.sets else "lookup"
            return f"{verb} {step.table}"
        if isinstance(step, Rewrite):
            return "rewrite " + ", ".join(name for name, _ in step.sets)
        if isinstance(step, Verdict):
            return step.kind
        return f"set {step.local}" if isinstance(step, Assign) else "branch"


def adds(name: str, value: Expr) -> bool:
    """Return True for `old(name) + x` where x reads no entry field."""
    if not isinstance(value, Op) or value.name != "+":
        return False
    one, other = value.args
    return isinstance(one, Old) and one.name == name and not reads_entry(other)


def adds_all(step: Access) -> bool:
    """Return True if every change of an access adds to its field."""
    return all(adds(name, value) for name, value in step.sets)


def reads_entry(value: Expr) -> bool:
    """Return True if an expression reads the entry before the step."""
    return any(isinstance(leaf, Old) for leaf in leaves(value))


class Result:
    """Outcome of an access: expressions for "there was an entry", "no room", and its outputs by name."""

    def __init__(self, names: dict[str, Expr]) -> None:
        self._names, self.hit, self.full = names, names["hit"], names["full"]

    def __getitem__(self, name: str) -> Expr:
        return self._names[name]


#: A place that the next step will fill in: number of a step, and the name of its field.
_Hole = tuple[int, str]


@dataclass
class Build:
    """Builds a program statement by statement.

    Example:
        >>> b = Build("count")
        >>> hits = b.table("hits", "counter", entries=1)
        >>> b.parse("ipv4")
        >>> b.add(hits, [0], count=1)
        >>> b.forward()
        >>> b.done().steps[-1].kind
        'forward'
    """

    name: str
    keeps_inside: bool = False
    export: str = ""
    tables: dict[str, Table] = field(default_factory=dict)
    steps: list[Any] = field(default_factory=list)
    _open: list[_Hole] = field(default_factory=list)
    _failed: list[tuple[_Hole, str]] = field(default_factory=list)
    _else: list[_Hole] = field(default_factory=list)

    def table(
        self,
        name: str,
        kind: str,
        *,
        entries: int,
        key: dict[str, int] | None = None,
        value: dict[str, int] | None = None,
        preset: Iterable[tuple[Sequence[int], Sequence[int]]] = (),
    ) -> Table:
        """Declare a table; see `Table`. Arrays, counters, buckets and sketches have usual keys and values."""
        key = key or {"index": 32}
        value = value or {"bucket": {"tat_ns": 64}}.get(kind, {"count": 64})
        fixed = tuple((tuple(k), tuple(v)) for k, v in preset)
        table = Table(name, kind, tuple(key.items()), tuple(value.items()), entries, fixed)
        if name in self.tables:
            raise BadProgram(f"{self.name}: two tables are named {name!r}; rename one")
        self.tables[name] = table
        return table

    def parse(self, *headers: str, otherwise: str = "up") -> None:
        """Require headers, one of `HEADERS` each; a packet without them gets the verdict `otherwise`."""
        for header in headers:
            at = self._append(Parse(header))
            self._open = [(at, "then")]
            self._failed.append(((at, "otherwise"), otherwise))

    def parsed(self, header: str) -> AbstractContextManager[None]:
        """Run the block for packets with the header only; `otherwise` may follow."""
        return self._block(Parse(header))

    def when(self, condition: Value) -> AbstractContextManager[None]:
        """Run the block where the condition is not 0; `otherwise` may follow."""
        return self._block(Branch(lift(condition)))

    @contextmanager
    def _block(self, step: Parse | Branch) -> Iterator[None]:
        at = self._append(step)
        self._open = [(at, "then")]
        yield
        self._else = [(at, "otherwise")]
        self._open = [*self._open, *self._else]

    @contextmanager
    def otherwise(self) -> Iterator[None]:
        """Run the block where the condition of the `when` or `parsed` just before did not hold."""
        after = [hole for hole in self._open if hole not in self._else]
        if not self._else:
            raise BadProgram(f"{self.name}: otherwise() must follow a when() or parsed() block at once")
        self._open, self._else = self._else, []
        yield
        self._open = [*after, *self._open]

    def access(
        self,
        table: Table,
        key: Sequence[Value],
        sets: Mapping[str, Value] | None = None,
        outs: Mapping[str, Value] | None = None,
        *,
        create: bool = False,
        delete: bool = False,
    ) -> Result:
        """Append an atomic table operation; see `Access`. Outputs get fresh local names."""
        if {"hit", "full"} & set(outs or {}):
            raise BadProgram(f"{self.name}: outputs of table {table.name} cannot be named hit or full; rename them")
        names = {name: f"{table.name}_{name}_{len(self.steps)}" for name in ("hit", "full", *(outs or {}))}
        self._then(
            Access(
                table.name,
                tuple(lift(one) for one in key),
                tuple((name, lift(value)) for name, value in (sets or {}).items()),
                tuple((names[name], lift(value)) for name, value in (outs or {}).items()),
                create,
                delete,
                names["hit"],
                names["full"],
            )
        )
        return Result({name: Local(local) for name, local in names.items()})

    def lookup(self, table: Table, key: Sequence[Value], *fields: str) -> Result:
        """Read fields of an entry."""
        return self.access(table, key, None, {name: Old(name) for name in fields})

    def put(self, table: Table, key: Sequence[Value], **values: Value) -> Result:
        """Insert an entry or overwrite fields of it."""
        return self.access(table, key, dict(values), create=True)

    def add(self, table: Table, key: Sequence[Value], **amounts: Value) -> Result:
        """Add to fields of an entry, and create it where it is missing."""
        sets: dict[str, Value] = {name: Old(name) + amount for name, amount in amounts.items()}
        return self.access(table, key, sets, create=table.storage in {"hash", "lru", "sketch"})

    def delete(self, table: Table, key: Sequence[Value]) -> Result:
        """Remove an entry."""
        return self.access(table, key, delete=True)

    def assign(self, name: str, value: Value) -> Expr:
        """Set a local and return it; a name may be set again."""
        self._then(Assign(name, lift(value)))
        return Local(name)

    def rewrite(self, **fields: Value) -> None:
        """Store packet fields; `ip_src=x` means `ip.src`."""
        sets = tuple((name.replace("_", ".", 1), lift(value)) for name, value in fields.items())
        self._then(Rewrite(sets))

    def end(self, verdict: str) -> None:
        """End the path with one of `VERDICTS`; see `Verdict`."""
        self._append(Verdict(verdict))

    forward = partialmethod(end, "forward")
    reply = partialmethod(end, "reply")
    drop = partialmethod(end, "drop")
    up = partialmethod(end, "up")

    def done(self) -> Program:
        """Close the program and check it."""
        if self._open:
            raise BadProgram(f"{self.name}: a path ends without a verdict; add forward(), reply(), drop() or up()")
        for hole, verdict in self._failed:
            self._open = [hole]
            self.end(verdict)
        steps = tuple(self.steps)
        program = Program(self.name, self.tables, steps, self.keeps_inside, self.export)
        check(program)
        return program

    def _append(self, step: Any) -> int:
        if self.steps and not self._open:
            raise BadProgram(f"{self.name}: a step follows a verdict and cannot be reached; remove it")
        at = len(self.steps)
        for number, name in self._open:
            self.steps[number] = replace(self.steps[number], **{name: at})
        self.steps.append(step)
        self._open, self._else = [], []
        return at

    def _then(self, step: Any) -> None:
        at = self._append(step)
        self._open = [(at, "then")]


def check(program: Program) -> None:
    """Raise BadProgram where a rule is broken: shapes of tables, order of steps, fields parsed and locals set."""
    _check_tables(program)
    if not program.steps or len(program.steps) > MAX_STEPS:
        raise BadProgram(f"{program.name}: {len(program.steps)} steps; 1 to {MAX_STEPS} are possible")
    for at, headers, local in _known(program):
        _check_step(program, at, headers, local)


def _known(program: Program) -> Iterator[tuple[int, set[str], set[str]]]:
    """Yield each step with the headers that a packet has and the locals that are set, whichever way it came."""
    known: list[tuple[set[str], set[str]] | None] = [(set(), set()), *[None] * (len(program.steps) - 1)]
    for at, step in enumerate(program.steps):
        before = known[at]
        if before is None:
            raise BadProgram(f"{program.name}: step {at} ({program.describe(at)}) cannot be reached; remove it")
        headers, local = before
        yield at, headers, local
        for target in successors(step):
            if not at < target < len(program.steps):
                raise BadProgram(f"{program.name}: step {at} leads back to step {target}; the steps must form a DAG")
            new, reached, seen = set(headers), local | set(assigned(step)), known[target]
            if isinstance(step, Parse) and target == step.then != step.otherwise:
                new |= {"ipv4", step.header, *INCLUDED.get(step.header, ())}
            known[target] = (new, reached) if seen is None else (seen[0] & new, seen[1] & reached)


def least_bytes(program: Program) -> list[int]:
    """Return the least frame length that every packet at each step is known to have."""
    return [max([34, *(HEADERS[header][1] for header in headers)]) for _, headers, _ in _known(program)]


def _refuse(rules: dict[str, bool]) -> None:
    """Raise BadProgram with the first message whose rule is broken."""
    if message := next((message for message, broken in rules.items() if broken), ""):
        raise BadProgram(message)


def _check_tables(program: Program) -> None:
    for name, table in program.tables.items():
        where, kind, one_key = f"{program.name}: table {name}", table.kind, [bits for _, bits in table.key] == [32]
        wrong = any(bits not in WIDTHS for _, bits in (*table.key, *table.value))
        known, steps = len(table.preset), program.accesses(name)
        widths = [bits for _, bits in (*(() if kind == "lpm" else table.key), *table.value)]
        preset = [(*(() if kind == "lpm" else key), *value) for key, value in table.preset]
        too_wide = any(part >> bits for entry in preset for part, bits in zip(entry, widths, strict=False))
        rules = {
            f"has the kind {kind!r}; use one of {', '.join(KINDS)}": kind not in KINDS,
            "needs a name that is a C identifier, and one entry": not name.isidentifier() or table.entries < 1,
            f"has a field whose width is not one of {WIDTHS} bits": wrong,
            f"is of kind {kind} and needs one key field of 32 bits": table.storage in {"array", "lpm"} and not one_key,
            "is a sketch; its value is one 64-bit field, count": kind == "sketch" and table.value != (("count", 64),),
            "is of kind lpm and cannot be changed by a step; preset it": kind == "lpm" and program.written(name),
            f"has {known} entries set beforehand and room for {table.entries}": known > table.entries,
            "has an entry set beforehand that does not fit its fields": too_wide,
            "is a counter; steps may only add to it": kind == "counter" and bool(steps) and not program.add_only(name),
        }
        _refuse({f"{where} {words}": broken for words, broken in rules.items()})


def _check_step(program: Program, at: int, headers: set[str], local: set[str]) -> None:
    step, where = program.steps[at], f"{program.name}: step {at} ({program.describe(at)})"
    read = list(leaves_of(step))
    written = [name for name, _ in step.sets] if isinstance(step, Rewrite) else []
    for name in (*written, *(leaf.name for leaf in read if isinstance(leaf, FieldOf))):
        known = FIELDS.get(name)
        if known is None:
            raise BadProgram(f"{where}: unknown field {name}; use one of {', '.join(FIELDS)}")
        _refuse(
            {
                f"{where} uses {name} before parse({known.header!r}) on every path": known.header not in headers,
                f"{where}: {name} cannot be rewritten": name in written and (not known.writable or name == "ip.proto"),
            }
        )
    unset = [leaf.name for leaf in read if isinstance(leaf, Local) and leaf.name not in local]
    no_entry = not isinstance(step, Access) and any(isinstance(leaf, Old) for leaf in read)
    header = step.header if isinstance(step, Parse) else ""
    verdict = step.kind if isinstance(step, Verdict) else ""
    _refuse(
        {
            f"{where}: unknown header; use one of {', '.join(HEADERS)}": header not in {"", *HEADERS},
            f"{where}: unknown verdict; use one of {', '.join(VERDICTS)}": verdict not in {"", *VERDICTS},
            f"{where} reads {', '.join(unset)}, which is not set on every path before it": bool(unset),
            f"{where} reads a table entry; only a table operation can": no_entry,
        }
    )
    if isinstance(step, Access):
        _check_access(where, program, step)


def _check_access(where: str, program: Program, step: Access) -> None:
    table = program.tables.get(step.table)
    if table is None:
        raise BadProgram(f"{where}: there is no table {step.table}; declare it with table()")
    wanted = {name for name, _ in step.sets} | {leaf.name for leaf in leaves_of(step) if isinstance(leaf, Old)}
    missing = ", ".join(sorted(wanted - dict(table.value).keys()))
    wide, given, storage, sketch = len(table.key), len(step.key), table.storage, table.kind == "sketch"
    both = step.create and step.delete
    rules = {
        f"the key of {table.name} has {wide} fields, {given} are given": wide != given,
        f"{table.name} has no field {missing}": bool(missing),
        "a key cannot read the entry that it finds": any(map(reads_entry, step.key)),
        f"entries of a table of kind {table.kind} cannot be deleted": step.delete and storage not in {"hash", "lru"},
        "entries of an array exist from the start; use access() without create": step.create and storage == "array",
        "steps may only add to a sketch": sketch and not (step.create and not step.delete and adds_all(step)),
        "a step cannot create and delete an entry at once": both and table.kind == "lru",
    }
    _refuse({f"{where}: {words}": broken for words, broken in rules.items()})
