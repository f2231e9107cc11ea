"""C for both tiers, from one program and one placement: the steps are written once, tables are reached tier by tier.

Each step becomes a labelled block and each edge a `goto`, so that a packet can be taken up at any step. A step at
which packets cross stores its number and the live locals in the hand-over header (`struct cora_hand`).
"""

from __future__ import annotations

from cora.errors import BuildError
from cora.expressions import Expr, FieldOf, Local, Old, leaves, to_c
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
        key, value = ("".join(f" u{bits} {name};" for name, bits in part) for part in (table.key, table.value))
        parts.append(f"struct k_{table.name} {{{' u32 length; u32 address;' if table.kind == 'lpm' else key} }};")
        parts.append(f"struct v_{table.name} {{{value} }} __attribute__((aligned(8)));")
    return "\n".join(parts)


_FAST_LOCALS = "u8 *data = CORA_DATA(ctx), *end = CORA_END(ctx); struct cora_hand *hand; int crossed;"
#: A second copy of the steps that can begin at any step: what the slow tier bounces packets to.
_RESUMED = "u64 now = from->now; u32 port = from->port; if (!cora_supported(data, end)) return CORA_ERROR;"


def fast_source(program: Program, placement: Placement) -> str:
    """Return the C source of the fast tier."""
    tables, body = program.tables.values(), _Writer(program, placement, FAST)
    signature = "static int cora_resume(struct xdp_md *ctx, struct cora_hand *from)"
    bounces = placement.bounces
    return "\n".join(
        [
            f"/* {program.name}, fast tier: {placement.label()} */",
            f"#define CORA_SLOTS {slots(program)}",
            "#define CORA_USES_TIME" if program.uses_time else "",
            "#define CORA_BOUNCE" if bounces else "",
            "#include <linux/bpf.h>",
            "#include <bpf/bpf_helpers.h>",
            '#include "cora_common.h"',
            _entry_types(program),
            *[_map(program, placement, table) for table in tables if placement.homes[table.name] != SLOW],
            "struct cora_hand;",
            f"{signature};" if bounces else "",
            '#include "cora_fast.h"',
            body.function("cora_inline int cora_steps(struct xdp_md *ctx, u32 port, u64 now)", _FAST_LOCALS),
            body.function(signature, _FAST_LOCALS + _RESUMED, "from") if bounces else "",
            *[_freeze(table) for table in tables if placement.homes[table.name] == SPLIT],
        ]
    )


def slow_source(program: Program, placement: Placement) -> str:
    """Return the C source of the slow tier."""
    signature = "int slow_steps(u8 *data, u8 *end, u32 port, u64 now, struct cora_hand *hand)"
    opens = [
        f"if (table_open(&cora_tables[{number}], {table.storage.upper()}, sizeof(struct k_{table.name}), "
        f"sizeof(struct v_{table.name}), {table.cells}, {placement.fast_entries.get(table.name, 0)})) return -1;"
        for number, table in enumerate(program.tables.values())
    ]
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
            _Writer(program, placement, SLOW).function(signature, "", "hand"),
        ]
    )


