"""The program of a network function: a DAG of steps over named tables, a builder for it, and its checks.

A step is one of five records: `Parse`, `Access` (one atomic table operation), `Assign`, `Branch`, `Rewrite`, or it is
a `Verdict` and ends. Steps stand in topological order: a step's successors have larger numbers. Loops are unrolled
by the builder, so that every program ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from cora.errors import BadProgram
from cora.expressions import Expr, FieldOf, Local, Now, Old, Value, leaves, lift
from cora.packet import FIELDS, HEADERS, INCLUDED

KINDS = ("array", "counter", "hash", "bucket", "lru", "lpm", "sketch")
VERDICTS = ("forward", "reply", "drop", "up")
WIDTHS = (8, 16, 32, 64)
MAX_STEPS = 400
SKETCH_ROWS = 4


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

    def mask(self, name: str) -> int:
        """Return the mask of a value field's width."""
        return (1 << dict(self.value)[name]) - 1


@dataclass(frozen=True)
class Parse:
    """Go to `then` if the packet has the header in full, else to `otherwise`."""

    header: str
    then: int
    otherwise: int


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
    then: int


@dataclass(frozen=True)
class Assign:
    """Set a local."""

    local: str
    value: Expr
    then: int


@dataclass(frozen=True)
class Branch:
    """Go to `then` if the condition is not 0, else to `otherwise`."""

    condition: Expr
    then: int
    otherwise: int


@dataclass(frozen=True)
class Rewrite:
    """Store packet fields, all values being read first; checksums follow."""

    sets: tuple[tuple[str, Expr], ...]
    then: int


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
        return any(isinstance(leaf, Now) for step in self.steps for expr in expressions(step) for leaf in leaves(expr))

    def accesses(self, table: str) -> list[int]:
        """Return the numbers of the steps that access a table."""
        return [at for at, step in enumerate(self.steps) if isinstance(step, Access) and step.table == table]

    def written(self, table: str) -> bool:
        """Return True if a step creates, changes or deletes entries of the table."""
        steps = [self.steps[at] for at in self.accesses(table)]
        return any(isinstance(step, Access) and (step.sets or step.create or step.delete) for step in steps)

    def add_only(self, table: str) -> bool:
        """Return True if every step only adds to fields of the table and reads nothing of it."""
        for at in self.accesses(table):
            step = self.steps[at]
            assert isinstance(step, Access)
            if step.outs or step.delete or not step.sets or self._reads(step):
                return False
            if not all(adds(name, value) for name, value in step.sets):
                return False
        return bool(self.accesses(table))

    def independent(self, table: str) -> bool:
        """Return True if each change of a field either adds to it or does not depend on the entry.

        Such changes need no lock: every field of its own is changed at once.
        """
        sets = [one for at in self.accesses(table) for one in getattr(self.steps[at], "sets", ())]
        return all(adds(name, value) or not _reads_entry(value) for name, value in sets)

    def _reads(self, access: Access) -> bool:
        """Return True if a later step reads whether the access hit."""
        names = {access.hit, access.full}
        return any(
            isinstance(leaf, Local) and leaf.name in names
            for step in self.steps
            for expr in expressions(step)
            for leaf in leaves(expr)
        )

    @cached_property
    def live(self) -> list[tuple[str, ...]]:
        """The locals that a packet must carry when it is handed over at each step."""
        live: list[set[str]] = [set() for _ in self.steps]
        for at, step in reversed(list(enumerate(self.steps))):
            after = {name for target in successors(step) for name in live[target]}
            used = {leaf.name for expr in expressions(step) for leaf in leaves(expr) if isinstance(leaf, Local)}
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
        if isinstance(step, Assign):
            return f"set {step.local}"
        return "branch" if isinstance(step, Branch) else step.kind


def adds(name: str, value: Expr) -> bool:
    """Return True for `old(name) + x` where x reads no entry field."""
    args: tuple[Expr, ...] = getattr(value, "args", ())
    if getattr(value, "name", "") != "+" or not isinstance(args[0], Old) or args[0].name != name:
        return False
    return not _reads_entry(args[1])


def _reads_entry(value: Expr) -> bool:
    return any(isinstance(leaf, Old) for leaf in leaves(value))


