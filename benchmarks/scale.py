"""How far localization and the whole chain scale: the rule over a million workers, wire bytes to verdict over 100,000.

`python benchmarks/scale.py [--rule-workers 1000000] [--functions 20] [--workers 1024 10048 100032] [--tail 25]
[--json FILE]`.

Rule: equations 6 to 11 as `eroica.localize.rule` has them, and the paper's text word by word in NumPy (peers drawn for
each worker, maximum normalization, five MADs) in blocks, on the same arrays: functions that vary by 1 to 10 %, some in
two modes, some never sampled, one worker in 10,000 an outlier.

Chain: workers in tensor parallel groups of 8, pipelines of 8 and data parallel groups of the rest, about 100 functions
and 340 executions of collectives each; one worker computes 60 ms an iteration longer and the verdict must name it. With
`--tail 25` each worker has so many call stacks more, of which few others have the same, as sampled stacks do: 228 times
the number of workers to the power 0.36 different ones (measured on jobs of four workers, up to 44 windows).
Making the patterns is not measured; 100,000 workers need 8 GB. Each measurement is a process of its own; `cpu_s` is
processor time of all its threads, `wall_s` the clock's, which other work on the machine makes longer, peak memory is
that of the process.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from zlib_ng import zlib_ng

from eroica.localize.rule import DELTA, MAD_FACTOR, PEERS, peer_distances
from eroica.model.pattern import CollectiveRecord, FunctionKey, FunctionPattern, WorkerPattern
from eroica.model.rows import NUMBERS
from eroica.model.series import encode_series
from eroica.model.window import Window
from eroica.model.worker import Worker
from eroica.pipeline import analyze
from eroica.settings import Settings
from eroica.wire.codec import WireTable, decode_record, pack_rows
from machine import machine_facts

SETTINGS = Settings()
ITERATIONS, TENSOR, PIPELINE, SEGMENTS = 20, 8, 8, 12
#: Noise variants of each kind of worker.
VARIANTS = 16
CHUNK_US, SEGMENT_US, SCATTER_US, NORM_US, TENSOR_US, SEND_US = 2000.0, 20_000.0, 6000.0, 300.0, 250.0, 200.0
DELAY_US = 60_000.0
#: About what all iterations take.
WINDOW_S = 7.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rule-workers", type=int, default=1_000_000)
    parser.add_argument("--functions", type=int, default=20)
    parser.add_argument("--workers", type=int, nargs="*", default=[1024, 10_048])
    parser.add_argument("--tail", type=int, default=0, help="rare call stacks of each worker")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--part", choices=["rule", "literal", "chain"], help="one measurement, as JSON")
    options = parser.parse_args()
    if options.part:
        print(json.dumps(_part(options)))
        return
    shape = ["--rule-workers", str(options.rule_workers), "--functions", str(options.functions)]
    results = {
        "machine": machine_facts(),
        "command": "python benchmarks/scale.py " + " ".join(sys.argv[1:]),
        "rule": {part: _measured(part, shape) for part in ("rule", "literal")} if options.rule_workers else {},
        "chain": [
            _measured("chain", ["--workers", str(count), "--tail", str(options.tail)]) for count in options.workers
        ],
    }
    print(json.dumps({name: results[name] for name in ("rule", "chain")}, indent=1))
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


def _measured(part: str, arguments: Sequence[str]) -> dict[str, object]:
    print(f"{part} {' '.join(arguments)} ...", file=sys.stderr)
    run = subprocess.run(
        [sys.executable, __file__, "--part", part, *arguments], stdout=subprocess.PIPE, check=True, text=True
    )
    found: dict[str, object] = json.loads(run.stdout)
    print(f"  {found}", file=sys.stderr)
    return found


def _part(options: argparse.Namespace) -> dict[str, object]:
    if options.part == "chain":
        return measure_chain(options.workers[0], options.tail)
    return measure_rule(options.part, options.rule_workers, options.functions)


class Clock:
    """Adds up seconds by stage."""

    def __init__(self) -> None:
        self.stages: dict[str, dict[str, float]] = {}

    def time(self, stage: str, run: Callable[[], object]) -> object:
        """Run one stage."""
        wall, cpu = time.perf_counter(), time.process_time()
        result = run()
        spent = self.stages.setdefault(stage, {"wall_s": 0.0, "cpu_s": 0.0})
        spent["wall_s"] = round(spent["wall_s"] + time.perf_counter() - wall, 4)
        spent["cpu_s"] = round(spent["cpu_s"] + time.process_time() - cpu, 4)
        return result


def peak_mb() -> int:
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


# --- the rule ---


def measure_rule(which: str, workers: int, functions: int) -> dict[str, object]:
    pattern, clock = made_behavior(workers, functions), Clock()
    inputs_mb = peak_mb()
    flags = clock.time("all", lambda: (ours if which == "rule" else literal)(pattern))
    return {
        "workers": workers,
        "functions": functions,
        **clock.stages["all"],
        "peak_mb": peak_mb(),
        "peak_with_input_mb": inputs_mb,
        "flagged": int(flags),  # type: ignore[call-overload]
    }


def made_behavior(workers: int, functions: int) -> np.ndarray:
    """(β, μ, σ) float32 [F, W, 3]."""
    random = np.random.default_rng(1)
    pattern = np.empty((functions, workers, 3), dtype=np.float32)
    for function in range(functions):
        noise = 0.01 * (1 + function % 10)
        middle = np.asarray([random.uniform(0.02, 0.3), random.uniform(0.3, 0.95), random.uniform(0.02, 0.2)])
        for axis in range(3):
            column = random.standard_normal(workers, dtype=np.float32)
            column *= np.float32(noise * middle[axis])
            column += np.float32(middle[axis])
            if function % 5 == 3:
                column[workers // 2 :] *= np.float32(0.6)
            pattern[function, :, axis] = np.clip(column, 0.0, 1.0, out=column)
        pattern[function, function::10_000] = (0.6, 0.2, 0.5)
        if function % 7 == 6:
            pattern[function, ::3, 1:] = np.nan
    return pattern


def ours(pattern: np.ndarray) -> int:
    """Distances and flags."""
    roles = np.zeros(pattern.shape[1], dtype=np.intp)
    return sum(int((peer_distances(one, roles)[1] & (one[:, 0] > SETTINGS.beta_gate)).sum()) for one in pattern)


def literal(pattern: np.ndarray, block: int = 50_000) -> int:
    """EROICA, equations 8 to 11, word by word: unknown is 0, peers of its own for each worker."""
    random, flagged = np.random.default_rng(2), 0
    for pattern_W3 in pattern:
        scaled = np.nan_to_num(pattern_W3)
        scaled = scaled / np.maximum(scaled.max(axis=0), np.float32(1e-9))
        delta = np.empty(len(scaled))
        for first in range(0, len(scaled), block):
            own = scaled[first : first + block]
            peers = random.integers(0, len(scaled), (len(own), PEERS))
            distance = np.abs(own[:, None, 0] - scaled[peers, 0])
            for axis in (1, 2):
                distance += np.abs(own[:, None, axis] - scaled[peers, axis])
            delta[first : first + block] = (distance >= DELTA).mean(axis=1)
        middle = np.median(delta)
        spread = np.median(np.abs(delta - middle))
        unlike = delta > middle + MAD_FACTOR * spread
        flagged += int(np.count_nonzero(unlike & (pattern_W3[:, 0] > SETTINGS.beta_gate)))
    return flagged


# --- the chain ---


def measure_chain(workers: int, tail: int) -> dict[str, object]:
    job, clock, patterns, wire_bytes = Job(workers, tail), Clock(), list[WorkerPattern](), 0
    for data in job.wire():
        wire_bytes += len(data)
        patterns.append(clock.time("decode", lambda data=data: decode_record(data, WorkerPattern)))  # type: ignore
    window = Window(window_id=1, purpose="manual", first_iteration=0, last_iteration=ITERATIONS, reason="benchmark")
    verdict = clock.time("analyze", lambda: analyze("scale", window, patterns, settings=SETTINGS))
    found = [(finding.cause, finding.workers) for finding in verdict.findings if finding.role == "cause"]  # type: ignore
    return {
        "workers": workers,
        "tail": tail,
        "wire_mb": round(wire_bytes / 1e6, 1),
        "stages": clock.stages,
        "wall_s": round(sum(stage["wall_s"] for stage in clock.stages.values()), 2),
        "cpu_s": round(sum(stage["cpu_s"] for stage in clock.stages.values()), 2),
        "peak_mb": peak_mb(),
        "slow_worker": job.slow,
        "names_it": bool(found) and tuple(found[0][1]) == (job.slow,),
        "summary": verdict.summary[:300],  # type: ignore[attr-defined]
        "verdict_bytes": len(verdict.to_json()),  # type: ignore[attr-defined]
    }


class Job:
    """Patterns of a job with one slow worker; a few hundred are made, all others are like one of them."""

    def __init__(self, workers: int, tail: int = 0) -> None:
        self.workers = workers
        self.tail = Tail(tail) if tail else None
        self.data = workers // (TENSOR * PIPELINE)
        self.stage_workers = TENSOR * self.data
        self.slow = 3 * self.stage_workers + (self.data // 2) * TENSOR + 5
        self.random = np.random.default_rng(7)
        self._templates: dict[tuple[int, str, int], WorkerPattern] = {}
        #: Of each template: its rows as they travel, and its functions, encoded where they are of no group.
        self._rows: dict[int, WireTable] = {}
        self._keys: dict[int, list[tuple[FunctionKey, bytes | None]]] = {}

    def wire(self) -> Iterator[bytes]:
        """The bytes each worker sends, in the form of `eroica.wire.codec`."""
        for rank in range(self.workers):
            yield zlib_ng.compress(msgspec.msgpack.encode(self.pattern(rank)), 1)

    def pattern(self, rank: int) -> WorkerPattern:
        """What one worker measured; rows that it shares with others are encoded already."""
        stage = rank // self.stage_workers
        like = self._template(stage, self._kind(rank), int(self.random.integers(VARIANTS)))
        groups = self._groups(rank)
        names = {group["description"]: group["name"] for group in groups}
        peers = {"send": rank + self.stage_workers, "recv": rank - self.stage_workers}
        keys = [
            msgspec.msgpack.encode(msgspec.structs.replace(key, group=names[key.group])) if named is None else named
            for key, named in self._keys[id(like)]
        ]
        rows: Any = msgspec.structs.replace(self._rows[id(like)], keys=tuple(keys))
        rows = rows if self.tail is None else self.tail.after(rows, rank)
        records = tuple(
            msgspec.structs.replace(
                record,
                group=names[record.group],
                peers=_all(peers[record.kind], record.executions) if record.kind in peers else b"",
            )
            for record in like.collectives
        )
        return msgspec.structs.replace(
            like,
            worker=Worker(
                global_rank=rank,
                local_rank=rank % 8,
                world_size=self.workers,
                host=f"node-{rank // 8}",
                pid=1000 + rank % 8,
                device=f"cuda:{rank % 8}",
            ),
            functions=rows,
            collectives=records,
            process_groups=groups,  # type: ignore[arg-type]
        )

    def _kind(self, rank: int) -> str:
        if rank == self.slow:
            return "slow"
        if rank // TENSOR == self.slow // TENSOR:
            return "its tensor group"
        return "its stage" if rank // self.stage_workers == self.slow // self.stage_workers else "other"

    def _groups(self, rank: int) -> tuple[dict[str, Any], ...]:
        """Process groups as they travel: first rank, step and count."""
        stage, place = divmod(rank, self.stage_workers)
        lane = place % TENSOR
        tensor_groups = self.workers // TENSOR
        data_groups = TENSOR * PIPELINE
        made = [
            ("default_pg", 0, range(self.workers)),
            ("TENSOR_MODEL_PARALLEL_GROUP", 1 + rank // TENSOR, range(rank - lane, rank - lane + TENSOR)),
            (
                "DATA_PARALLEL_GROUP",
                1 + tensor_groups + stage * TENSOR + lane,
                range(stage * self.stage_workers + lane, (stage + 1) * self.stage_workers, TENSOR),
            ),
            (
                "PIPELINE_MODEL_PARALLEL_GROUP",
                1 + tensor_groups + data_groups + place,
                range(place, self.workers, self.stage_workers),
            ),
        ]
        return tuple(
            {
                "name": str(name),
                "description": text,
                "ranks": (),
                "backend": "nccl",
                "span": (ranks.start, ranks.step, len(ranks)),
            }
            for text, name, ranks in made
        )

    def _template(self, stage: int, kind: str, variant: int) -> WorkerPattern:
        key = stage, kind, variant
        if key not in self._templates:
            made = _template(stage, kind, np.random.default_rng((stage, len(kind), variant)))
            self._rows[id(made)] = rows = pack_rows(made.functions)
            self._keys[id(made)] = [
                (row.key, None if row.key.group else text) for row, text in zip(made.functions, rows.keys, strict=True)
            ]
            self._templates[key] = made
        return self._templates[key]


class Tail:
    """Call stacks that few workers have in common, each a branch of one that somebody had before."""

    def __init__(self, count: int) -> None:
        self.count, self.random = count, np.random.default_rng(11)
        self.stacks: list[tuple[str, ...]] = [tuple(f"step_{at} (package/loop.py:{at})" for at in range(6))]
        self.keys: list[bytes] = [self._key(self.stacks[0])]

    def after(self, rows: WireTable, rank: int) -> WireTable:
        """A worker's rows, and its rare ones after them."""
        while len(self.stacks) < 228 * (rank + 1) ** 0.36:
            stem = self.stacks[int(self.random.integers(len(self.stacks)))]
            stem = stem[: int(self.random.integers(3, len(stem) + 1))]
            leaves = range(int(self.random.integers(1, 5)))
            new = len(self.stacks)
            self.stacks.append((*stem, *(f"call_{new}_{at} (torch/part_{new % 50}.py:{new})" for at in leaves))[:60])
            self.keys.append(self._key(self.stacks[-1]))
        mine = self.random.choice(len(self.stacks), self.count, replace=False)
        seconds = np.minimum(self.random.lognormal(-1.0, 1.0, self.count), 6.0) * 0.002 * WINDOW_S
        tail = {"beta": seconds / WINDOW_S, "critical_s": seconds, "total_s": seconds, "max_s": seconds / 4}
        tail |= {"mu": np.full(self.count, 0.9), "count": np.full(self.count, 3.0)}
        tail |= {name: np.full(self.count, 5.0) for name in ("resource_samples", "active_iterations")}
        columns = [tail.get(name, np.zeros(self.count)) for name in NUMBERS]
        numbers = np.frombuffer(rows.numbers, "<f8").reshape(len(NUMBERS), -1)
        ends = np.frombuffer(rows.ends, "<i8")
        return msgspec.structs.replace(
            rows,
            keys=(*rows.keys, *(self.keys[at] for at in mine)),
            numbers=np.concatenate([numbers, np.asarray(columns)], axis=1).astype("<f8").tobytes(),
            resource=rows.resource + bytes(4 * self.count),
            ends=np.append(ends, np.full(self.count, ends[-1])).astype("<i8").tobytes(),
        )

    @staticmethod
    def _key(stack: tuple[str, ...]) -> bytes:
        return msgspec.msgpack.encode(FunctionKey(kind="python", name=stack[-1].partition(" (")[0], stack=stack))