def _map(program: Program, placement: Placement, table: Table) -> str:
    home = placement.homes[table.name]
    entries = placement.fast_entries[table.name] if home == SPLIT else table.cells
    header = "struct bpf_spin_lock lock; u32 frozen; u32 hits; u32 pad; " if locked(program, table, home) else ""
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

    def __init__(self, program: Program, placement: Placement, tier: str) -> None:
        self.program, self.placement, self.tier, self.fast = program, placement, tier, tier == FAST
        self.where = tiers(program, placement)
        self.numbers = {name: number for number, name in enumerate(program.tables)}

    def function(self, signature: str, first: str, header: str = "") -> str:
        """Return a C function that runs the steps, from the first one or from where a hand-over header says."""
        names = sorted({name for step in self.program.steps for name in assigned(step)})
        zeros = f"u64 {', '.join(f'l_{name} = 0' for name in names)};" if names else ""
        blocks = [
            f"s{at}: __attribute__((unused)); {self._step(at, step)}"
            for at, step in enumerate(self.program.steps)
            if self.tier in self.where[at] or self._can_begin(at)
        ]
        start = self._resume(header) if header else ""
        return "\n".join([signature, "{", first, "u64 length = end - data;", zeros, start, *blocks, "}"])

    def _resume(self, header: str) -> str:
        """Return the switch that takes a packet up at a step."""
        cases, least = [], least_bytes(self.program)
        for at in filter(self._can_begin, range(len(self.program.steps))):
            live = enumerate(self.program.live[at])
            loads = "".join(f"l_{name} = {header}->slot[{slot}]; " for slot, name in live)
            checked = f"if (data + {least[at]} > end) return CORA_ERROR; " if self.fast else ""
            cases.append(f"case {at}: {checked}{loads}goto s{at};")
        return "\n".join([f"switch ({header}->step) {{", *cases, "default: return CORA_ERROR; }"])

    def _can_begin(self, at: int) -> bool:
        """Return True if a packet of the other tier may be taken up at the step."""
        step = self.program.steps[at]
        if not isinstance(step, Access) or not self.where[at]:
            return False
        home = self.placement.homes[step.table]
        return home == FAST and SLOW in self.where[at] if self.fast else home in {SLOW, SPLIT}

    def _cross(self, at: int) -> str:
        """Return C that hands the packet to the other tier at a step."""
        stores = "".join(f"hand->slot[{slot}] = l_{name}; " for slot, name in enumerate(self.program.live[at]))
        begin = f"hand->step = {at};"
        if self.fast:
            begin = f"crossed = cora_hand_over(ctx, port, now, {at}, &hand); if (crossed != CORA_CROSS) return crossed;"
        return f"{{ {begin} {stores}return CORA_CROSS; }}"

    def _step(self, at: int, step: Step) -> str:
        if isinstance(step, Verdict):
            return f"return CORA_{step.kind.upper()};"
        if isinstance(step, Parse | Branch):
            test = _has(step.header) if isinstance(step, Parse) else _c(step.condition)
            return f"if ({test}) goto s{step.then}; else goto s{step.otherwise};"
        if isinstance(step, Assign):
            return f"l_{step.local} = {_c(step.value)}; goto s{step.then};"
        if isinstance(step, Rewrite):
            return f"{{ {_rewrite(step)} }} goto s{step.then};"
        if self.placement.homes[step.table] == (SLOW if self.fast else FAST):
            return self._cross(at)
        table = self.program.tables[step.table]
        lines = self._sketch(step, table) if table.kind == "sketch" else self._access(at, step, table)
        return f"{{ {' '.join(lines)} }} goto s{step.then};"

    def _find(self, table: Table, entry: str, key: str) -> str:
        """Return C that looks an entry up."""
        if self.fast:
            return f"struct e_{table.name} *{entry} = bpf_map_lookup_elem(&t_{table.name}, {key});"
        return f"struct v_{table.name} *{entry} = cora_find(&cora_tables[{self.numbers[table.name]}], {key});"

    def _access(self, at: int, step: Access, table: Table) -> list[str]:
        split = self.fast and self.placement.homes[table.name] == SPLIT
        number = self.numbers[table.name]
        lines = [*self._key(step, table), self._find(table, "e", "&k" if self.fast or table.kind == "lpm" else "kw")]
        if split:
            lines.append(f"if (!e) {self._cross(at)}")
        lines.append(f"l_{step.hit} = e != 0; l_{step.full} = 0;")
        if step.create and not split:
            make = f"e = cora_make(&cora_tables[{number}], kw);"
            if self.fast:
                make = (
                    f"struct e_{table.name} fresh; __builtin_memset(&fresh, 0, sizeof fresh); "
                    f"bpf_map_update_elem(&t_{table.name}, &k, &fresh, BPF_NOEXIST); "
                    f"e = bpf_map_lookup_elem(&t_{table.name}, &k);"
                )
            lines.append(f"if (!e) {{ {make} if (!e) l_{step.full} = 1; }}")
        changes = (*step.sets, *step.outs)
        olds = sorted({leaf.name for _, one in changes for leaf in leaves(one) if isinstance(leaf, Old)})
        lines += [f"u64 o_{name} = 0;" for name in olds]
        lines += ["if (e) {", *self._change(at, step, table, olds, split), "} else {", *_outs(step), "}"]
        if step.delete:
            kill = f"remove_key(&cora_tables[{number}], kw);"
            lines.append(f"if (e) {f'bpf_map_delete_elem(&t_{table.name}, &k);' if self.fast else kill}")
        return lines

    def _key(self, step: Access, table: Table) -> list[str]:
        """Return C that makes the key `k`; the slow tier compares keys in whole words, `kw`."""
        values, kind = [_c(value) for value in step.key], f"struct k_{table.name}"
        if table.kind == "lpm":
            return [f"{kind} k = {{ .length = 32, .address = __builtin_bswap32((u32){values[0]}) }};"]
        if self.fast and table.storage == "array":
            return [f"u32 k = {values[0]};"]
        to = "k." if self.fast else "kp->"
        stores = [f"{to}{name} = {value};" for (name, _), value in zip(table.key, values, strict=True)]
        if self.fast:
            return [f"{kind} k; __builtin_memset(&k, 0, sizeof k);", *stores]
        return [f"u64 kw[(sizeof({kind}) + 7) / 8] = {{0}}; {kind} *kp = (void *)kw;", *stores]

    def _change(self, at: int, step: Access, table: Table, olds: list[str], split: bool) -> list[str]:
        """Return C that reads and changes an entry `e`, under its lock where it has one."""
        lock = self.fast and locked(self.program, table, self.placement.homes[table.name])
        value = "e->v." if self.fast else "e->"
        lines = ["bpf_spin_lock(&e->lock);"] if lock else []
        if split:
            lines.append(f"if (e->frozen) {{ bpf_spin_unlock(&e->lock); {self._cross(at)} }} e->hits++;")
        lines += [*(f"o_{name} = {value}{name};" for name in olds), *_outs(step)]
        for name, one in step.sets:
            if self.fast and not lock and atomic(self.program, table) and adds(name, one):
                amount = f"(u{dict(table.value)[name]})({_c(one.args[1])})"  # type: ignore[attr-defined]
                lines.append(f"__sync_fetch_and_add(&{value}{name}, {amount});")
            else:
                lines.append(f"{value}{name} = {_c(one)};")
        if split and step.delete:
            lines.append("e->frozen = 2;")
        return [*lines, "bpf_spin_unlock(&e->lock);"] if lock else lines

    def _sketch(self, step: Access, table: Table) -> list[str]:
        parts = enumerate(zip(step.key, table.key, strict=True))
        lines = [f"u64 q{i} = (u{bits}){_c(one)};" for i, (one, (_, bits)) in parts] + ["u64 o_count = ~0ULL;"]
        cells = [f"e{row}->v.count" if self.fast else f"e{row}->count" for row in range(SKETCH_ROWS)]
        for row, cell in enumerate(cells):
            text = f"{row + 1}ULL"
            for i in range(len(step.key)):
                text = f"cora_mix({text}, q{i})"
            lines.append(f"u32 i{row} = {row * table.entries} + ({text} & 0xffffffffULL) % {table.entries};")
            lines.append(self._find(table, f"e{row}", f"&i{row}"))
            lines.append(f"if (e{row} && {cell} < o_count) o_count = {cell};")
        lines += [f"l_{step.hit} = o_count > 0; l_{step.full} = 0;", *_outs(step)]
        for name, one in step.sets:
            lines.append(f"u64 n_{name} = ({_c(one)}) - o_{name};")
            for row, cell in enumerate(cells):
                add = f"__sync_fetch_and_add(&{cell}, n_{name});" if self.fast else f"{cell} += n_{name};"
                lines.append(f"if (e{row}) {add}")
        return lines


