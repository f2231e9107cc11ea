"""Speed and memory of reading trace files, beside HTA's loading of the same files in the same run.

`python benchmarks/reading.py [--traces DIRECTORY] [--hta PYTHON] [--megabytes 250] [--large 1000] [--rounds 3]
[--json FILE]`. Eroica reads and summarizes (`eroica.offline.reading.read_one`), HTA only loads (`TraceAnalysis`). Each
reading is a process of its own on one core; seconds are without the start of the interpreter, memory is the process's
peak with it. Pairs follow each other, so a busy machine slows both; the
small file is read five times as often. `--hta` names a Python that can import
`traceinsight` 0.6; without one only Eroica is measured. The files with Python stacks are made here.
"""

import argparse
import gzip
import itertools
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from machine import machine_facts

SELF = Path(__file__).resolve()
REAL = "schemas/df_index_resolver/df_index_resolver.json.gz"
HEAD = """
{
  "schemaVersion": 1,
  "deviceProperties": [
    {
      "id": 0, "name": "NVIDIA A100-SXM4-80GB", "totalGlobalMem": 85049802752, "numSms": 108
    }
  ],
  "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 8, "pg_count": 1, "nccl_version": "2.20.5"},
  "with_stack": 1,
  "traceEvents": [
"""
TAIL = """
  ],
  "traceName": "made.pt.trace.json",
  "displayTimeUnit": "ms",
  "baseTimeNanoseconds": 1790857026000000000
}"""
EVENT = """  {{
    "ph": "X", "cat": "{}", "name": "{}", "pid": {}, "tid": {},
    "ts": {:.3f}, "dur": {:.3f},
    "args": {{
      {}
    }}
  }}"""
FLOW = """  {{
    "ph": "{}", "id": {}, "pid": {}, "tid": {}, "ts": {:.3f},
    "cat": "ac2g", "name": "ac2g"{}
  }}"""


KERNEL = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::{}_functor<float>, at::detail::Array<char*, 2> >()"
)
OPERATOR_SAYS = '"External id": {0},"Record function id": 0, "Sequence number": {0}, "Fwd thread id": 0, "Ev Idx": {0}'
LAUNCH_SAYS = '"External id": {0}, "cbid": 211, "correlation": {0}'
KERNEL_SAYS = (
    '"External id": {0}, "queued": 0, "device": 0, "context": 1,\n      "stream": 7, "correlation": {0},\n'
    '      "registers per thread": 16,\n      "shared memory": 0,\n      "grid": [24, 1, 1],\n'
    '      "block": [128, 1, 1],\n      "est. achieved occupancy %": 18'
)
PYTHON_SAYS = '"Python parent id": {}, "Python id": {}, "Ev Idx": {}'
LEAVES = ("<built-in method linear of type object at 0x7f1e6c0b8b40>", "torch/_jit_internal.py(101): is_scripting")
HOST, STREAM = (4711, 4711), (0, 7)
OPERATORS = ("aten::addmm", "aten::native_layer_norm", "aten::gelu", "aten::add_", "aten::transpose")


class Maker:
    """Writes what Kineto writes of a transformer that is trained with `with_stack=True`; it never ends."""

    def __init__(self, seed: int = 1) -> None:
        self.random = random.Random(seed)
        self.now = self.device_free = 4_348_037_261_692.0
        self.number = 0
        self.host: list[str] = []
        self.python: list[str] = []
        self.device: list[str] = []

    def steps(self) -> Iterator[str]:
        """Events of one training step after another, in Kineto's order: operators, Python, launches and kernels."""
        for step in itertools.count():
            began = self.now
            self.call("train.py(41): train_step", [f"nn.Module: Block_{layer}" for layer in range(24)], 12)
            self.call("torch/_tensor.py(570): backward", ["torch/autograd/graph.py(820): _engine_run_backward"], 8)
            self.call("torch/optim/adamw.py(161): step", [f"torch/optim/adamw.py({line}): f" for line in range(9)], 3)
            marks = ("user_annotation", f"ProfilerStep#{step}", HOST, began, self.now - began, LAUNCH_SAYS.format(step))
            yield from (*self.host, EVENT.format(marks[0], marks[1], *marks[2], *marks[3:]), *self.python, *self.device)
            for events in (self.host, self.python, self.device):
                events.clear()

    def call(self, name: str, children: list[str], depth: int) -> None:
        """A Python function that calls others, and, at the bottom, now and then an operator."""
        began, number = self.now, self.number
        self.number += 1
        self.now += 0.8
        for child in children:
            deeper = [f"torch/nn/modules/module.py({1500 + depth}): _call_impl", *LEAVES] if depth else []
            self.call(child, deeper if child not in LEAVES else [], depth - 1)
        if not children and self.random.random() < 0.25:
            self.operator()
        self.now += 0.5
        told = PYTHON_SAYS.format(number - 1, number, number)
        self.python.append(EVENT.format("python_function", name, *HOST, began, self.now - began, told))

    def operator(self) -> None:
        """An operator with a launch and a kernel."""
        began, number = self.now, self.number
        name = self.random.choice(OPERATORS)
        self.number += 1
        self.now += 4 + 3 * self.random.random()
        start = max(self.device_free, self.now)
        length = 2 + 6 * self.random.random()
        self.device_free = start + length
        said = OPERATOR_SAYS.format(number)
        self.host.append(EVENT.format("cpu_op", name, *HOST, began, self.now - began, said))
        launch = LAUNCH_SAYS.format(number)
        self.device.append(EVENT.format("cuda_runtime", "cudaLaunchKernel", *HOST, began + 2, 1.7, launch))
        self.device.append(FLOW.format("s", number, *HOST, began + 2, ""))
        kernel = KERNEL.format(name[6:])
        self.device.append(EVENT.format("kernel", kernel, *STREAM, start, length, KERNEL_SAYS.format(number)))
        self.device.append(FLOW.format("f", number, *STREAM, start, ', "bp": "e"'))


