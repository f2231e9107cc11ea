"""One rank's process: makes torch use sliced groups, runs the script, writes its record."""

from __future__ import annotations

import os
import runpy
import socket
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch
import torch.distributed as dist
from torch._C._profiler import _ExtraFields_Allocation
from torch.autograd.profiler import profile, record_function
from torch.optim.optimizer import register_optimizer_step_post_hook

from prismllm.errors import InputError, PrismError, ScriptError
from prismllm.group import MARK, Slice, SlicedGroup, call_site
from prismllm.model import Call, RankRecord, Step, digest, write_record
from prismllm.recorder import Recorder, check_repeats
from prismllm.taint import StrictWatch, Watch


class RankTask(msgspec.Struct, frozen=True):
    """The task of one process.

    Attributes:
        rank: Global rank that it plays.
        world: Ranks of the job.
        members: Ranks that run at the same time.
        local_world: Ranks of a host, for LOCAL_RANK.
        script: Training script, with its arguments.
        out: Directory of the capture.
        warmup: Iterations before those that repeat.
        timed: Iterations of which segments are timed, without profiler.
        is_profiled: Operators and memory are recorded in the first iteration that repeats.
        meeting: File where the members of the slice meet.
        name: Of the file that is written.
        assistant: Address of the assistant process, for an emulation.
        is_strict: In an emulation, control flow that reads an unsent value is an error.
    """

    rank: int
    world: int
    members: list[int]
    local_world: int
    script: list[str]
    out: str
    warmup: int
    timed: int
    is_profiled: bool
    meeting: str
    name: str
    assistant: str = ""
    is_strict: bool = False


STEP = "prismllm::step"
_ASSISTANT_S = 60.0


class Finished(BaseException):
    """Raised out of the optimizer's step when enough iterations are done."""


_SCHEDULER = Path("/proc/thread-self/schedstat")


def own_ns() -> int:
    """Return nanoseconds of a clock that stands while this thread is ready and no core is free for it.

    Computing and sleeping count; waiting in the run queue is the load of this machine, not the job's.
    """
    now = time.perf_counter_ns()
    try:
        return now - int(_SCHEDULER.read_bytes().split()[1])
    except (OSError, IndexError):  # a kernel without scheduler statistics
        return now


class CaptureHook:
    """Writes calls down; lets no time pass.

    Args:
        rank: Global rank, for errors.
        clock_ns: Nanoseconds of the rank's own work.
    """

    def __init__(self, rank: int, clock_ns: Callable[[], int] = own_ns) -> None:
        self.rank = rank
        self.recorder = Recorder(clock_ns)

    @property
    def iteration(self) -> int:
        """The iteration that runs now."""
        return len(self.recorder.steps)

    def number(self, op: str, group: int, peer: int, tag: int) -> int:
        """Return how many such calls came before in this iteration."""
        return self.recorder.number(op, group, peer, tag)

    def enter(self) -> int:
        """Own work stops."""
        return self.recorder.enter()

    def launched(self, call: Call) -> int:
        """Own work goes on."""
        place = self.recorder.launch(call)
        self.recorder.leave()
        return place

    def stepped(self, step: Step) -> None:
        """The optimizer has stepped."""

    def ask(self, place: int) -> None:
        """Calls take no time."""

    def waited(self, place: int, iteration: int) -> None:
        """Own work goes on.

        Raises:
            ScriptError: The call was launched in an earlier iteration; rank, call and both lines are named.
        """
        if iteration != self.iteration:
            raise ScriptError(
                f"rank {self.rank} waits at {call_site()} in iteration {self.iteration} for a call of iteration "
                f"{iteration}: {self.recorder.steps[iteration].calls[place]}. Wait for it before "
                "optimizer.step()."
            )
        self.recorder.wait(place)
        self.recorder.leave()


class Stuck(BaseException):
    """Raised out of a wait that never ends."""


class SandboxHook(CaptureHook):
    """Lets each wait last as long as the assistant says.

    Args:
        order: Of this rank.
        since: First iteration in emulated time.
        clock_ns: Nanoseconds of the rank's own work.
    """

    def __init__(self, order: RankTask, since: int, clock_ns: Callable[[], int] = own_ns) -> None:
        super().__init__(order.rank, clock_ns)
        self._order, self._since = order, since
        self._own_ns = 0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(_ASSISTANT_S)
        self._socket.connect(order.assistant)
        self._answers = self._socket.makefile("r")

    def enter(self) -> int:
        """Own work stops."""
        self._own_ns = super().enter()
        return self._own_ns

    def _tell(self, what: str, place: int = 0, call: str = "") -> None:
        said = [self._order.rank, what, place, self._own_ns / 1e9, call]
        self._socket.sendall(msgspec.json.encode(said) + b"\n")

    def launched(self, call: Call) -> int:
        """The assistant hears of it; own work goes on."""
        if self.iteration >= self._since:
            self._tell("launch", len(self.recorder.calls), f"{call.op} {call.signature} at {call.site}")
        return super().launched(call)

    def ask(self, place: int) -> None:
        """Sleep as long as the virtual participants would have let this rank wait."""
        if self.iteration >= self._since:
            asked = time.perf_counter()
            self._tell("wait", place)
            answer = self._answers.readline()
            wait_s = float(answer) if answer else -1.0
            if wait_s < 0:
                raise ScriptError(f"rank {self._order.rank}: the assistant has ended the emulation")
            if wait_s == float("inf"):
                raise Stuck
            time.sleep(max(0.0, wait_s - (time.perf_counter() - asked)))

    def stepped(self, step: Step) -> None:
        """The assistant hears of the end of an iteration in emulated time."""
        if self.iteration > self._since:
            self._own_ns = step.segments_ns[-1]
            self._tell("step")


