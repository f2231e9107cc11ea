"""Calibration: micro-programs that measure, on this machine, what each kind of state access costs in each tier.

A micro-program has several variants, chosen by the packet's TOS byte. Variant 0 does nothing, so the difference to it
is the cost of the operation. The kernel replays a trace of packets whose keys spread over a working set.
"""

from __future__ import annotations

import platform
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np

from cora.build import compile_runtime
from cora.expressions import Expr, Local, field, hash_of, maximum, now, old, select
from cora.machine import Costs, Curve, TierCosts
from cora.offline import Offline
from cora.packet import make_frame
from cora.placement import FAST, SLOW, Placement
from cora.program import Build, Program

TRACE = 32768
WORKING_SETS = (16, 512, 4096, 32768)
ROUNDS = 8
SRC, TOS = field("ip.src"), field("ip.tos")
Variant = Callable[[Build], Expr]


def _program(name: str, variants: Sequence[Variant], b: Build, gate: bool = False) -> Program:
    """Finish a micro-program: each variant computes a value, which the packet's TTL takes; variant 0 stores nothing.

    With a gate, packets cross to the slow tier before the variants, at the cheapest table operation there.
    """
    if gate:
        b.lookup(b.table("gate", "array", entries=1), [0])
    for number, variant in enumerate(variants, start=1):
        with b.when(TOS.eq(number)):
            b.rewrite(ip_ttl=variant(b))
            b.forward()
    b.forward()
    return b.done()


def table_program(storage: str, mode: str, prefixes: int = TRACE) -> tuple[Program, list[str]]:
    """Return a micro-program for a kind of table, and the operation of each variant from 1 on.

    Args:
        storage: Kind of map.
        prefixes: Entries of an LPM table, whose cost depends on them rather than on the keys that are looked up.
        mode: "read" for a table that no step changes, "add" for one that changes without a lock, "write" otherwise.
    """
    b = Build(f"micro_{storage}_{mode}_{prefixes}")
    b.parse("ipv4")
    sketch, two = storage == "sketch", storage in {"hash", "lru", "sketch"}
    at: list[Expr] = [SRC, field("ip.id")] if two else [SRC]
    preset = [(((32, i) if storage == "lpm" else (i, 0) if two else (i,)), (1, 1)) for i in range(prefixes)]
    table = b.table(
        "state",
        storage,
        key={"source": 32, "port": 32} if two else {"source": 32},
        value={"count": 64} if sketch else {"count": 64, "last": 64},
        entries=TRACE,
        preset=preset if mode == "read" else (),
    )
    if mode == "read":
        operations: dict[str, Variant] = {"read": lambda b: b.lookup(table, at, "count")["count"]}
        if storage == "hash":
            operations["miss"] = lambda b: b.lookup(table, [SRC, 77], "count")["count"]
    else:
        sets = {"count": old("count") + 1}
        if not sketch:
            sets["last"] = SRC if mode == "add" else maximum(old("last"), SRC)  # a maximum needs the lock
        operations = {mode: lambda b: b.access(table, at, sets, {"count": old("count")}, create=two)["count"]}
        if storage == "hash" and mode == "write":
            operations["delete"] = lambda b: (b.delete(table, at), SRC)[1]
    return _program(b.name, list(operations.values()), b), list(operations)


#: Kinds of tables and modes that are measured.
MICRO = (
    *[(storage, mode) for storage in ("array", "hash") for mode in ("read", "add", "write")],
    ("lru", "read"),
    ("lru", "add"),
    ("sketch", "add"),
)


def _chain(b: Build) -> Expr:
    value: Expr = SRC
    for number in range(1, 17):
        following = (value ^ (value >> 3)) + number if number % 2 else select(value > number, value - 1, value)
        value = b.assign(f"stage{number}", following)
    return value


#: Operators in `_chain`, with those that its assignments count as.
_CHAIN_OPERATORS = 8 * 3 + 8 * 3 + 16


