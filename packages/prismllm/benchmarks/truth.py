"""The same script run for real and rehearsed: iteration time, peak memory, faults.

    python benchmarks/truth.py --json benchmarks/results/truth.json [--case dp4]
    python benchmarks/truth.py --hangs --json benchmarks/results/hangs.json

Every rank really runs in the reference, as a process with gloo. Compute is paced (each block sleeps until its time is
over), so that many ranks are an honest reference on few cores; what is not paced, communication above all, still
contends there. Where it is allowed, the ranks of the reference run with real-time priority, so that their waking does
not depend on what else this machine does; measure the costs in the same way (`chrt --rr 1 prismllm measure`). `--plain`
leaves that out. From each iteration of the reference, the longest time is taken in which the thread of a rank was ready
and no core was free, as captures do. Each record has that time, and the share of the cores that other programs used.

Cases of `models.py` are not paced, so they need as many cores as ranks.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import click

from prismllm import Rehearsal, examples
from prismllm.capture import CaptureOptions
from prismllm.costs import Costs, read_costs
from prismllm.measure import measure
from prismllm.rank_classes import capture_job

GPT = str(Path(examples.__file__).parent / "gpt.py")
SMALL = ("--width", "32", "--length", "16", "--batch", "1", "--vocabulary", "64", "--layers", "2", "--iterations", "9")
CASES: dict[str, tuple[int, tuple[str, ...], str, str]] = {
    "dp2": (2, ("--microbatches", "4"), "", ""),
    "fsdp2": (2, ("--data", "fsdp", "--microbatches", "4"), "", ""),
    "tp2": (2, ("--tp", "2", "--data", "mean", "--microbatches", "4"), "", ""),
    "pp2": (2, ("--pp", "2", "--microbatches", "4"), "", ""),
    "dp4": (4, ("--microbatches", "4"), "", ""),
    "dp4 accumulate": (4, ("--microbatches", "4", "--accumulate", "4"), "", ""),
    "fsdp4": (4, ("--data", "fsdp", "--microbatches", "4"), "", ""),
    "pp2 dp2": (4, ("--pp", "2", "--microbatches", "4"), "", ""),
    "pp2 dp2 uneven": (4, ("--pp", "2", "--microbatches", "4", "--uneven", "1"), "", ""),
    "tp2 dp2": (4, ("--tp", "2", "--data", "mean", "--microbatches", "4"), "", ""),
    "dp2 pp2 tp2": (8, ("--pp", "2", "--tp", "2", "--microbatches", "4"), "", ""),
    "dp4 slow": (4, ("--microbatches", "4"), "1:1.5", "slow rank=1 by=1.5"),
    "pp2 dp2 slow": (4, ("--pp", "2", "--microbatches", "4"), "3:1.5", "slow rank=3 by=1.5"),
    "dp16": (16, ("--microbatches", "4"), "", ""),
    "dp8 pp2": (16, ("--pp", "2", "--microbatches", "4"), "", ""),
    "dp4 pp2 tp2": (16, ("--pp", "2", "--tp", "2", "--microbatches", "4"), "", ""),
    "dp32": (32, ("--microbatches", "4"), "", ""),
    "dp16 pp2": (32, ("--pp", "2", "--microbatches", "4"), "", ""),
}
#: Cases of models.py, which are not paced: ranks and arguments.
MODELS: dict[str, tuple[int, tuple[str, ...]]] = {
    f"{model} {rows}": (2, ("--model", model, "--rows", str(rows)))
    for model, several in {"resnet": (1, 4, 16), "bert": (1, 4, 16), "experts": (1, 4, 16)}.items()
    for rows in several
}
#: Layout, and calls (rank, number in the iteration) that are never made.
HANGS: dict[str, tuple[int, tuple[str, ...], tuple[tuple[int, int], ...]]] = {
    "dp4": (4, ("--data", "mean", "--microbatches", "4"), ((2, 0),)),
    "pp2 dp2": (4, ("--pp", "2", "--microbatches", "4"), ((1, 0), (0, 3), (3, 6), (2, 8))),
}
HANGS_FROM = 3
WARMUP = 2
PACE_S = 0.12


def run_for_real(world: int, script: tuple[str, ...], hang: str = "", *, is_urgent: bool) -> list[dict[str, Any]]:
    """Run all ranks; return each one's peak memory and the ends of its iterations, or the call in which it hangs."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--real", f"{world}", folder, *script]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "TRUTH_HANG": hang,
                       "TRUTH_URGENT": "1" if is_urgent else ""}  # fmt: skip
        subprocess.run(command, env=environment, check=True, timeout=240, stderr=subprocess.DEVNULL)
        return [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(world)]