@dataclass(frozen=True, eq=False)
class Result:
    """Outcome of an access: expressions for "there was an entry", "no room", and its outputs by name."""

    hit: Expr
    full: Expr
    outs: dict[str, Expr]

    def __getitem__(self, name: str) -> Expr:
        return self.outs[name]


class _Hole(NamedTuple):
    """A place of a step that the next step will fill in."""

    at: int
    name: str


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
    _failed: list[tuple[list[_Hole], str]] = field(default_factory=list)
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
            at = self._append(Parse(header, -1, -1))
            self._open = [_Hole(at, "then")]
            self._failed.append(([_Hole(at, "otherwise")], otherwise))

    @contextmanager
    def parsed(self, header: str) -> Iterator[None]:
        """Run the block for packets with the header only; `otherwise` may follow."""
        with self._block(Parse(header, -1, -1)):
            yield

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        """Run the block where the condition is not 0; `otherwise` may follow."""
        with self._block(Branch(lift(condition), -1, -1)):
            yield

    @contextmanager
    def _block(self, step: Parse | Branch) -> Iterator[None]:
        at = self._append(step)
        self._open = [_Hole(at, "then")]
        yield
        self._else = [_Hole(at, "otherwise")]
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
        number = len(self.steps)
        names = {name: f"{table.name}_{name}_{number}" for name in outs or {}}
        hit, full = f"{table.name}_hit_{number}", f"{table.name}_full_{number}"
        step = Access(
            table.name,
            tuple(lift(one) for one in key),
            tuple((name, lift(value)) for name, value in (sets or {}).items()),
            tuple((names[name], lift(value)) for name, value in (outs or {}).items()),
            create,
            delete,
            hit,
            full,
            -1,
        )
        self._then(step)
        return Result(Local(hit), Local(full), {name: Local(local) for name, local in names.items()})

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
        self._then(Assign(name, lift(value), -1))
        return Local(name)

    def rewrite(self, **fields: Value) -> None:
        """Store packet fields; `ip_src=x` means `ip.src`."""
        sets = tuple((name.replace("_", ".", 1), lift(value)) for name, value in fields.items())
        self._then(Rewrite(sets, -1))

    def forward(self) -> None:
        """Send the packet to the other device."""
        self._end("forward")

    def reply(self) -> None:
        """Send the packet back by the device that it came by."""
        self._end("reply")

    def drop(self) -> None:
        """Drop the packet."""
        self._end("drop")

    def up(self) -> None:
        """Hand the packet to the stack of the device that it came by."""
        self._end("up")

    def done(self) -> Program:
        """Close the program and check it."""
        if self._open:
            raise BadProgram(f"{self.name}: a path ends without a verdict; add forward(), reply(), drop() or up()")
        for holes, verdict in self._failed:
            self._open = holes
            self._end(verdict)
        steps = tuple(self.steps)
        program = Program(self.name, self.tables, steps, self.keeps_inside, self.export)
        check(program)
        return program

    def _append(self, step: Any) -> int:
        if self.steps and not self._open:
            raise BadProgram(f"{self.name}: a step follows a verdict and cannot be reached; remove it")
        at = len(self.steps)
        for hole in self._open:
            self.steps[hole.at] = replace(self.steps[hole.at], **{hole.name: at})
        self.steps.append(step)
        self._open, self._else = [], []
        return at

    def _then(self, step: Any) -> None:
        at = self._append(step)
        self._open = [_Hole(at, "then")]

    def _end(self, verdict: str) -> None:
        self._append(Verdict(verdict))


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
            new, reached, seen = headers | _parsed_by(step, target), local | set(assigned(step)), known[target]
            known[target] = (new, reached) if seen is None else (seen[0] & new, seen[1] & reached)


def _parsed_by(step: Step, target: int) -> set[str]:
    """Return the headers that a packet is known to have when it goes from a step to a target."""
    if not isinstance(step, Parse) or not target == step.then != step.otherwise:
        return set()
    return {"ipv4", step.header, *INCLUDED.get(step.header, ())}


def least_bytes(program: Program) -> list[int]:
    """Return the least frame length that every packet at each step is known to have."""
    return [max([34, *(HEADERS[header][1] for header in headers)]) for _, headers, _ in _known(program)]


