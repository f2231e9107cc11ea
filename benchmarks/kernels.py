"""How many events a second the kernels of analysis take, on one core, sorting included.

`python benchmarks/kernels.py [--events 3000000] [--rounds 3] [--json FILE]`. Tables are made by this program: operators
that nest up to twelve deep, kernels on three streams, Python calls up to forty deep (iterations of the same 30,000, and
the worst case: nearly each call a stack of its own). Times are processor time of the best round; memory is what
summarizing took at its peak beyond the table's own columns.
"""

import argparse
import json
import resource
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from eroica.localize.arrivals import read_arrivals
from eroica.localize.fleet import build_fleet
from eroica.model.pattern import CollectiveRecord, FunctionKey, FunctionPattern, WorkerPattern
from eroica.model.series import encode_series
from eroica.model.worker import ProcessGroup, Worker
from eroica.settings import Settings
from eroica.summarize.activity import find_outline, gather_activity
from eroica.summarize.calls import new_trees, read_calls
from eroica.summarize.recorded import summarize_recording
from eroica.summarize.staging import find_critical_path
from eroica.summarize.sweep import Functions, nest
from eroica.summarize.utilization import critical_duration
from eroica.trace.table import Category, EventTable, TraceHeader
from machine import machine_facts

TRAINING, ENGINE = 100, 150
SETTINGS = Settings()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=3_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = {
        "machine": machine_facts(),
        "command": f"python benchmarks/kernels.py --events {options.events} --rounds {options.rounds}",
        "kernels": measure(options.events, options.rounds),
        "peak_resident_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }
    print(json.dumps(results["kernels"], indent=1))
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


def measure(events: int, rounds: int) -> dict[str, dict[str, float]]:
    """Events per second of every kernel."""
    found = {}
    tables = {"operators": host_table, "device": device_table, "calls": call_table, "calls, all different": wild_table}
    for name, make in tables.items():
        table = make(events)
        found[f"critical path ({name})"] = rate(partial(critical_path, table), len(table), rounds)
        whole = rate(partial(summarize_recording, table, name, 0, SETTINGS), len(table), rounds)
        found[f"whole summary ({name})"] = {**whole, "extra_memory_mb": extra_memory_mb(table)}
    calls = call_table(events)
    found["innermost calls"] = rate(lambda: nest(calls.start_ns, calls.end_ns).leaves(), len(calls), rounds)
    use = np.random.default_rng(1).random(events) * (np.random.default_rng(2).random(events) < 0.3)
    found["critical duration (one execution)"] = rate(lambda: critical_duration(use), events, rounds)
    parts = np.array_split(use, max(events // 3000, 1))
    found["critical duration (3,000 samples each)"] = rate(lambda: list(map(critical_duration, parts)), events, rounds)
    patterns = fleet(64, max(events // 64, 1))
    found["arrivals (64 workers)"] = rate(
        lambda: read_arrivals(build_fleet(patterns, SETTINGS)), 64 * max(events // 64, 1), rounds
    )
    return found


def rate(run: Callable[[], object], events: int, rounds: int) -> dict[str, float]:
    best = float("inf")
    for _ in range(rounds):
        began = time.process_time()
        run()
        best = min(best, time.process_time() - began)
    return {"events": events, "seconds": round(best, 4), "million_per_second": round(events / best / 1e6, 2)}


def extra_memory_mb(table: EventTable) -> float:
    tracemalloc.start()
    summarize_recording(table, "memory", 0, SETTINGS)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return round(peak / 1e6, 1)


def critical_path(table: EventTable) -> object:
    """The kernel alone: layers of events, painted over each other."""
    functions = Functions()
    trees, outline = new_trees(functions), find_outline(table, TRAINING)
    nothing = np.empty(0, dtype=np.int64)
    window = (int(table.start_ns[0]), int(table.end_ns.max()))
    activity = gather_activity(table, [], (nothing, nothing), outline, window, functions)
    calls = read_calls(table, outline, window, trees)
    return find_critical_path(activity, None, 1.0, np.array(window), calls)


# --- tables ---


def nested(count: int, depth: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Starts and ends of calls that nest up to a depth, in order of start."""
    random = np.random.default_rng(seed)
    block = 200_000
    made = [_block(random, min(block, count - first), depth) for first in range(0, count, block)]
    starts, ends, offset = [], [], 1_700_000_000_000_000_000
    for start, end in made:
        starts.append(start + offset)
        ends.append(end + offset)
        offset += int(end.max()) + 100
    return np.concatenate(starts), np.concatenate(ends)


def _block(random: np.random.Generator, count: int, depth: int) -> tuple[np.ndarray, np.ndarray]:
    pauses = np.cumsum(random.integers(1, 900, 2 * count)).tolist()
    opens = (random.random(2 * count) < 0.52).tolist()
    start, end, stack = [], [0] * count, []
    for moment, begin in zip(pauses, opens, strict=True):
        if len(start) < count and (not stack or (begin and len(stack) < depth)):
            stack.append(len(start))
            start.append(moment)
        else:
            end[stack.pop()] = moment
        if len(start) == count and not stack:
            break
    return np.array(start, dtype=np.int64), np.array(end, dtype=np.int64)


def _table(columns: list[tuple[np.ndarray, np.ndarray, str, int, int, int]]) -> EventTable:
    """Columns of (start, end, prefix of names, how many names, category, thread) as one table in order."""
    random = np.random.default_rng(3)
    strings: list[str] = []
    name, category, thread = [], [], []
    for start, _, prefix, kinds, kind, owner in columns:
        name.append(random.integers(0, kinds, len(start)) + len(strings))
        strings += [prefix.replace("*", str(number)) for number in range(kinds)]
        category.append(np.full(len(start), kind))
        thread.append(np.full(len(start), owner))
    start, end = (np.concatenate([column[side] for column in columns]) for side in (0, 1))
    order = np.lexsort((-end, start))
    return EventTable(
        strings=tuple(strings),
        name=np.concatenate(name)[order].astype(np.int32),
        category=np.concatenate(category)[order].astype(np.int8),
        thread=np.concatenate(thread)[order].astype(np.int64),
        start_ns=start[order],
        end_ns=end[order],
        header=TraceHeader(rank=0, world_size=1, process_id=TRAINING),
    )


def host_table(count: int) -> EventTable:
    """Operators of a training thread without an accelerator."""
    start, end = nested(count, 12, 1)
    return _table([(start, end, "aten::operator_*", 300, Category.OPERATOR, TRAINING)])


def device_table(count: int) -> EventTable:
    """Operators and launches on two threads, kernels on three streams."""
    part = count // 3
    host, engine = nested(part, 12, 1), nested(part, 12, 2)
    kernels = count - 2 * part
    length = int(host[1].max() - host[0][0])
    columns = [
        (*host, "aten::operator_*", 300, Category.OPERATOR, TRAINING),
        (*engine, "autograd::engine::evaluate_function: *", 80, Category.OPERATOR, ENGINE),
    ]
    random = np.random.default_rng(4)
    for stream in range(3):
        begin = host[0][0] + np.sort(random.integers(0, length, kernels // 3))
        end = begin + random.integers(1, max(2 * length // kernels, 2), len(begin))
        columns.append((begin, end, f"kernel_{stream}_*", 60, Category.KERNEL, 7 + stream))
    return _table(columns)


def call_table(count: int) -> EventTable:
    """Python calls of iterations that are all alike."""
    start, end = nested(30_000, 40, 1)
    once = _table([(start, end, "project/file.py(*): function", 400, Category.PYTHON, TRAINING)])
    times = max(count // len(once), 1)
    shift = np.repeat(np.arange(times) * (int(end.max() - start[0]) + 1000), len(once))
    return replace(
        once,
        name=np.tile(once.name, times),
        category=np.tile(once.category, times),
        thread=np.tile(once.thread, times),
        start_ns=np.tile(once.start_ns, times) + shift,
        end_ns=np.tile(once.end_ns, times) + shift,
    )


def wild_table(count: int) -> EventTable:
    """Python calls at random."""
    start, end = nested(count, 40, 1)
    return _table([(start, end, "project/file.py(*): function", 400, Category.PYTHON, TRAINING)])


def fleet(workers: int, executions: int) -> list[WorkerPattern]:
    """Patterns of workers that share all-reduces, twenty iterations of them."""
    random = np.random.default_rng(5)
    iterations = 20
    group = ProcessGroup(name="0", description="default_pg", ranks=tuple(range(workers)), backend="nccl")
    made = []
    for rank in range(workers):
        duration = random.integers(50, 5000, executions).astype(np.float32)
        record = CollectiveRecord(
            group="0",
            kind="all_reduce",
            paired_by="sequence",
            executions=executions,
            sequence=encode_series(np.arange(executions, dtype=np.int64)),
            iteration=encode_series((np.arange(executions) * iterations // executions).astype(np.int32)),
            duration_us=encode_series(duration),
            critical_us=encode_series(duration / 2),
            elements=encode_series(np.full(executions, 1000, dtype=np.int64)),
        )
        each = np.full(iterations, duration.sum() / iterations, dtype=np.float32)
        made.append(
            WorkerPattern(
                worker=Worker(global_rank=rank, world_size=workers),
                window_id=1,
                first_iteration=0,
                last_iteration=iterations,
                duration_s=float(each.sum()) / 1e6,
                iteration_us=encode_series(each),
                wait_us=encode_series(each / 2),
                functions=(FunctionPattern(key=FunctionKey(kind="compute", name="aten::mm"), beta=0.5),),
                collectives=(record,),
                process_groups=(group,),
            )
        )
    return made


if __name__ == "__main__":
    main()