def _outs(step: Access) -> list[str]:
    return [f"l_{name} = {_c(one)};" for name, one in step.outs]


def _has(header: str) -> str:
    protocols, least = HEADERS[header]
    plain = f"cora_has(data, end, {protocols[0] if protocols else 0}, {least})"
    return "cora_has_ports(data, end)" if header == "ports" else plain


def _c(expr: Expr) -> str:
    """Return an expression as C over locals `l_`, old values `o_`, and the packet."""

    def read(leaf: Expr) -> str:
        if isinstance(leaf, FieldOf):
            one = FIELDS[leaf.name]
            if one.offset < 0:
                return "length" if leaf.name == "pkt.len" else "((u64)port)"
            return f"cora_read(data, {one.offset}, {one.bits // 8})"
        if isinstance(leaf, Local | Old):
            return f"{'l' if isinstance(leaf, Local) else 'o'}_{leaf.name}"
        return "now"

    return to_c(expr, read)


def _rewrite(step: Rewrite) -> str:
    lines = [f"u64 r{i} = {_c(value)};" for i, (_, value) in enumerate(step.sets)] + ["u32 ip = 0, l4 = 0, sum;"]
    for i, (name, _) in enumerate(step.sets):
        one = FIELDS[name]
        lines.append(f"sum = cora_write(data, {one.offset}, {one.bits // 8}, r{i});")
        if one.header == "ipv4":
            lines.append("ip += sum;")
        if one.header != "ipv4" or name in {"ip.src", "ip.dst"}:
            lines.append("l4 += sum;")
    return " ".join([*lines, "cora_checksums(data, end, ip, l4);"])