def make_trace(path: Path, size: int) -> None:
    """A trace of about so many bytes, two thirds of its events Python functions."""
    with path.open("w", encoding="utf-8") as file:
        written = file.write(HEAD)
        for event in Maker().steps():
            written += file.write(event if written == len(HEAD) else ",\n" + event)
            if written > size:
                break
        file.write(TAIL)


# --- one reading, in a process of its own ---


def read_with_eroica(path: Path) -> dict[str, float]:
    import numpy.ma  # noqa: F401  # which NumPy imports when it first needs it: imports are timed for neither

    from eroica.offline.reading import read_one
    from eroica.settings import Settings

    began = time.perf_counter()
    summary = read_one(path, -1, Settings())
    seconds = time.perf_counter() - began
    if summary.error:
        raise SystemExit(summary.error)
    return {"seconds": seconds, "events": summary.events}


def read_with_hta(path: Path) -> dict[str, float]:
    from hta.trace_analysis import TraceAnalysis  # type: ignore[import-not-found]

    began = time.perf_counter()
    analysis = TraceAnalysis(trace_files={0: str(path)})
    return {"seconds": time.perf_counter() - began, "events": len(analysis.t.get_trace(0))}


def measure_one(tool: str, path: Path) -> None:
    found = {"eroica": read_with_eroica, "hta": read_with_hta}[tool](path)
    found["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    print(json.dumps(found))


def run_one(tool: str, python: str, path: Path) -> dict[str, float]:
    command = [python, str(SELF), "--one", tool, str(path)]
    environment = {**os.environ, **dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), "1")}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment, cwd=SELF.parent)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


# --- pairs ---


def compare(name: str, path: Path, size: int, hta: str, rounds: int) -> dict[str, object]:
    """Pairs of readings of one file; medians, and the ratio of each pair."""
    pairs = []
    for _ in range(rounds):
        pair = {"eroica": run_one("eroica", sys.executable, path)}
        if hta:
            pair["hta"] = run_one("hta", hta, path)
        pairs.append(pair)
        print(name, json.dumps(pair), flush=True)
    ours = statistics.median(pair["eroica"]["seconds"] for pair in pairs)
    found = {"file": name, "unpacked_bytes": size, "file_bytes": path.stat().st_size, "pairs": pairs}
    found |= {"eroica_s": ours, "eroica_mb_per_s": size / 1e6 / ours}
    found["eroica_peak_mb"] = max(pair["eroica"]["peak_mb"] for pair in pairs)
    if hta:
        ratios = [pair["hta"]["seconds"] / pair["eroica"]["seconds"] for pair in pairs]
        found |= {"times_faster": statistics.median(ratios), "times_faster_worst": min(ratios)}
        found["share_of_memory"] = max(pair["eroica"]["peak_mb"] / pair["hta"]["peak_mb"] for pair in pairs)
    return found


def unpacked_size(path: Path) -> int:
    with gzip.open(path) as file:
        return sum(len(part) for part in iter(lambda: file.read(1 << 20), b""))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, help=f"folder with {REAL}")
    parser.add_argument("--hta", default="", help="a Python that can import traceinsight 0.6")
    parser.add_argument("--megabytes", type=int, default=250, help="size of the trace with Python stacks, 0 for none")
    parser.add_argument("--large", type=int, default=1000, help="size of the large one, which only Eroica reads")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", nargs=2, metavar=("TOOL", "FILE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        measure_one(arguments.one[0], Path(arguments.one[1]))
        return
    results: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as directory:
        if arguments.traces:
            path = arguments.traces.resolve() / REAL
            results.append(compare("df_index_resolver", path, unpacked_size(path), arguments.hta, 5 * arguments.rounds))
        for size, hta, rounds in ((arguments.megabytes, arguments.hta, arguments.rounds), (arguments.large, "", 1)):
            if size:
                path = Path(directory) / f"stacks_{size}.json"
                make_trace(path, size * 1_000_000)
                results.append(compare(f"{size} MB with Python stacks", path, path.stat().st_size, hta, rounds))
                path.unlink()
    record = {"results": results, "machine": machine_facts()}
    if arguments.json:
        arguments.json.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    for result in results:
        print(json.dumps({key: value for key, value in result.items() if key != "pairs"}, indent=2))


if __name__ == "__main__":
    main()
