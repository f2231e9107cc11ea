"""Calibration: micro-programs that measure, on this machine, what each kind of state access costs in each tier.

A micro-program has several variants, chosen by the packet's TOS byte. Variant 0 does nothing, so the difference to it
is the cost of the operation. The kernel replays a trace of packets whose keys spread over a working set.
"""

from __future__ import annotations

import platform
import tempfile
import time
from collections.abc import Callable, Sequence
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
    key = {"array": {"index": 32}, "lpm": {"source": 32}}.get(storage, {"source": 32, "port": 32})
    value = {"count": 64} if storage == "sketch" else {"count": 64, "last": 64}
    preset = [(_key(storage, i), (1, 1)) for i in range(prefixes)] if mode == "read" else []
    table = b.table("state", storage, key=key, value=value, entries=TRACE, preset=preset)
    at: list[Expr] = [SRC] if storage in {"array", "lpm"} else [SRC, field("ip.id")]
    create = storage in {"hash", "lru", "sketch"}
    plus = {"count": old("count") + 1} if storage == "sketch" else {"count": old("count") + 1, "last": SRC}
    needs_lock = {"count": old("count") + 1, "last": maximum(old("last"), SRC)}
    sets: dict[str, Expr | int] = {**(plus if mode == "add" else needs_lock)}
    operations: dict[str, Variant] = {}
    if mode == "read":
        operations["read"] = lambda b: b.lookup(table, at, "count")["count"]
    else:
        operations[mode] = lambda b: b.access(table, at, sets, {"count": old("count")}, create=create)["count"]
    if storage == "hash" and mode == "read":
        operations["miss"] = lambda b: b.lookup(table, [SRC, 77], "count")["count"]
    if storage == "hash" and mode == "write":
        operations["delete"] = lambda b: _then(SRC, b.delete(table, at))
    return _program(b.name, list(operations.values()), b), list(operations)


def _key(storage: str, i: int) -> tuple[int, ...]:
    return {"array": (i,), "lpm": (32, i)}.get(storage, (i, 0))


#: Kinds of tables and modes that are measured.
MICRO = (
    *[(storage, mode) for storage in ("array", "hash") for mode in ("read", "add", "write")],
    ("lru", "read"),
    ("lru", "add"),
    ("sketch", "add"),
)


def _then(value: Expr, _: object) -> Expr:
    return value


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


def _three(b: Build) -> Expr:
    b.rewrite(ip_src=SRC + 1, ip_dst=SRC)
    return SRC


#: Variants of the step program, from 1 on.
_STEPS: dict[str, Variant] = {
    "one": lambda _: SRC,
    "operators": _chain,
    "three": _three,
    "random": lambda b: _fork(b, 1),
    "never": lambda b: _fork(b, 2),
}


def step_program(gate: bool, with_time: bool = False) -> Program:
    """Return a micro-program for steps without tables; its variants are those of `_STEPS`."""
    b = Build(f"micro_steps{'_gate' if gate else ''}{'_time' if with_time else ''}")
    b.parse("ipv4")
    variants = {**_STEPS, "operators": lambda _: now() + SRC} if with_time else _STEPS
    return _program(b.name, list(variants.values()), b, gate)


def _frames(keys: int, variant: int, in_order: bool = False) -> Frames:
    chosen = np.arange(TRACE) % keys if in_order else np.random.default_rng(1).integers(0, keys, TRACE)
    made = []
    for key in np.random.default_rng(5).permutation(TRACE)[:keys].tolist():  # keys lie anywhere in memory
        frame = bytearray(make_frame(key, 7, 1000, 2000, length=96))
        frame[15] = variant
        made.append((bytes(frame), 0))
    return [made[key] for key in chosen.tolist()]


Frames = list[tuple[bytes, int]]