def _all(value: int, count: int) -> bytes:
    return encode_series(np.full(count, value, dtype=np.int32))


def _template(stage: int, kind: str, random: np.random.Generator) -> WorkerPattern:
    """One worker: events in order on its own clock, its functions, its collectives."""
    slow, line = kind == "slow", Line(random)
    delay = DELAY_US / SEGMENTS
    for _ in range(ITERATIONS):
        if stage:
            line.meet("PIPELINE_MODEL_PARALLEL_GROUP", "recv", SEND_US + stage * CHUNK_US, 1 << 20)
        line.work(CHUNK_US)
        if stage < PIPELINE - 1:
            line.meet("PIPELINE_MODEL_PARALLEL_GROUP", "send", SEND_US, 1 << 20)
        for _ in range(SEGMENTS):
            line.work(SEGMENT_US + delay * slow)
            waits = delay if kind == "its tensor group" else 0.0
            line.meet("TENSOR_MODEL_PARALLEL_GROUP", "all_reduce", TENSOR_US + waits, 1 << 22)
        waits = DELAY_US if kind == "its stage" else 0.0
        line.meet("DATA_PARALLEL_GROUP", "reduce_scatter", SCATTER_US + waits, 1 << 26)
        line.meet("DATA_PARALLEL_GROUP", "all_gather", SCATTER_US, 1 << 24)
        bubble = (PIPELINE - 1 - stage) * CHUNK_US
        line.meet("default_pg", "all_reduce", NORM_US + bubble + (DELAY_US if kind == "other" else 0.0), 1)
        line.end_iteration()
    return line.pattern()


