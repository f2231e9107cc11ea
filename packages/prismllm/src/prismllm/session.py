"""One rank's process: makes torch use sliced groups, runs the script, writes its record."""

from __future__ import annotations

import faulthandler
import os
import runpy
import statistics
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from multiprocessing import parent_process
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.fsdp
import torch.distributed.pipelining
import torch.distributed.tensor.parallel
from torch._C._profiler import _ExtraFields_Allocation
from torch.autograd.profiler import profile, record_function
from torch.optim.optimizer import register_optimizer_step_post_hook

from prismllm.errors import InputError, PrismError, ScriptError
from prismllm.group import MARK, Slice, SlicedGroup
from prismllm.model import Call, RankRecord, RankTask, Step, digest, write_record
from prismllm.recorder import Recorder, check_repeats, own_ns
from prismllm.taint import StrictWatch, Watch

STEP = "prismllm::step"
_ASSISTANT_S = 60.0


class Finished(BaseException):
    """Raised out of the optimizer's step when enough iterations are done, and out of a wait that never ends."""


class SandboxRecorder(Recorder):
    """Lets each wait last as long as the assistant says."""

    def __init__(self, order: RankTask, clock_ns: Callable[[], int]) -> None:
        super().__init__(order.rank, clock_ns)
        self._order, self._since = order, order.warmup + 1  # the first iteration in emulated time
        self._own_ns = 0

    def enter(self) -> int:
        """Own work ends here; return its nanoseconds."""
        self._own_ns = super().enter()
        return self._own_ns

    def _tell(self, what: str, place: int = 0, call: str = "") -> None:
        self._order.assistant.send((self._order.rank, what, place, self._own_ns / 1e9, call))

    def launched(self, call: Call) -> int:
        """The assistant hears of it; own work goes on."""
        if self.iteration >= self._since:
            self._tell("launch", len(self.calls), f"{call.op} {call.signature} at {call.site}")
        return super().launched(call)

    def ask(self, place: int) -> None:
        """Sleep as long as the virtual participants would have let this rank wait."""
        if self.iteration >= self._since:
            asked = time.perf_counter()
            self._tell("wait", place)
            wait_s = self._order.assistant.recv() if self._order.assistant.poll(_ASSISTANT_S) else -1.0
            if wait_s < 0:
                raise ScriptError(f"rank {self._order.rank}: the assistant has ended the emulation")
            if wait_s == float("inf"):
                raise Finished
            time.sleep(max(0.0, wait_s - (time.perf_counter() - asked)))

    def end_step(self) -> Step:
        """The assistant hears of the end of an iteration in emulated time."""
        step = super().end_step()
        if self.iteration > self._since:
            self._own_ns = step.segments_ns[-1]
            self._tell("step")
        return step


def intercept(part: Slice) -> None:
    """`dist.init_process_group` makes the sliced group of the whole world, whatever backend the script names."""
    original = dist.distributed_c10d.init_process_group

    def create(options: Any, _: Any) -> SlicedGroup | None:
        world = list(range(part.world))
        return part.make_group(world, options.group_id, "world")

    dist.Backend.register_backend("prismllm", create, extended_api=True, devices=["cpu"])

    def init_process_group(backend: Any = None, *args: Any, **kwargs: Any) -> None:
        kept = {key: value for key, value in kwargs.items() if key in ("timeout", "group_name")}
        original("prismllm", store=dist.HashStore(), rank=part.rank, world_size=part.world, **kept)
        groups, world = dist.distributed_c10d._world.pg_map, dist.group.WORLD
        groups[world] = "gloo", groups[world][1]  # scripts and torch choose by this name

    for module in (dist, dist.distributed_c10d, dist.device_mesh):
        if hasattr(module, "init_process_group"):
            module.init_process_group = init_process_group
    dist.distributed_c10d._store_based_barrier = lambda *_, **__: None  # no other rank would come