def _fork(b: Build, wanted: int) -> Expr:
    """Take a branch on one bit of a hash: at random for 1, never for 2."""
    b.assign("taken", 0)
    with b.when((hash_of(SRC) & 1).eq(wanted)):
        b.assign("taken", SRC)
        b.rewrite(ip_ttl=Local("taken"))
        b.forward()
    return SRC


#: Variants of the step program, from 1 on.
_STEPS: dict[str, Variant] = {
    "one": lambda _: SRC,
    "operators": _chain,
    "three": lambda b: (b.rewrite(ip_src=SRC + 1, ip_dst=SRC), SRC)[1],  # type: ignore[func-returns-value]
    "random": lambda b: _fork(b, 1),
    "never": lambda b: _fork(b, 2),
}


def step_program(gate: bool, with_time: bool = False) -> Program:
    """Return a micro-program for steps without tables; its variants are those of `_STEPS`."""
    b = Build(f"micro_steps{'_gate' if gate else ''}{'_time' if with_time else ''}")
    b.parse("ipv4")
    variants = {**_STEPS, "operators": lambda _: now() + SRC} if with_time else _STEPS
    return _program(b.name, list(variants.values()), b, gate)


Frames = list[tuple[bytes, int]]


def _frames(keys: int, variant: int, in_order: bool = False) -> Frames:
    chosen = np.arange(TRACE) % keys if in_order else np.random.default_rng(1).integers(0, keys, TRACE)
    made = []
    for key in np.random.default_rng(5).permutation(TRACE)[:keys].tolist():  # keys lie anywhere in memory
        frame = bytearray(make_frame(key, 7, 1000, 2000, length=96))
        frame[15] = variant
        made.append((bytes(frame), 0))
    return [made[key] for key in chosen.tolist()]


@contextmanager
def _loaded(program: Program, tier: str, directory: Path, traces: int = 1) -> Iterator[Offline]:
    """Load a micro-program whose tables are all in one tier, with room for traces."""
    runtime = directory / "runtime.o"
    if not runtime.exists():
        compile_runtime(directory)
    placement, where = Placement(dict.fromkeys(program.tables, tier)), directory / f"{program.name}_{tier}"
    with Offline(program, placement, where, TRACE * traces, runtime) as tiers:
        yield tiers


def _measure(tiers: Offline, tier: str, traces: Sequence[Frames], rounds: int = ROUNDS) -> tuple[list[float], float]:
    """Return the least ns per packet of each trace, and the relative spread of rounds.

    The traces are measured in turns, so that a disturbance meets all of them.
    """
    if tier == FAST:
        for number, frames in enumerate(traces):
            tiers.load_trace(frames, number * TRACE)
        once = [partial(tiers.replay_fast, TRACE, number * TRACE) for number in range(len(traces))]
    else:
        handed = [tiers.slow_trace([frame for frame, _ in frames]) for frames in traces]
        once = [partial(tiers.replay_slow, trace) for trace in handed]
    # The first of two runs leaves the trace's own entries in the caches; one round is one run.
    measured = np.array([[min(run() for _ in range(min(2, rounds))) for run in once] for _ in range(rounds)])
    return measured.min(axis=0).tolist(), float(np.median(measured.std(axis=0) / measured.mean(axis=0)))


def calibrate(progress: Callable[[str], None] = lambda _: None, quick: bool = False) -> Costs:
    """Measure all coefficients, in about a minute; `quick` leaves out LPM and LRU tables and takes a third."""
    tables: dict[str, dict[str, Curve]] = {FAST: {}, SLOW: {}}
    spreads: list[float] = []
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        progress("steps without tables")
        steps, base, hand_over = _measure_steps(directory)
        for storage, mode in MICRO[:6] if quick else MICRO:
            progress(f"tables of kind {storage}: {mode}")
            program, names = table_program(storage, mode)
            for tier in (FAST, SLOW):
                # Variants store the TTL; what that costs is no part of the table's cost.
                idle = base[tier] + steps[tier]["rewrite"]
                with _loaded(program, tier, directory, len(names) * len(WORKING_SETS)) as tiers:
                    found, spread = _curves(tiers, tier, storage, names, idle)
                spreads.append(spread)
                tables[tier] = {f"{storage}.{name}": curve for name, curve in found.items()} | tables[tier]
        for tier in () if quick else (FAST, SLOW):
            progress("tables of kind lpm: read")
            tables[tier]["lpm.read"] = _prefix_curve(tier, directory, base[tier] + steps[tier]["rewrite"])
    costs = {tier: TierCosts(base[tier], steps[tier], tables[tier]) for tier in (FAST, SLOW)}
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return Costs(when, f"Linux {platform.release()}, {cpu_name()}", costs, hand_over, noise=float(np.median(spreads)))