class Line:
    """A worker's main line: work and collectives one after another."""

    def __init__(self, random: np.random.Generator) -> None:
        self.random, self.now, self.began = random, 0.0, 0.0
        self.iteration_us: list[float] = []
        self.waits: list[float] = []
        self.busy: list[float] = []
        self.met: dict[tuple[str, str], list[tuple[int, float, float, int]]] = {}
        self._wait = self._busy = 0.0

    def work(self, time_us: float) -> None:
        """Compute."""
        self.now += time_us
        self._busy += time_us

    def meet(self, group: str, kind: str, duration_us: float, elements: int) -> None:
        """Take part in a collective."""
        duration_us += float(self.random.exponential(3.0))
        self.now += duration_us
        self._wait += duration_us
        met = self.met.setdefault((group, kind), [])
        met.append((len(self.iteration_us), duration_us, self.now, elements))

    def end_iteration(self) -> None:
        """The iteration is over."""
        self.iteration_us.append(self.now - self.began)
        self.waits.append(self._wait)
        self.busy.append(self._busy)
        self.began, self._wait, self._busy = self.now, 0.0, 0.0

    def pattern(self) -> WorkerPattern:
        """All of it."""
        window_s = self.now / 1e6
        rows = [*self._rows(window_s), *self._collective_rows(window_s)]
        return WorkerPattern(
            worker=Worker(global_rank=0),
            window_id=1,
            first_iteration=0,
            last_iteration=ITERATIONS,
            duration_s=window_s,
            iteration_us=_series(self.iteration_us),
            wait_us=_series(self.waits),
            functions=tuple(sorted(rows, key=lambda row: -row.beta)),
            collectives=tuple(_record(group, kind, met) for (group, kind), met in self.met.items()),
            samples_used=500,
            has_accelerator=True,
            host_facts={"cpu_count": 192.0, "run_queue_wait": 0.01, "stopped": 0.0, "throttled": 0.0},
            stall_s=0.1,
            summarize_s=1.0,
            raw_bytes=50_000_000,
        )

    def _rows(self, window_s: float) -> Iterator[FunctionPattern]:
        """Sixty kernels that share the work, all of them slower on the slow worker; thirty stacks."""
        busy = np.asarray(self.busy)
        shares = 1.0 / np.arange(1, 61)
        shares /= shares.sum()
        for at, share in enumerate(shares):
            own = busy * share * np.exp(self.random.normal(0, 0.01))
            key = FunctionKey(
                kind="memory" if at % 10 == 9 else "compute", name=f"kernel_{at}", phase="forward", thread="device"
            )
            yield _row(key, own, window_s, 0.8 + float(self.random.normal(0, 0.01)))
        for at in range(30):
            frames = tuple(
                f"function_{at % 5}_{depth} (package/module_{depth}.py:{100 + depth})" for depth in range(12)
            )
            key = FunctionKey(kind="python", name=f"leaf_{at}", stack=(*frames, f"leaf_{at} (package/leaf.py:{at})"))
            yield _row(key, np.full(ITERATIONS, 0.0), window_s, 0.5, total_us=2000.0)

    def _collective_rows(self, window_s: float) -> Iterator[FunctionPattern]:
        for (group, kind), met in self.met.items():
            times = np.zeros(ITERATIONS)
            np.add.at(times, [one[0] for one in met], [one[1] for one in met])
            key = FunctionKey(kind="collective", name=f"nccl:{kind}", thread="collective", group=group)
            yield _row(key, times, window_s, 0.5, count=len(met))