class _Bench:
    """One micro-program in one tier; its traces are measured in turns, so that a disturbance meets all of them."""

    def __init__(self, program: Program, tier: str, directory: Path, traces: int) -> None:
        self.tier = tier
        runtime = directory / "runtime.o"
        if not runtime.exists():
            compile_runtime(directory)
        placement, where = Placement(dict.fromkeys(program.tables, tier)), directory / f"{program.name}_{tier}"
        self.offline = Offline(program, placement, where, trace=TRACE * traces, runtime=runtime)

    def __enter__(self) -> _Bench:
        return self

    def __exit__(self, *_: object) -> None:
        self.offline.close()

    def measure(self, traces: Sequence[Frames], rounds: int = ROUNDS) -> list[float]:
        """Return the least ns per packet of each trace; each of several rounds runs it twice."""
        if self.tier == FAST:
            for number, frames in enumerate(traces):
                self.offline.load_trace(frames, number * TRACE)
            once = [partial(self.offline.replay_fast, TRACE, number * TRACE) for number in range(len(traces))]
        else:
            once = [partial(self.offline.replay_slow, self._handed(frames)) for frames in traces]
        # The first of two runs leaves the trace's own entries in the caches; one round is one run.
        measured = np.array([[min(run() for _ in range(min(2, rounds))) for run in once] for _ in range(rounds)])
        self.spread = float(np.median(measured.std(axis=0) / measured.mean(axis=0)))
        return [float(one) for one in measured.min(axis=0)]

    def _handed(self, frames: Frames) -> bytes:
        """Return frames as handed over; micro-programs hand no locals over, so that one header serves a variant."""
        header = self.offline.hand_over(frames[0][0], 0)[: self.offline.built.hand_bytes]
        return self.offline.slow_trace([header + frame for frame, _ in frames])


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
                with _Bench(program, tier, directory, len(names) * len(WORKING_SETS)) as bench:
                    for name, curve in _curves(bench, storage, names, idle, spreads).items():
                        tables[tier].setdefault(f"{storage}.{name}", curve)
        for tier in () if quick else (FAST, SLOW):
            progress("tables of kind lpm: read")
            tables[tier]["lpm.read"] = _prefix_curve(tier, directory, base[tier] + steps[tier]["rewrite"])
    found = {tier: TierCosts(base[tier], steps[tier], tables[tier]) for tier in (FAST, SLOW)}
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return Costs(when, f"Linux {platform.release()}, {cpu_name()}", found, hand_over, noise=float(np.median(spreads)))


def cpu_name() -> str:
    """Return the CPU's name from /proc/cpuinfo."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _curves(bench: _Bench, storage: str, names: list[str], idle: float, spreads: list[float]) -> dict[str, Curve]:
    numbers = {name: number for number, name in enumerate(names, start=1)}
    found: dict[str, Curve] = {}

    def keep(name: str, keys: Sequence[int], ns: Sequence[float]) -> None:
        found[name] = Curve(tuple(map(float, keys)), tuple(max(0.1, one - idle) for one in ns))

    changing = numbers.get("write", numbers.get("add"))
    if storage in {"hash", "lru"} and changing:  # the first pass over all keys creates every entry
        keep("create", [TRACE], bench.measure([_frames(TRACE, changing, in_order=True)], 1))
    repeated = [name for name in names if name != "delete"]
    traces = [_frames(keys, numbers[name]) for name in repeated for keys in WORKING_SETS]
    best = bench.measure(traces)
    spreads.append(bench.spread)
    for at, name in enumerate(repeated):
        keep(name, WORKING_SETS, best[at * len(WORKING_SETS) : (at + 1) * len(WORKING_SETS)])
    if "delete" in numbers:  # one pass, since each entry can go once
        keep("delete", [TRACE], bench.measure([_frames(TRACE, numbers["delete"], in_order=True)], 1))
    return found


def _prefix_curve(tier: str, directory: Path, idle: float) -> Curve:
    sizes, ns = (1, 16, 512, 8192), []
    for prefixes in sizes:
        with _Bench(table_program("lpm", "read", prefixes)[0], tier, directory, 1) as bench:
            ns.append(max(0.1, bench.measure([_frames(min(512, prefixes), 1)])[0] - idle))
    return Curve(tuple(map(float, sizes)), tuple(ns))


def _measure_steps(directory: Path) -> tuple[dict[str, dict[str, float]], dict[str, float], float]:
    """Return costs of steps and the base cost by tier, and what handing over adds to the fast tier."""
    steps: dict[str, dict[str, float]] = {}
    base: dict[str, float] = {}
    traces = [_frames(TRACE, number) for number in range(len(_STEPS) + 1)]
    for tier in (FAST, SLOW):
        with _Bench(step_program(gate=tier == SLOW), tier, directory, len(traces)) as bench:
            best = dict(zip(["", *_STEPS], bench.measure(traces), strict=True))
        base[tier] = best[""]
        steps[tier] = {
            "rewrite": max(0.1, (best["three"] - best[""]) / 3),
            "op": max(0.05, (best["operators"] - best["one"]) / _CHAIN_OPERATORS),
            "mispredict": max(0.0, best["random"] - best["never"]),
            "now": 0.0,
        }
    with _Bench(step_program(gate=False, with_time=True), FAST, directory, 1) as bench:
        steps[FAST]["now"] = max(0.0, bench.measure(traces[:1])[0] - base[FAST])
    with _Bench(step_program(gate=True), SLOW, directory, 1) as bench:
        bench.tier = FAST  # the fast tier of a program whose packets all cross
        hand_over = max(0.0, bench.measure(traces[:1])[0] - base[FAST])
    return steps, base, hand_over