def intercept(part: Slice) -> None:
    """`dist.init_process_group` makes the sliced group of the whole world, whatever backend the script names."""
    original = dist.distributed_c10d.init_process_group

    def create(options: Any, _: Any) -> SlicedGroup:
        world = list(range(part.world))
        group = part.make_group(world, options.group_id, "world")
        if group is None:  # pragma: no cover - this rank is in the world
            raise AssertionError("not a member of the world")
        return group

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


def pretend(order: RankTask) -> None:
    """Set the environment that torchrun would have set."""
    local = order.rank % order.local_world
    os.environ.update(
        RANK=str(order.rank), WORLD_SIZE=str(order.world), LOCAL_RANK=str(local),
        LOCAL_WORLD_SIZE=str(order.local_world), GROUP_RANK=str(order.rank // order.local_world),
        MASTER_ADDR="127.0.0.1", MASTER_PORT="1", TORCHELASTIC_RUN_ID="prismllm", TORCHELASTIC_RESTART_COUNT="0",
        PRISMLLM_RANKS=",".join(map(str, order.members)),
    )  # fmt: skip


def run_script(script: list[str], rank: int) -> None:
    """Run the script as if it had been started from the command line.

    Args:
        script: With its arguments.
        rank: Global rank, for errors.

    Raises:
        ScriptError: It failed, or ended before enough iterations were done.
        PrismError: A call of the script failed.
    """
    sys.argv = list(script)
    path = Path(script[0])
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        runpy.run_path(str(path), run_name="__main__")
    except (Finished, Stuck):
        return
    except PrismError:
        raise
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


def meet_slice(order: RankTask, patience_s: float = 120.0) -> Any:
    """Return the store of the slice's members; None for a slice of one."""
    if len(order.members) < 2:
        return None
    store = dist.FileStore(order.meeting, len(order.members))
    store.set_timeout(timedelta(seconds=patience_s))
    return store


def capture(order: RankTask) -> None:
    """Run one rank until enough iterations are done, and write its record.

    Raises:
        PrismError: What the script ran into.
    """
    pretend(order)
    torch.set_num_threads(1)
    emulated_since = order.warmup + 1
    unsent = StrictWatch(order.rank) if order.is_strict else Watch()

    def clock_ns() -> int:
        return own_ns() - unsent.spent_ns

    hook = SandboxHook(order, emulated_since, clock_ns) if order.assistant else CaptureHook(order.rank, clock_ns)
    store = meet_slice(order)
    part = Slice(order.rank, order.world, order.members, store, Path(order.out) / "payloads", hook, unsent)
    intercept(part)
    steady = order.warmup
    profiler = profile(use_cpu=True, record_shapes=True, profile_memory=True) if order.is_profiled else None
    digests: list[tuple[list[str], list[int], list[int], int]] = []
    stepped_ns: list[int] = []

    def after_step() -> None:
        with record_function(STEP):
            step = hook.recorder.end_step()
            stepped_ns.append(time.monotonic_ns())
            hook.stepped(step)
        done = len(hook.recorder.steps) - 1
        if done == steady and profiler is not None:
            profiler.__exit__(None, None, None)
            lengths = [len(one.events) + 1 for one in hook.recorder.steps]
            digests.append(_read_profile(profiler, lengths, has_shapes=not any(one.is_uneven for one in step.calls)))
            hook.recorder.leave()
        if done > steady:
            check_repeats(order.rank, hook.recorder.steps[steady], step, done)
        if done >= steady + order.timed:
            raise Finished

    on_step(after_step)
    if profiler is not None:
        profiler.__enter__()
    hook.recorder.leave()
    run_script(order.script, order.rank)
    if not dist.is_initialized():
        raise InputError(f"{order.script[0]} never calls init_process_group: it is not distributed")
    _write(order, hook, part, digests, stepped_ns)
    if store is not None:  # no rank leaves while others may still receive
        store.add("left", 1)
        until = time.monotonic() + 30
        while store.add("left", 0) < len(order.members) and time.monotonic() < until:
            time.sleep(0.01)


def _write(
    order: RankTask, hook: CaptureHook, part: Slice, digests: list[tuple[list[str], list[int], list[int], int]],
    stepped_ns: list[int],
) -> None:  # fmt: skip
    steps = hook.recorder.steps
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
    write_record(Path(order.out) / order.name, record)


def _medians(rows: Sequence[Sequence[int]]) -> list[int]:
    """Return the median of each column."""
    return [int(statistics.median(column)) for column in zip(*rows, strict=True)]


def _read_profile(
    profiler: Any, lengths: list[int], *, has_shapes: bool
) -> tuple[list[str], list[int], list[int], int]:
    """Return operators and memory of the last iteration, segment by segment.

    Operators of other threads do not count: gloo's threads carry the rank's profiler with them, and work on a call
    while the rank is in it or goes on.

    Args:
        profiler: Started with the process and stopped now.
        lengths: Segments of each iteration so far.
        has_shapes: Operators of other shapes are others. Not so after uneven calls, where shapes follow their sizes.

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

    Args:
        allocations: In order of time.

    Returns:
        Nanoseconds and bytes, in order of time.
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