def _row(
    key: FunctionKey, time_I: np.ndarray, window_s: float, use: float, total_us: float = 0.0, count: int = 0
) -> FunctionPattern:
    seconds = float(time_I.sum()) / 1e6
    return FunctionPattern(
        key=key,
        beta=seconds / window_s,
        mu=min(use, 1.0),
        sigma=0.05,
        resource="sm",
        resource_samples=40,
        critical_s=seconds,
        total_s=max(seconds, total_us / 1e6),
        count=count or ITERATIONS * SEGMENTS,
        max_s=float(time_I.max()) / 1e6,
        active_iterations=int(np.count_nonzero(time_I)),
        per_iteration_us=_series(time_I) if seconds else b"",
    )


def _record(group: str, kind: str, met: Sequence[tuple[int, float, float, int]]) -> CollectiveRecord:
    iteration, duration, end, elements = zip(*met, strict=True)
    return CollectiveRecord(
        group=group,
        kind=kind,
        paired_by="sequence",
        executions=len(met),
        sequence=encode_series(np.arange(len(met), dtype=np.int64)),
        iteration=encode_series(np.asarray(iteration, dtype=np.int32)),
        duration_us=_series(duration),
        critical_us=_series(duration),
        elements=encode_series(np.asarray(elements, dtype=np.int64)),
        end_us=encode_series(np.asarray(end, dtype=np.float64)),
    )


def _series(values: Sequence[float] | np.ndarray) -> bytes:
    return encode_series(np.asarray(values, dtype=np.float32))


if __name__ == "__main__":
    main()
