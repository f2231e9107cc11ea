"""A folder of traces against its files one by one: `eroica.diagnose(folder)` beside as many single readings.

`python benchmarks/folder.py [--json FILE]`. Makes 64 ranks of 20 MB in a temporary directory. The goal: the folder
takes no more than 1.2 times the time of 64 single files divided by the cores. Single files are read and summarized by
`read_one` in one process, as `eroica diagnose FILE` does, start of the program not counted. Both take turns in one run;
the ratio is the median of the pairs.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from eroica.offline import diagnose
from eroica.offline.reading import cores, read_one
from eroica.settings import Settings
from machine import machine_facts

START_US = 1_700_000_000_000_000.0
STEP_US = 250_000.0
KERNELS = 1_500


def step_events(rank: int, step: int) -> Iterator[dict[str, object]]:
    """One iteration: loader, operators that launch kernels, an all-reduce, the optimizer."""
    at, pid = START_US + step * STEP_US, 1000 + rank

    def event(name: str, category: str, offset: float, length: float, **arguments: object) -> dict[str, object]:
        device = category == "kernel"
        where = {"pid": rank % 8, "tid": arguments["stream"]} if device else {"pid": pid, "tid": pid}
        times = {"ts": round(at + offset, 3), "dur": round(length, 3)}
        return {"ph": "X", "cat": category, "name": name, **where, **times, "args": arguments}

    yield event(f"ProfilerStep#{step + 10}", "user_annotation", 0.0, STEP_US - 20.0)
    loader = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    yield event(loader, "user_annotation", 5.0, 400.0 + 3.0 * rank)
    for number in range(KERNELS):
        begin, layer = 1_000.0 + number * 150.0, number % 37
        shape = [[64, 1024 + layer], [1024 + layer, 4096]]
        yield event(f"aten::linear_{layer}", "cpu_op", begin, 40.0, **{"External id": number, "Input Dims": shape})
        yield event("cudaLaunchKernel", "cuda_runtime", begin + 10.0, 8.0, correlation=number, cbid=211)
        grid = {"stream": 7, "correlation": number, "grid": [128, 4, 1], "block": [256, 1, 1], "device": rank % 8}
        yield event(f"sm90_xmma_gemm_f16_tn_n_tilesize{layer}", "kernel", begin + 25.0, 120.0, **grid)
        if number % 10 == 0:
            said = {"stream": 20, "Collective name": "allreduce", "Process Group Name": "0", "In msg nelems": 4096}
            sequence = {"Seq": step * KERNELS + number, "Group size": 64, "Process Group Ranks": "[0, 1, ..., 63]"}
            yield event("ncclDevKernel_AllReduce_Sum_f16", "kernel", begin + 60.0, 80.0, **said, **sequence)
    yield event("Optimizer.step#AdamW.step", "user_annotation", STEP_US - 8_000.0, 6_000.0)


def write_rank(path: Path, rank: int, world_size: int, size: int) -> None:
    """One rank's trace of about `size` bytes."""
    said = {"backend": "nccl", "rank": rank, "world_size": world_size}
    with path.open("w", encoding="utf-8") as file:
        file.write(f'{{"schemaVersion": 1, "distributedInfo": {json.dumps(said)}, "traceEvents": [\n')
        step = written = 0
        while written < size:
            text = ",\n".join(map(json.dumps, step_events(rank, step)))
            written += file.write((",\n" if step else "") + text)
            step += 1
        file.write("\n]}\n")


def timed_folder(folder: Path) -> float:
    """Seconds for the verdict on all ranks."""
    began = time.perf_counter()
    verdict = diagnose(folder)
    assert verdict.coverage.workers_reported == len(list(folder.iterdir()))
    return time.perf_counter() - began


def timed_files(folder: Path) -> float:
    """Seconds for all files, one after the other, in this process."""
    began = time.perf_counter()
    for path in sorted(folder.iterdir()):
        assert read_one(path, -1, Settings()).pattern is not None
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--megabytes", type=float, default=20.0)
    parser.add_argument("--pairs", type=int, default=3)
    options = parser.parse_args()
    pairs = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "job"
        folder.mkdir()
        for rank in range(options.ranks):
            write_rank(folder / f"rank{rank}_trace.json", rank, options.ranks, int(options.megabytes * 1e6))
        size = sum(path.stat().st_size for path in folder.iterdir())
        timed_files(folder)  # what is read first warms the cache for both
        for _ in range(options.pairs):
            files, together = timed_files(folder), timed_folder(folder)
            pairs.append({"files_s": files, "folder_s": together, "ratio": together / (files / cores())})
            print(f"files {files:6.1f} s   folder {together:6.1f} s   ratio {pairs[-1]['ratio']:.2f}")
    ratio = statistics.median(pair["ratio"] for pair in pairs)
    print(
        f"{options.ranks} ranks, {size / 1e6:.0f} MB, {cores()} cores: {ratio:.2f} times the files divided by the cores"
    )
    if options.json:
        facts = {"ranks": options.ranks, "bytes": size, "cores_used": cores(), "pairs": pairs, "ratio": ratio}
        record = {"machine": machine_facts(), "command": "python benchmarks/folder.py", **facts}
        options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
