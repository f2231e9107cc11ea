"""C for both tiers, from one program and one placement: the steps are written once, tables are reached tier by tier.

Each step becomes a labelled block and each edge a `goto`, so that a packet can be taken up at any step. A step at
which packets cross stores its number and the live locals in the hand-over header (`struct cora_hand`).
"""

from __future__ import annotations

from cora.errors import BuildError
from cora.expressions import Expr, FieldOf, Local, Now, Old, leaves, to_c
from cora.packet import FIELDS, HEADERS
from cora.placement import FAST, SLOW, SPLIT, Placement, atomic, locked, tiers
from cora.program import (
    SKETCH_ROWS,
    Access,
    Assign,
    Branch,
    Parse,
    Program,
    Rewrite,
    Step,
    Table,
    Verdict,
    adds,
    assigned,
    least_bytes,
)

#: Most locals that a hand-over carries; with more, header and XDP headroom (256 bytes) would not fit.
MAX_SLOTS = 20
MAP_TYPES = {"array": "ARRAY", "hash": "HASH", "lru": "LRU_HASH", "lpm": "LPM_TRIE", "sketch": "ARRAY"}


def slots(program: Program) -> int:
    """Return how many locals the hand-over header has room for."""
    most = max(map(len, program.live))
    if most > MAX_SLOTS:
        raise BuildError(
            f"{program.name}: {most} locals are in use at one step; at most {MAX_SLOTS} can be handed over"
        )
    return max(1, most)


def hand_bytes(program: Program) -> int:
    """Return the size of the hand-over header in bytes."""
    return 16 + 8 * slots(program)


def _entry_types(program: Program) -> str:
    parts = []
    for table in program.tables.values():
        key = "".join(f" u{bits} {name};" for name, bits in table.key)
        if table.kind == "lpm":
            key = " u32 length; u32 address;"
        value = "".join(f" u{bits} {name};" for name, bits in table.value)
        parts.append(f"struct k_{table.name} {{{key} }};")
        parts.append(f"struct v_{table.name} {{{value} }} __attribute__((aligned(8)));")
    return "\n".join(parts)


def fast_source(program: Program, placement: Placement) -> str:
    """Return the C source of the fast tier."""
    where = tiers(program, placement)
    maps = [_map(program, placement, table) for table in program.tables.values()]
    freezes = [_freeze(table) for table in program.tables.values() if placement.homes[table.name] == SPLIT]
    body = _Writer(program, placement, FAST, where)
    signature = "static int cora_resume(struct xdp_md *ctx, struct cora_hand *from)"
    resume = _function(signature, body, _FAST_LOCALS + _RESUMED, "from") if placement.bounces else ""
    return "\n".join(
        [
            f"/* {program.name}, fast tier: {placement.label()} */",
            f"#define CORA_SLOTS {slots(program)}",
            "#define CORA_USES_TIME" if program.uses_time else "",
            "#define CORA_BOUNCE" if placement.bounces else "",
            "#include <linux/bpf.h>",
            "#include <bpf/bpf_helpers.h>",
            '#include "cora_common.h"',
            _entry_types(program),
            *maps,
            "struct cora_hand;",
            f"{signature};" if placement.bounces else "",
            '#include "cora_fast.h"',
            _function("cora_inline int cora_steps(struct xdp_md *ctx, u32 port, u64 now)", body, _FAST_LOCALS),
            resume,
            *freezes,
        ]
    )


_FAST_LOCALS = "u8 *data = CORA_DATA(ctx), *end = CORA_END(ctx); struct cora_hand *hand; int crossed;"
#: A second copy of the steps that can begin at any step: what the slow tier bounces packets to.
_RESUMED = "u64 now = from->now; u32 port = from->port; if (!cora_supported(data, end)) return CORA_ERROR;"


def _function(signature: str, body: _Writer, first: str, header: str = "") -> str:
    """Return a C function that runs the steps, from the first one or from where a hand-over header says."""
    start = body.resume(header) if header else ""
    return "\n".join([signature, "{", first, "u64 length = end - data;", body.declarations(), start, body.steps(), "}"])