def real_ranks(world: int, folder: str, script: list[str]) -> None:
    """Fork all ranks, so that torch is imported once."""
    import torch
    import torch.distributed.fsdp
    import torch.distributed.pipelining
    import torch.distributed.tensor.parallel  # noqa: F401

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = []
    for rank in range(world):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank), MASTER_PORT=str(port),
                                  LOCAL_WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1")  # fmt: skip
                _real_rank(rank, Path(folder), script)
                status = 0
            finally:
                os._exit(status)
        children.append(pid)
    if os.environ["TRUTH_HANG"]:
        _wait_until_all_stand(Path(folder), world)
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        return
    if any(os.waitpid(pid, 0)[1] for pid in children):
        raise SystemExit("a rank of the reference failed")


def _wait_until_all_stand(folder: Path, world: int, still_s: float = 5.0) -> None:
    """Until no rank has entered or left a call for so long."""
    known, since, until = "", time.monotonic(), time.monotonic() + 120
    while time.monotonic() - since < still_s or known.count("{") < world:
        if time.monotonic() > until:
            raise SystemExit("the reference does not stand still")
        time.sleep(0.1)
        now = "".join(path.read_text() for path in sorted(folder.glob("*.json")))
        if now != known:
            known, since = now, time.monotonic()


class Stand:
    """Writes down where this rank is, and never makes one call.

    It sees what the script and torch's schedules call in Python: isend, irecv, all_reduce.

    Args:
        path: File: iteration, and the number of the call that the rank is in, -1 in none.
        hang: "rank:iteration:number" of the call that is never made.
        rank: This one.
    """

    def __init__(self, path: Path, hang: str, rank: int) -> None:
        self.path, self.iteration, self.number = path, 0, -1
        who, *self.never = map(int, hang.split(":"))
        self.hangs = who == rank

    def note(self, number: int) -> None:
        """The rank is in this call now."""
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps({"iteration": self.iteration, "call": number}))
        part.replace(self.path)

    def stepped(self) -> None:
        """The optimizer has stepped."""
        self.iteration, self.number = self.iteration + 1, -1
        self.note(-1)

    def watch(self, module: Any, name: str) -> None:
        """Calls of this name go through here."""
        plain = getattr(module.distributed_c10d, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            self.number += 1
            number = self.number
            if self.hangs and [self.iteration, number] == self.never:
                self.note(number)
                time.sleep(1e6)
            if name in ("isend", "irecv"):
                return Waiting(plain(*args, **kwargs), lambda: self.note(number), lambda: self.note(-1))
            self.note(number)
            result = plain(*args, **kwargs)
            self.note(-1)
            return result

        setattr(module.distributed_c10d, name, call)
        setattr(module, name, call)


class Waiting:
    """A work that says when it is waited for."""

    def __init__(self, work: Any, before: Any, after: Any) -> None:
        self.work, self.before, self.after = work, before, after

    def wait(self) -> None:
        """As the work's own."""
        self.before()
        self.work.wait()
        self.after()


def peak_bytes(profiler: Any) -> int:
    """Most memory in use at any time, without what gloo allocates for itself, inside a call or on its threads.

    Gloo clones in a call what it reduces and scatters, and frees the clone later: what was not counted when it came
    must not be when it goes, so blocks are told apart by their addresses.
    """
    from prismllm.session import memory_events

    events = list(profiler.kineto_results.events())
    calls = sorted((one.start_ns(), one.start_ns() + one.duration_ns()) for one in events
                   if one.name().startswith("c10d::"))  # fmt: skip
    main = {one.start_thread_id() for one in events if one.name().startswith("Optimizer.step")}
    held: dict[int, int] = {}
    now = most = at = 0
    for event in memory_events(profiler):
        when, block = event.start_time_ns, event.extra_fields
        now -= held.pop(block.ptr, 0)  # freed, or gone without the profiler's seeing it
        while at < len(calls) and calls[at][1] < when:
            at += 1
        if block.alloc_size > 0 and event.start_tid in main and (at == len(calls) or when < calls[at][0]):
            held[block.ptr] = block.alloc_size
            now += block.alloc_size
            most = max(most, now)
    return most


def _real_rank(rank: int, folder: Path, script: list[str]) -> None:
    import torch

    torch.set_num_threads(1)
    with contextlib.suppress(PermissionError):  # ranks mostly sleep; who else runs here must not delay their waking
        if os.environ["TRUTH_URGENT"]:
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    if os.environ["TRUTH_HANG"]:
        _stand(rank, folder, script)
    peak, ends, waits = run_measured(script)
    (folder / f"{rank}.json").write_text(json.dumps({"peak": peak, "ends": ends, "waits": waits}))


def _stand(rank: int, folder: Path, script: list[str]) -> None:
    """Run the script until it hangs; it never comes back."""
    import runpy

    import torch.distributed as dist
    from torch.optim.optimizer import register_optimizer_step_post_hook

    stand = Stand(folder / f"{rank}.json", os.environ["TRUTH_HANG"], rank)
    for name in ("isend", "irecv", "all_reduce"):
        stand.watch(dist, name)
    register_optimizer_step_post_hook(lambda *_: stand.stepped())
    sys.argv = script
    runpy.run_path(script[0], run_name="__main__")


def run_measured(script: list[str]) -> tuple[int, list[float], list[float]]:
    """Run a script in this process.

    Returns:
        Peak memory while it warms up, bytes; when its optimizer stepped, and how long this thread had waited for a core
        until then, seconds.
    """
    import runpy

    from torch.autograd.profiler import profile
    from torch.optim.optimizer import register_optimizer_step_post_hook

    profiler = profile(use_cpu=True, record_shapes=True, profile_memory=True)
    ends: list[float] = []
    waits: list[float] = []
    peak = 0

    def after(*_: object) -> None:
        nonlocal peak
        ends.append(time.monotonic())
        waits.append(int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9)
        if len(ends) == WARMUP + 1:
            profiler.__exit__(None, None, None)
            peak = peak_bytes(profiler)

    register_optimizer_step_post_hook(after)
    sys.argv = script
    profiler.__enter__()
    runpy.run_path(script[0], run_name="__main__")
    return peak, ends, waits


def iteration_seconds(said: list[dict[str, Any]]) -> tuple[list[float], list[float]]:
    """Measure the iterations after the profiled ones, from one end of the last rank to the next.

    Returns:
        Seconds of each iteration, and seconds in which that rank waited for a core which waited longest.
    """
    ends = [max(column) for column in zip(*(one["ends"] for one in said), strict=True)][WARMUP + 1 :]
    waits = [[b - a for a, b in pairwise(one["waits"][WARMUP + 1 :])] for one in said]
    return [b - a for a, b in pairwise(ends)], [max(column) for column in zip(*waits, strict=True)]


def measure_case(
    name: str, costs: Costs, pace: float, slice_size: int, is_urgent: bool, keep_in: Path
) -> dict[str, Any]:
    """Return truth, prediction and errors of one case, captured by slices of so many ranks; 0: all at once."""
    if name in MODELS:
        (world, arguments), slow, change, pace = MODELS[name], "", "", 0.0
        script = str(Path(__file__).parent / "models.py")
    else:
        world, layout, slow, change = CASES[name]
        arguments, script = (*SMALL, *layout, "--pace", str(pace)), GPT
    begun, busy, own = time.monotonic(), busy_s(), children_s()
    said = run_for_real(world, (script, *arguments, *(("--slow", slow) if slow else ())), is_urgent=is_urgent)
    others = (busy_s() - busy - children_s() + own) / (time.monotonic() - begun) / (os.cpu_count() or 1)
    whole, waited = iteration_seconds(said)
    truth = [seconds - wait for seconds, wait in zip(whole, waited, strict=True)]
    options = CaptureOptions(
        (script, *arguments),
        world,
        keep_in / name.replace(" ", "-"),
        slice_size=slice_size or world,
        timed=5,
    )
    begun = time.monotonic()
    job = capture_job(options)
    captured_s = time.monotonic() - begun
    prediction = Rehearsal(job, costs).predict(*([change] if change else []))
    real = statistics.median(truth)
    memory = [abs(job.classes[job.class_of[rank]].peak_bytes / one["peak"] - 1) for rank, one in enumerate(said)]
    least = [min(one["peak"] for rank, one in enumerate(said) if job.class_of[rank] == number)
             for number in range(len(job.classes))]  # fmt: skip
    of_classes = [abs(rank_class.peak_bytes / peak - 1) for rank_class, peak in zip(job.classes, least, strict=True)]
    return {
        "case": name, "ranks": world, "pace_s": pace, "real_s": real, "real_all_s": truth, "waited_s": waited,
        "predicted_s": prediction.seconds, "low_s": prediction.low, "high_s": prediction.high,
        "error": prediction.seconds / real - 1, "memory_error_worst": max(memory),
        "memory_error_kinds": max(of_classes), "capture_s": captured_s, "slice": slice_size or world,
        "ran": sum(len(rank_class.ran) for rank_class in job.classes),
        "load": os.getloadavg()[0], "others": others, "is_urgent": is_urgent,
    }  # fmt: skip


def busy_s() -> float:
    """Return the seconds that all cores have worked since the machine started."""
    user, nice, system, _, _, irq, soft, steal, *_ = map(int, Path("/proc/stat").read_text().split()[1:11])
    return (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")


def children_s() -> float:
    """Return the seconds that processes started here and ended have worked."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure_hangs(name: str, pace: float, is_urgent: bool) -> Iterator[dict[str, Any]]:
    """Where everybody stands when one call is never made: for real, and predicted."""
    world, layout, calls = HANGS[name]
    arguments = (*SMALL, *layout, "--pace", str(pace))
    with tempfile.TemporaryDirectory() as folder:
        job = capture_job(CaptureOptions((GPT, *arguments), world, Path(folder) / "c", slice_size=world, timed=2))
    for rank, op in calls:
        said = run_for_real(world, (GPT, *arguments), f"{rank}:{HANGS_FROM}:{op}", is_urgent=is_urgent)
        real = {at: one["call"] for at, one in enumerate(said) if one["iteration"] == HANGS_FROM}
        prediction = Rehearsal(job).predict(f"hang rank={rank} op={op} from={HANGS_FROM}")
        predicted = {one.rank: one.op for one in prediction.blocked}
        row = {"case": name, "rank": rank, "op": op, "call": prediction.blocked[0].call, "real": real,
               "real_later": {at: one for at, one in enumerate(said) if one["iteration"] != HANGS_FROM},
               "predicted": dict(sorted(predicted.items())), "is_equal": real == predicted}  # fmt: skip
        print(f"{name:10} rank {rank} never makes call {op}  real {real}  predicted {row['predicted']}  "
              f"{'equal' if row['is_equal'] else 'DIFFERENT'}", flush=True)  # fmt: skip
        yield row


def costs_for(world: int, folder: Path) -> Costs:
    """Costs of groups of 2, 4 and more among so many ranks, all of which call at the same time; measured once."""
    path = folder / f"costs{world}.json"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        measure([size for size in (2, 4, 8, 16, 32) if size <= world], path, world=world)
    return read_costs(path)


@click.command()
@click.option("--json", "out", type=click.Path(path_type=Path))
@click.option("--case", "cases", multiple=True, help="only these")
@click.option("--pace", default=PACE_S, show_default=True, help="seconds of a block's forward pass; 0 for unpaced")
@click.option(
    "--costs",
    type=click.Path(path_type=Path),
    default=Path("/tmp/prismllm-costs"),
    show_default=True,
    help="directory of measured costs; measured where they are missing",
)
@click.option("--slice", "slice_size", type=int, default=0, help="ranks that are captured at the same time; 0: all")
@click.option("--plain", is_flag=True, help="no real-time priority")
@click.option("--keep", "keep_in", type=click.Path(path_type=Path), default=Path("/tmp/prismllm-truth"),
              show_default=True, help="directory where captures stay")  # fmt: skip
@click.option("--hangs", is_flag=True, help="where ranks stand in a hang, instead of times")
def main(out: Path | None, cases: tuple[str, ...], pace: float, costs: Path, slice_size: int, plain: bool,
         keep_in: Path, hangs: bool) -> None:  # fmt: skip
    """Run all cases."""
    is_urgent = os.geteuid() == 0 and not plain
    if is_urgent:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))  # what is started from here inherits it
    if hangs:
        found: list[dict[str, Any]] = []
        for name in HANGS:
            for row in measure_hangs(name, pace, is_urgent):
                found.append(row)
                if out is not None:
                    out.write_text(json.dumps(found, indent=1))
        return
    rows = []
    for name in cases or (*CASES, *MODELS):
        world = (MODELS if name in MODELS else CASES)[name][0]
        row = measure_case(name, costs_for(world, costs), pace, slice_size, is_urgent, keep_in)
        rows.append(row)
        if out is not None:
            keep(row, out)
        print(f"{name:16} {row['ranks']:3} ranks by {row['slice']:2}, {row['ran']:2} run  "
              f"real {1e3 * row['real_s']:8.1f} ms  predicted "
              f"{1e3 * row['predicted_s']:8.1f} ms  error {100 * row['error']:+6.2f} %  memory "
              f"{100 * row['memory_error_worst']:.4f} % (by classes {100 * row['memory_error_kinds']:.4f} %)  "
              f"load {row['load']:.1f}, others {100 * row['others']:.0f} %", flush=True)  # fmt: skip
    errors = [abs(row["error"]) for row in rows]
    print(f"mean {100 * statistics.mean(errors):.2f} %, worst {100 * max(errors):.2f} %")


def keep(row: dict[str, Any], out: Path) -> None:
    """Write a result; an older one of the same case goes."""
    out.parent.mkdir(parents=True, exist_ok=True)
    kept = json.loads(out.read_text()) if out.exists() else []
    same = ("case", "pace_s", "slice")
    kept = [one for one in kept if [one.get(name) for name in same] != [row[name] for name in same]]
    out.write_text(json.dumps([*kept, row], indent=1))


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] == "--real":
        real_ranks(int(sys.argv[2]), sys.argv[3], sys.argv[4:])
    else:
        main()