def _check_tables(program: Program) -> None:
    for table in program.tables.values():
        where = f"{program.name}: table {table.name}"
        if table.kind not in KINDS:
            raise BadProgram(f"{where} has the kind {table.kind!r}; use one of {', '.join(KINDS)}")
        if not table.name.isidentifier() or table.entries < 1:
            raise BadProgram(f"{where} needs a name that is a C identifier and at least one entry")
        if any(bits not in WIDTHS for _, bits in (*table.key, *table.value)):
            raise BadProgram(f"{where} has a field whose width is not one of {WIDTHS} bits")
        if table.storage in {"array", "lpm"} and [bits for _, bits in table.key] != [32]:
            raise BadProgram(f"{where} is of kind {table.kind} and needs one key field of 32 bits")
        if table.kind == "sketch" and table.value != (("count", 64),):
            raise BadProgram(f"{where} is a sketch; its value is one 64-bit field named count")
        if table.kind == "lpm" and program.written(table.name):
            raise BadProgram(f"{where} is of kind lpm and cannot be changed by a step; set its entries beforehand")
        if len(table.preset) > table.entries:
            raise BadProgram(f"{where} has {len(table.preset)} entries set beforehand and room for {table.entries}")
        if table.kind == "counter" and not program.add_only(table.name) and program.accesses(table.name):
            raise BadProgram(f"{where} is a counter; steps may only add to it")


def _check_step(program: Program, at: int, headers: set[str], local: set[str]) -> None:
    step = program.steps[at]
    where = f"{program.name}: step {at} ({program.describe(at)})"
    if isinstance(step, Parse) and step.header not in HEADERS:
        raise BadProgram(f"{where}: unknown header; use one of {', '.join(HEADERS)}")
    if isinstance(step, Verdict) and step.kind not in VERDICTS:
        raise BadProgram(f"{where}: unknown verdict; use one of {', '.join(VERDICTS)}")
    for leaf in (leaf for expr in expressions(step) for leaf in leaves(expr)):
        if isinstance(leaf, FieldOf):
            _check_field(where, leaf.name, headers)
        elif isinstance(leaf, Local) and leaf.name not in local:
            raise BadProgram(f"{where} reads {leaf.name}, which is not set on every path before it")
        elif isinstance(leaf, Old) and not isinstance(step, Access):
            raise BadProgram(f"{where} reads a table entry; only a table operation can")
    if isinstance(step, Rewrite):
        for name, _ in step.sets:
            _check_field(where, name, headers)
            if not FIELDS[name].writable or name == "ip.proto":
                raise BadProgram(f"{where}: {name} cannot be rewritten")
    if isinstance(step, Access):
        _check_access(where, program, step)


def _check_field(where: str, name: str, headers: set[str]) -> None:
    if name not in FIELDS:
        raise BadProgram(f"{where}: unknown field {name}; use one of {', '.join(FIELDS)}")
    if FIELDS[name].header not in headers:
        raise BadProgram(f"{where} uses {name} before parse({FIELDS[name].header!r}) on every path")


def _check_access(where: str, program: Program, step: Access) -> None:
    table = program.tables.get(step.table)
    if table is None:
        raise BadProgram(f"{where}: there is no table {step.table}; declare it with table()")
    if len(step.key) != len(table.key):
        raise BadProgram(f"{where}: the key of {table.name} has {len(table.key)} fields, {len(step.key)} are given")
    fields = {name for name, _ in table.value}
    wanted = {name for name, _ in step.sets}
    wanted |= {leaf.name for expr in expressions(step) for leaf in leaves(expr) if isinstance(leaf, Old)}
    if wanted - fields:
        raise BadProgram(f"{where}: {table.name} has no field {', '.join(sorted(wanted - fields))}")
    if any(_reads_entry(one) for one in step.key):
        raise BadProgram(f"{where}: a key cannot read the entry that it finds")
    if table.storage not in {"hash", "lru"} and step.delete:
        raise BadProgram(f"{where}: entries of a table of kind {table.kind} cannot be deleted")
    if table.storage == "array" and step.create:
        raise BadProgram(f"{where}: entries of an array exist from the start; use access() without create")
    if table.kind == "sketch" and not (step.create and not step.delete and all(adds(n, v) for n, v in step.sets)):
        raise BadProgram(f"{where}: steps may only add to a sketch")
    if table.kind == "lru" and step.create and step.delete:
        raise BadProgram(f"{where}: a step cannot create and delete an entry at once")