def slow_source(program: Program, placement: Placement) -> str:
    """Return the C source of the slow tier."""
    body = _Writer(program, placement, SLOW, tiers(program, placement))
    kinds = {"array": "ARRAY", "hash": "HASH", "lru": "LRU", "lpm": "LPM", "sketch": "SKETCH"}
    opens = []
    for number, table in enumerate(program.tables.values()):
        entries = table.entries * (SKETCH_ROWS if table.kind == "sketch" else 1)
        up = placement.fast_entries[table.name] if placement.homes[table.name] == SPLIT else 0
        opens.append(
            f"if (table_open(&cora_tables[{number}], {kinds[table.storage]}, sizeof(struct k_{table.name}), "
            f"sizeof(struct v_{table.name}), {entries}, {up})) return -1;"
        )
    return "\n".join(
        [
            f"/* {program.name}, slow tier: {placement.label()} */",
            f"#define CORA_SLOTS {slots(program)}",
            '#include "cora_slow.h"',
            _entry_types(program),
            f"struct table cora_tables[{max(1, len(program.tables))}];",
            f"const u32 cora_table_count = {len(program.tables)}, cora_hand_bytes = sizeof(struct cora_hand);",
            "int cora_open(void) {",
            *opens,
            "return 0; }",
            _function(
                "int slow_steps(u8 *data, u8 *end, u32 port, u64 now, struct cora_hand *hand)", body, "", header="hand"
            ),
        ]
    )


def _map(program: Program, placement: Placement, table: Table) -> str:
    home = placement.homes[table.name]
    if home == SLOW:
        return ""
    entries = placement.fast_entries[table.name] if home == SPLIT else table.entries
    entries *= SKETCH_ROWS if table.kind == "sketch" else 1
    header = ""
    if home == SPLIT or locked(program, table, home):
        header = "struct bpf_spin_lock lock; u32 frozen; u32 hits; u32 pad; "
    flags = "__uint(map_flags, BPF_F_NO_PREALLOC); " if table.kind == "lpm" else ""
    key = "u32" if table.storage in {"array", "sketch"} else f"struct k_{table.name}"
    return (
        f"struct e_{table.name} {{ {header}struct v_{table.name} v; }};\n"
        f"struct {{ __uint(type, BPF_MAP_TYPE_{MAP_TYPES[table.storage]}); __uint(max_entries, {entries}); {flags}"
        f'__type(key, {key}); __type(value, struct e_{table.name}); }} t_{table.name} SEC(".maps");'
    )


def _freeze(table: Table) -> str:
    """Return the program that freezes and copies an entry: a frame of 16 bytes, the key, then room for the value."""
    return f"""
SEC("xdp") int freeze_{table.name}(struct xdp_md *ctx)
{{
u8 *data = CORA_DATA(ctx), *end = CORA_END(ctx);
struct k_{table.name} k;
u64 *out = (void *)(data + 16 + (sizeof k + 7) / 8 * 8);
if ((u8 *)out + sizeof(struct v_{table.name}) > end) return 0;
__builtin_memcpy(&k, data + 16, sizeof k);
struct e_{table.name} *e = bpf_map_lookup_elem(&t_{table.name}, &k);
if (!e) return 0;
bpf_spin_lock(&e->lock);
u32 dead = e->frozen;
e->frozen = 1;
u64 *from = (void *)&e->v;
#pragma clang loop unroll(full)
for (int i = 0; i < sizeof(struct v_{table.name}) / 8; i++) out[i] = from[i];
bpf_spin_unlock(&e->lock);
return !dead;
}}"""