def cpu_name() -> str:
    """Return the CPU's name from /proc/cpuinfo."""
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    return found[1] if found else platform.machine()


def _curve(keys: Sequence[int], ns: Sequence[float], idle: float) -> Curve:
    return Curve(tuple(map(float, keys)), tuple(max(0.1, one - idle) for one in ns))


def _curves(tiers: Offline, tier: str, storage: str, names: list[str], idle: float) -> tuple[dict[str, Curve], float]:
    """Return the curve of each operation, and the spread of rounds."""
    numbers, found = {name: number for number, name in enumerate(names, start=1)}, dict[str, Curve]()
    changing = numbers.get("write", numbers.get("add"))
    if storage in {"hash", "lru"} and changing:  # the first pass over all keys creates every entry
        found["create"] = _curve([TRACE], _measure(tiers, tier, [_frames(TRACE, changing, in_order=True)], 1)[0], idle)
    repeated = [name for name in names if name != "delete"]
    traces = [_frames(keys, numbers[name]) for name in repeated for keys in WORKING_SETS]
    best, spread = _measure(tiers, tier, traces)
    for name, ns in zip(repeated, np.reshape(best, (len(repeated), -1)).tolist(), strict=True):
        found[name] = _curve(WORKING_SETS, ns, idle)
    if number := numbers.get("delete"):  # one pass, since each entry can go once
        found["delete"] = _curve([TRACE], _measure(tiers, tier, [_frames(TRACE, number, in_order=True)], 1)[0], idle)
    return found, spread


def _prefix_curve(tier: str, directory: Path, idle: float) -> Curve:
    sizes, ns = (1, 16, 512, 8192), list[float]()
    for prefixes in sizes:
        with _loaded(table_program("lpm", "read", prefixes)[0], tier, directory) as tiers:
            ns += _measure(tiers, tier, [_frames(min(512, prefixes), 1)])[0]
    return _curve(sizes, ns, idle)


def _measure_steps(directory: Path) -> tuple[dict[str, dict[str, float]], dict[str, float], float]:
    """Return costs of steps and the base cost by tier, and what handing over adds to the fast tier."""
    steps: dict[str, dict[str, float]] = {}
    base: dict[str, float] = {}
    traces = [_frames(TRACE, number) for number in range(len(_STEPS) + 1)]
    for tier in (FAST, SLOW):
        with _loaded(step_program(gate=tier == SLOW), tier, directory, len(traces)) as tiers:
            best = dict(zip(["", *_STEPS], _measure(tiers, tier, traces)[0], strict=True))
        base[tier] = best[""]
        steps[tier] = {
            "rewrite": max(0.1, (best["three"] - best[""]) / 3),
            "op": max(0.05, (best["operators"] - best["one"]) / _CHAIN_OPERATORS),
            "mispredict": max(0.0, best["random"] - best["never"]),
            "now": 0.0,
        }
    with _loaded(step_program(gate=False, with_time=True), FAST, directory) as tiers:
        steps[FAST]["now"] = max(0.0, _measure(tiers, FAST, traces[:1])[0][0] - base[FAST])
    with _loaded(step_program(gate=True), SLOW, directory) as tiers:  # the fast tier of packets that all cross
        hand_over = max(0.0, _measure(tiers, FAST, traces[:1])[0][0] - base[FAST])
    return steps, base, hand_over