def on_step(act: Callable[[], None]) -> None:
    """Call `act` after each step of the script's first optimizer."""
    first: list[int] = []

    def after(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if not first:
            first.append(id(optimizer))
        if id(optimizer) == first[0]:
            act()

    register_optimizer_step_post_hook(after)


def run_script(script: list[str], rank: int) -> None:
    """Run the script as if it had been started from the command line.

    Raises:
        ScriptError: It failed, or ended before enough iterations were done.
        PrismError: A call of the script failed.
    """
    sys.argv = list(script)
    path = Path(script[0])
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        runpy.run_path(str(path), run_name="__main__")
    except Finished:
        return
    except SystemExit as end:
        raise ScriptError(f"{path.name} exited with status {end.code} before enough iterations were done") from None
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None:  # torch wraps what its callbacks raise
            if isinstance(cause, PrismError):
                raise cause from None
            cause = cause.__cause__ or cause.__context__
        lines = [one.lineno for one in traceback.extract_tb(error.__traceback__) if Path(one.filename) == path]
        where = f" (at {path.name}:{lines[-1]})" if lines else ""
        raise ScriptError(f"rank {rank}: {path.name} failed: {type(error).__name__}: {error}{where}") from error
    raise ScriptError(
        f"{path.name} ended before enough iterations were done; let it train longer, or ask for fewer (--warmup, "
        "--timed). An iteration ends with optimizer.step()."
    )


def _end_with_the_command() -> None:
    """End this process when the one that started it ends, even if that was killed."""
    command = parent_process()
    if command is not None:
        command.join()
        os._exit(1)


def play(order: RankTask, pipe: Any) -> None:
    """Run one rank in this process, which ends with it; send what it ran into, or None."""
    threading.Thread(target=_end_with_the_command, daemon=True).start()
    error: PrismError | None = None
    log = os.open(order.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    faulthandler.dump_traceback_later(max(1.0, order.timeout_s - 2), file=2)
    try:
        capture(order)
    except PrismError as failure:
        error = failure
    except BaseException as failure:  # noqa: BLE001 - the process ends here, whatever it was
        traceback.print_exc()
        error = ScriptError(f"rank {order.rank}: {type(failure).__name__}: {failure} (log: {order.log})")
    sys.stdout.flush()
    sys.stderr.flush()
    pipe.send(error)
    os._exit(0)


def capture(order: RankTask) -> None:
    """Run one rank until enough iterations are done, and write its record.

    Raises:
        PrismError: What the script ran into.
    """
    local = order.rank % order.local_world  # the environment that torchrun would have set
    os.environ.update(
        RANK=str(order.rank), WORLD_SIZE=str(order.world), LOCAL_RANK=str(local),
        LOCAL_WORLD_SIZE=str(order.local_world), GROUP_RANK=str(order.rank // order.local_world),
        MASTER_ADDR="127.0.0.1", MASTER_PORT="1", TORCHELASTIC_RUN_ID="prismllm", TORCHELASTIC_RESTART_COUNT="0",
        PRISMLLM_RANKS=",".join(map(str, order.members)),
    )  # fmt: skip
    torch.set_num_threads(1)
    unsent = StrictWatch(order.rank) if order.is_strict else Watch()

    def clock_ns() -> int:
        return own_ns() - unsent.spent_ns

    is_emulated = order.assistant is not None
    recorder = SandboxRecorder(order, clock_ns) if is_emulated else Recorder(order.rank, clock_ns)
    store: Any = None  # a slice of one has nobody to meet
    if len(order.members) > 1:
        store = dist.FileStore(str(order.meeting), len(order.members))
        store.set_timeout(timedelta(seconds=120))
    part = Slice(order.rank, order.world, order.members, store, order.out / "payloads", recorder, unsent)
    intercept(part)
    steady = order.warmup
    profiler = profile(use_cpu=True, record_shapes=True, profile_memory=True) if order.is_profiled else None
    digests: list[tuple[list[str], list[int], list[int], int]] = []
    stepped_ns: list[int] = []

    def after_step() -> None:
        with record_function(STEP):
            step = recorder.end_step()
            stepped_ns.append(time.monotonic_ns())
        done = len(recorder.steps) - 1
        if done == steady and profiler is not None:
            profiler.__exit__(None, None, None)
            lengths = [len(one.events) + 1 for one in recorder.steps]
            digests.append(_read_profile(profiler, lengths, has_shapes=not any(one.is_uneven for one in step.calls)))
            recorder.leave()
        if done > steady:
            check_repeats(order.rank, recorder.steps[steady], step, done)
        if done >= steady + order.timed:
            raise Finished

    on_step(after_step)
    if profiler is not None:
        profiler.__enter__()
    recorder.leave()
    run_script(order.script, order.rank)
    if not dist.is_initialized():
        raise InputError(f"{order.script[0]} never calls init_process_group: it is not distributed")
    _write(order, recorder, part, digests, stepped_ns)
    if store is not None:  # no rank leaves while others may still receive
        store.add("left", 1)
        until = time.monotonic() + 30
        while store.add("left", 0) < len(order.members) and time.monotonic() < until:
            time.sleep(0.01)


def _write(
    order: RankTask, recorder: Recorder, part: Slice, digests: list[tuple[list[str], list[int], list[int], int]],
    stepped_ns: list[int],
) -> None:  # fmt: skip
    steps = recorder.steps
    step = steps[order.warmup]
    peak_bytes = 0
    samples = [one.segments_ns for one in steps[order.warmup + 1 :]]
    sizes = [[call.nbytes for call in one.calls if call.is_uneven] for one in steps[order.warmup + 1 :]]
    if samples:
        step = Step(step.calls, step.events, _medians(samples),
                    busy_ns=_medians([one.busy_ns for one in steps[order.warmup + 1 :]]))  # fmt: skip
    if digests:
        work, grown, peaks, peak_bytes = digests[0]
        step = Step(step.calls, step.events, step.segments_ns, work, grown, peaks, step.busy_ns)
    record = RankRecord(
        order.rank, order.world, part.groups, steps[: order.warmup], step, samples, peak_bytes, part.grouped_ns,
        stepped_ns, sizes if any(sizes) else [],
    )  # fmt: skip
    write_record(order.out / order.name, record)


def _medians(rows: Sequence[Sequence[int]]) -> list[int]:
    """Return the median of each column."""
    return [int(statistics.median(column)) for column in zip(*rows, strict=True)]


def _read_profile(
    profiler: Any, lengths: list[int], *, has_shapes: bool
) -> tuple[list[str], list[int], list[int], int]:
    """Return operators and memory of the last iteration, segment by segment.

    Operators of other threads do not count: gloo's threads carry the rank's profiler with them, and work on a call
    while the rank is in it or goes on.

    The profiler was started with the process; `lengths` are the segments of each iteration so far. With `has_shapes`
    operators of other shapes are others; not so after uneven calls, where shapes follow their sizes.

    Returns:
        Digest of each segment's operators; its memory growth; the most in use during it; the most in use ever. Bytes.
    """
    marks: list[tuple[int, int]] = []
    stepped: list[int] = []
    own_threads: set[int] = set()
    operators: list[tuple[int, int, str]] = []
    for event in profiler.kineto_results.events():
        name = event.name()
        if name == MARK:
            marks.append((event.start_ns(), event.start_ns() + event.duration_ns()))
        elif name == STEP:
            stepped.append(event.start_ns())
            own_threads.add(event.start_thread_id())
        elif name.startswith("aten::"):
            operators.append(
                (event.start_ns(), event.start_thread_id(), f"{name}{event.shapes() if has_shapes else ''}")
            )
    marks.sort()
    begun_ns = sorted(stepped)[-2] if len(stepped) > 1 else 0
    starts = np.array([start for start, _ in marks], np.int64)
    ends = np.array([end for _, end in marks], np.int64)

    def segments_of(times: list[int]) -> Any:
        """Marks begun before, or -1 inside a mark."""
        at = np.searchsorted(starts, np.array(times, np.int64), side="right")
        inside = (at > 0) & (np.array(times, np.int64) <= ends[np.maximum(at - 1, 0)]) if len(starts) else at < 0
        return np.where(inside, -1, at)

    # each event is one mark; the last segment of an iteration is one with the first of the next
    length = lengths[-1]
    first = sum(one - 1 for one in lengths[:-1])
    allocations = memory_events(profiler)
    is_outside = segments_of([one.start_time_ns for one in allocations]) >= 0
    own = account([
        Allocation(one.start_time_ns, one.extra_fields.ptr, one.extra_fields.alloc_size,
                   bool(outside) and one.start_tid in own_threads)
        for one, outside in zip(allocations, is_outside, strict=True)
    ])  # fmt: skip
    grown, peaks = [0] * length, [0] * length
    now = most = 0
    begun_before = np.searchsorted(starts, np.array([when for when, _ in own], np.int64), side="right")
    for (when, nbytes), segment in zip(own, begun_before.tolist(), strict=True):
        now += nbytes
        most = max(most, now)
        if when >= begun_ns:
            grown[segment - first] += nbytes
            peaks[segment - first] = max(peaks[segment - first], now)
    rows: list[list[str]] = [[] for _ in range(length)]
    own_operators = sorted((when, text) for when, thread, text in operators if thread in own_threads)
    for (when, text), segment in zip(own_operators, segments_of([when for when, _ in own_operators]), strict=True):
        if segment >= 0 and when >= begun_ns:
            rows[segment - first].append(text)
    return [digest(row) for row in rows], grown, peaks, most


class Allocation(NamedTuple):
    """Memory that was allocated, or freed.

    Attributes:
        when_ns: When.
        address: Where it lies.
        nbytes: Its size, below 0 if it is freed.
        is_own: The rank's own work has done it: on its thread and outside of calls.
    """

    when_ns: int
    address: int
    nbytes: int
    is_own: bool


def account(allocations: Sequence[Allocation]) -> list[tuple[int, int]]:
    """Return by how much a rank's own memory changes, and when.

    What is allocated inside a call is gloo's, or the slice's, and so is its end, wherever that is: gloo clones what it
    reduces and scatters in the call, and lets go of it later. What is allocated outside counts until it is freed,
    on any thread. The profiler does not see all of what other threads free: then the next one at that address says
    that it is gone.

    Returns:
        Nanoseconds and bytes, in order of time, as the allocations are.
    """
    held: dict[int, int] = {}
    changes: list[tuple[int, int]] = []
    for one in allocations:
        gone = held.pop(one.address, 0)
        if gone:
            changes.append((one.when_ns, -gone))
        if one.nbytes > 0 and one.is_own:
            held[one.address] = one.nbytes
            changes.append((one.when_ns, one.nbytes))
    return changes


def memory_events(profiler: Any) -> list[Any]:
    """Return the profiler's events of memory, in order of time."""
    found: list[Any] = []
    todo = list(profiler.kineto_results.experimental_event_tree())
    while todo:
        event = todo.pop()
        todo += event.children
        if isinstance(event.extra_fields, _ExtraFields_Allocation):
            found.append(event)
    return sorted(found, key=lambda event: event.start_time_ns)