class _Writer:
    """Writes the steps that one tier can reach."""

    def __init__(self, program: Program, placement: Placement, tier: str, where: list[frozenset[str]]) -> None:
        self.program, self.placement, self.tier, self.where = program, placement, tier, where
        self.numbers = {name: number for number, name in enumerate(program.tables)}

    def declarations(self) -> str:
        """Return the locals, all zero."""
        names = sorted({name for step in self.program.steps for name in assigned(step)})
        return f"u64 {', '.join(f'l_{name} = 0' for name in names)};" if names else ""

    def resume(self, header: str) -> str:
        """Return the switch that takes a packet up at a step."""
        cases = []
        least = least_bytes(self.program)
        for at in range(len(self.program.steps)):
            if self._can_begin(at):
                live = enumerate(self.program.live[at])
                loads = "".join(f"l_{name} = {header}->slot[{slot}]; " for slot, name in live)
                checked = f"if (data + {least[at]} > end) return CORA_ERROR; " if self.tier == FAST else ""
                cases.append(f"case {at}: {checked}{loads}goto s{at};")
        return "\n".join([f"switch ({header}->step) {{", *cases, "default: return CORA_ERROR; }"])

    def _can_begin(self, at: int) -> bool:
        """Return True if a packet of the other tier may be taken up at the step."""
        step = self.program.steps[at]
        if not isinstance(step, Access) or not self.where[at]:
            return False
        home = self.placement.homes[step.table]
        return home in {SLOW, SPLIT} if self.tier == SLOW else home == FAST and SLOW in self.where[at]

    def cross(self, at: int) -> str:
        """Return C that hands the packet to the other tier at a step."""
        stores = "".join(f"hand->slot[{slot}] = l_{name}; " for slot, name in enumerate(self.program.live[at]))
        if self.tier == FAST:
            return (
                f"{{ crossed = cora_hand_over(ctx, port, now, {at}, &hand); "
                f"if (crossed != CORA_CROSS) return crossed; {stores}return CORA_CROSS; }}"
            )
        return f"{{ hand->step = {at}; {stores}return CORA_CROSS; }}"

    def steps(self) -> str:
        """Return all blocks that this tier can reach."""
        return "\n".join(
            f"s{at}: __attribute__((unused)); {self._step(at, step)}"
            for at, step in enumerate(self.program.steps)
            if self.tier in self.where[at] or self._can_begin(at)
        )

    def _step(self, at: int, step: Step) -> str:
        if isinstance(step, Verdict):
            return f"return CORA_{step.kind.upper()};"
        if isinstance(step, Parse | Branch):
            test = self._has(step.header) if isinstance(step, Parse) else self._c(step.condition)
            return f"if ({test}) goto s{step.then}; else goto s{step.otherwise};"
        if isinstance(step, Assign):
            return f"l_{step.local} = {self._c(step.value)}; goto s{step.then};"
        if isinstance(step, Rewrite):
            return self._rewrite(step)
        if self.placement.homes[step.table] == {FAST: SLOW, SLOW: FAST}[self.tier]:
            return self.cross(at)
        if self.program.tables[step.table].kind == "sketch":
            return self._sketch(step)
        return self._access(at, step)

    @staticmethod
    def _has(header: str) -> str:
        protocols, least = HEADERS[header]
        plain = f"cora_has(data, end, {protocols[0] if protocols else 0}, {least})"
        return "cora_has_ports(data, end)" if header == "ports" else plain

    def _c(self, expr: Expr) -> str:
        def read(leaf: Expr) -> str:
            if isinstance(leaf, FieldOf):
                one = FIELDS[leaf.name]
                if one.offset < 0:
                    return "length" if leaf.name == "pkt.len" else "((u64)port)"
                return f"cora_read(data, {one.offset}, {one.bits // 8})"
            if isinstance(leaf, Local):
                return f"l_{leaf.name}"
            if isinstance(leaf, Old):
                return f"o_{leaf.name}"
            assert isinstance(leaf, Now)
            return "now"

        return to_c(expr, read)

    def _rewrite(self, step: Rewrite) -> str:
        lines = [f"u64 r{i} = {self._c(value)};" for i, (_, value) in enumerate(step.sets)]
        lines.append("u32 ip = 0, l4 = 0, sum;")
        for i, (name, _) in enumerate(step.sets):
            one = FIELDS[name]
            lines.append(f"sum = cora_write(data, {one.offset}, {one.bits // 8}, r{i});")
            if one.header == "ipv4":
                lines.append("ip += sum;")
            if one.header != "ipv4" or name in {"ip.src", "ip.dst"}:
                lines.append("l4 += sum;")
        return "{ " + " ".join(lines) + f" cora_checksums(data, end, ip, l4); }} goto s{step.then};"

    def _access(self, at: int, step: Access) -> str:
        table = self.program.tables[step.table]
        fast, home = self.tier == FAST, self.placement.homes[step.table]
        lock = fast and (home == SPLIT or locked(self.program, table, home))
        number = self.numbers[table.name]
        if fast:
            find = f"struct e_{table.name} *e = bpf_map_lookup_elem(&t_{table.name}, &k);"
            value = "e->v."
        else:
            key = "&k" if table.kind == "lpm" else "kw"
            find = f"struct v_{table.name} *e = cora_find(&cora_tables[{number}], {key});"
            value = "e->"
        lines = ["{", self._key(step, table), find]
        if fast and home == SPLIT:
            lines.append(f"if (!e) {self.cross(at)}")
        lines.append(f"l_{step.hit} = e != 0; l_{step.full} = 0;")
        if step.create and not (fast and home == SPLIT):
            lines.append(f"if (!e) {{ {self._make(step, table)} }}")
        olds = sorted(
            {leaf.name for _, one in (*step.sets, *step.outs) for leaf in leaves(one) if isinstance(leaf, Old)}
        )
        lines.append("".join(f"u64 o_{name} = 0; " for name in olds))
        outs = " ".join(f"l_{name} = {self._c(one)};" for name, one in step.outs)
        change = self._change(at, step, table, value, olds, lock)
        lines.append(f"if (e) {{ {change} }} else {{ {outs} }}")
        if step.delete:
            kill = f"bpf_map_delete_elem(&t_{table.name}, &k);" if fast else f"remove_key(&cora_tables[{number}], kw);"
            lines.append(f"if (e) {kill}")
        return " ".join([*lines, f"}} goto s{step.then};"])

    def _key(self, step: Access, table: Table) -> str:
        """Return C that makes the key `k`; the slow tier compares keys in whole words, `kw`."""
        values = [self._c(value) for value in step.key]
        if table.kind == "lpm":
            address = f"__builtin_bswap32((u32){values[0]})"
            return f"struct k_{table.name} k = {{ .length = 32, .address = {address} }};"
        names = [name for name, _ in table.key]
        if self.tier == SLOW:
            stores = " ".join(f"kp->{name} = {value};" for name, value in zip(names, values, strict=True))
            words = f"u64 kw[(sizeof(struct k_{table.name}) + 7) / 8] = {{0}};"
            return f"{words} struct k_{table.name} *kp = (void *)kw; {stores}"
        if table.storage == "array":
            return f"u32 k = {values[0]};"
        stores = " ".join(f"k.{name} = {value};" for name, value in zip(names, values, strict=True))
        return f"struct k_{table.name} k; __builtin_memset(&k, 0, sizeof k); {stores}"

    def _make(self, step: Access, table: Table) -> str:
        if self.tier == SLOW:
            number = self.numbers[table.name]
            return f"e = cora_make(&cora_tables[{number}], kw); if (!e) l_{step.full} = 1;"
        return (
            f"struct e_{table.name} fresh; __builtin_memset(&fresh, 0, sizeof fresh); "
            f"bpf_map_update_elem(&t_{table.name}, &k, &fresh, BPF_NOEXIST); "
            f"e = bpf_map_lookup_elem(&t_{table.name}, &k); if (!e) l_{step.full} = 1;"
        )

    def _change(self, at: int, step: Access, table: Table, value: str, olds: list[str], lock: bool) -> str:
        """Return C that reads and changes an entry `e`, under its lock where it has one."""
        lines = []
        split = self.tier == FAST and self.placement.homes[table.name] == SPLIT
        if lock:
            lines.append("bpf_spin_lock(&e->lock);")
        if split:
            lines.append(f"if (e->frozen) {{ bpf_spin_unlock(&e->lock); {self.cross(at)} }} e->hits++;")
        lines += [f"o_{name} = {value}{name};" for name in olds]
        lines += [f"l_{name} = {self._c(one)};" for name, one in step.outs]
        for name, one in step.sets:
            if self.tier == FAST and not lock and atomic(self.program, table) and adds(name, one):
                amount = f"(u{dict(table.value)[name]})({self._c(one.args[1])})"  # type: ignore[attr-defined]
                lines.append(f"__sync_fetch_and_add(&{value}{name}, {amount});")
            else:
                lines.append(f"{value}{name} = {self._c(one)};")
        if lock and step.delete and split:
            lines.append("e->frozen = 2;")
        if lock:
            lines.append("bpf_spin_unlock(&e->lock);")
        return " ".join(lines)

    def _sketch(self, step: Access) -> str:
        table = self.program.tables[step.table]
        number = self.numbers[table.name]
        keys = [
            f"u64 q{i} = (u{bits}){self._c(one)};"
            for i, (one, (_, bits)) in enumerate(zip(step.key, table.key, strict=True))
        ]
        lines = ["{", *keys, "u64 o_count = ~0ULL;"]
        for row in range(SKETCH_ROWS):
            text = f"{row + 1}ULL"
            for i in range(len(step.key)):
                text = f"cora_mix({text}, q{i})"
            index = f"u32 i{row} = {row * table.entries} + ({text} & 0xffffffffULL) % {table.entries};"
            if self.tier == FAST:
                lines.append(f"{index} struct e_{table.name} *e{row} = bpf_map_lookup_elem(&t_{table.name}, &i{row});")
                cell = f"e{row}->v.count"
            else:
                lines.append(f"{index} struct v_{table.name} *e{row} = cora_find(&cora_tables[{number}], &i{row});")
                cell = f"e{row}->count"
            lines.append(f"if (e{row} && {cell} < o_count) o_count = {cell};")
        lines.append(f"l_{step.hit} = o_count > 0; l_{step.full} = 0;")
        lines += [f"l_{name} = {self._c(one)};" for name, one in step.outs]
        for name, one in step.sets:
            lines.append(f"u64 n_{name} = ({self._c(one)}) - o_{name};")
            for row in range(SKETCH_ROWS):
                cell = f"e{row}->v.{name}" if self.tier == FAST else f"e{row}->{name}"
                add = f"__sync_fetch_and_add(&{cell}, n_{name});" if self.tier == FAST else f"{cell} += n_{name};"
                lines.append(f"if (e{row}) {add}")
        return " ".join([*lines, f"}} goto s{step.then};"])
