"""Jobs that stand still, made up: who sits where, as the agents would have seen it.

job = Standstill(4)
job.wait(range(3), "gloo:all_reduce")
job.sit(3, PREFETCH_QUEUE)
job.add_thread(3, "prefetch", FULL_QUEUE)
verdict = diagnose_blockage(job.blockage(), "demo", Settings())
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from eroica.model.look import (
    Blockage,
    Death,
    Ending,
    FlightState,
    GroupProgress,
    HostLooks,
    ProcessLook,
    ThreadLook,
    WorkerLook,
)
from eroica.model.window import FlightEntry
from eroica.model.worker import ProcessGroup, Worker

Stack = tuple[str, ...]

_MAIN = ("<module> (job/train.py:120)", "main (job/train.py:96)")
_THREAD = ("Thread._bootstrap (threading.py:1002)", "Thread._bootstrap_inner (threading.py:1045)")
_C10D = "_exception_logger.<locals>.wrapper (torch/distributed/c10d_logger.py:83)"

#: What py-spy shows of threads in such places (0.4.3, Python 3.11, torch 2.13), outermost first.
ALL_REDUCE: Stack = (*_MAIN, "step (job/train.py:71)", _C10D, "all_reduce (torch/distributed/distributed_c10d.py:3252)")
BARRIER: Stack = (*_MAIN, "save (job/train.py:88)", _C10D, "barrier (torch/distributed/distributed_c10d.py:5356)")
RECEIVE: Stack = (*_MAIN, "stage (job/pipeline.py:30)", _C10D, "recv (torch/distributed/distributed_c10d.py:2799)")
WORK_WAIT: Stack = (*_MAIN, "finish (job/train.py:77)")
BACKWARD: Stack = (
    *_MAIN,
    "step (job/train.py:70)",
    "Tensor.backward (torch/_tensor.py:630)",
    "backward (torch/autograd/__init__.py:364)",
    "_engine_run_backward (torch/autograd/graph.py:865)",
)
EMPTY_QUEUE: Stack = (
    *_MAIN,
    "next_batch (job/train.py:88)",
    "Queue.get (queue.py:171)",
    "Condition.wait (threading.py:327)",
)
FULL_QUEUE: Stack = (
    *_THREAD,
    "Thread.run (threading.py:982)",
    "feed (job/loader.py:41)",
    "Queue.put (queue.py:140)",
    "Condition.wait (threading.py:327)",
)
OWN_LOCK: Stack = (*_MAIN, "count (job/statistics.py:33)")
THREAD_LOCK: Stack = (*_THREAD, "Thread.run (threading.py:982)", "flush (job/statistics.py:52)")
STORAGE_READ: Stack = (
    *_MAIN,
    "_fetch_block (job/reading.py:57)",
    "HTTPResponse.begin (http/client.py:325)",
    "SocketIO.readinto (socket.py:706)",
)
LOADER_WAIT: Stack = (
    *_MAIN,
    "_BaseDataLoaderIter.__next__ (torch/utils/data/dataloader.py:725)",
    "_MultiProcessingDataLoaderIter._try_get_data (torch/utils/data/dataloader.py:1291)",
    "Queue.get (multiprocessing/queues.py:113)",
    "_PollLikeSelector.select (selectors.py:415)",
)
LOADER_CHILD: Stack = (
    *_MAIN,
    "_worker_loop (torch/utils/data/_utils/worker.py:374)",
    "_MapDatasetFetcher.fetch (torch/utils/data/_utils/fetch.py:54)",
    "Frames.__getitem__ (job/frames.py:21)",
)
NATIVE_CALL: Stack = (*_MAIN, "lookup (job/native.py:18)")
ENDLESS_LOOP: Stack = (*_MAIN, "tokenize (job/text.py:12)")
PROGRAM_END: Stack = ("_shutdown (threading.py:1590)",)


@dataclass
class _Seat:
    """One worker while the job is made up."""

    worker: Worker
    thread: ThreadLook
    others: list[ThreadLook] = field(default_factory=list)
    children: list[ProcessLook] = field(default_factory=list)
    open: list[FlightEntry] = field(default_factory=list)
    recent: list[FlightEntry] = field(default_factory=list)
    entered: dict[str, int] = field(default_factory=dict)
    state: str = "S"
    asked: bool = True
    answers: bool = True
    cpu_s: float = 0.0
    moves: dict[str, int] = field(default_factory=dict)
    later_stack: Stack | None = None


class Standstill:
    """A job in which nobody has been put anywhere yet: every worker sits in `step` of its training loop.

    Args:
        workers: Workers of the job.
        hosts: Hosts, "node-0", "node-1", ..., with equally many consecutive workers each.
        entered: Sequence number of the last collective that everybody has finished in the default group.
        silent_s: Since when they are silent at the second look, s.
        device: "cpu" or "cuda".
    """

    def __init__(
        self, workers: int, hosts: int = 1, entered: int = 11, silent_s: float = 14.0, device: str = "cpu"
    ) -> None:
        self.entered = entered
        self.silent_s = silent_s
        self.deaths: list[Death] = []
        self.left: list[Worker] = []
        self.hidden: set[int] = set()
        self.once: set[int] = set()
        self.notes: dict[str, tuple[str, ...]] = {}
        self.groups: dict[str, ProcessGroup] = {}
        per_host = -(-workers // hosts)
        self.seats = [
            _Seat(
                worker=Worker(
                    global_rank=rank,
                    local_rank=rank % per_host,
                    world_size=workers,
                    host=f"node-{rank // per_host}",
                    pid=1000 + rank,
                    device=device if device == "cpu" else f"{device}:{rank % per_host}",
                ),
                thread=ThreadLook(
                    name="MainThread",
                    thread_id=1000 + rank,
                    stack=(*_MAIN, "step (job/train.py:64)"),
                    state="S",
                    wait_channel="futex_do_wait",
                    cpu_s=100.0,
                ),
            )
            for rank in range(workers)
        ]
        if workers > 1:
            self.add_group("0", range(workers), "default_pg", entered)

    def add_group(self, name: str, ranks: Iterable[int], description: str = "", entered: int = -1) -> None:
        """A process group whose members have all finished number `entered`."""
        members = tuple(ranks)
        self.groups[name] = ProcessGroup(name=name, description=description, ranks=members, backend="gloo")
        for rank in members:
            self.seats[rank].entered[name] = entered

    def wait(
        self,
        ranks: Iterable[int],
        operation: str = "gloo:all_reduce",
        stack: Stack = ALL_REDUCE,
        group: str = "0",
        sequence: int | None = None,
        elements: int = 4096,
    ) -> None:
        """These workers have entered a collective of the group that has not ended; by default the next one."""
        for rank in ranks:
            seat = self.seats[rank]
            number = seat.entered[group] + 1 if sequence is None else sequence
            seat.open.append(FlightEntry(name=operation, group=group, sequence=number, elements=elements))
            seat.entered[group] = max(seat.entered[group], number)
            self.sit(rank, stack)

    def finish(
        self, ranks: Iterable[int], operation: str, sequence: int, group: str = "0", elements: int = 4096
    ) -> None:
        """These workers have completed a collective of the group."""
        for rank in ranks:
            entry = FlightEntry(name=operation, group=group, sequence=sequence, elements=elements)
            self.seats[rank].recent.append(entry)
            self.seats[rank].entered[group] = max(self.seats[rank].entered[group], sequence)

    def sit(
        self, rank: int, stack: Stack, state: str = "S", channel: str = "futex_do_wait", later: Stack | None = None
    ) -> None:
        """The worker's training thread sits there; `later` is its stack in the second look, if another."""
        seat = self.seats[rank]
        seat.thread = msgspec.structs.replace(seat.thread, stack=tuple(stack), state=state, wait_channel=channel)
        seat.later_stack = later

    def add_thread(
        self, rank: int, name: str, stack: Stack, state: str = "S", channel: str = "futex_do_wait", holds: bool = False
    ) -> None:
        """One more thread of the worker."""
        seat = self.seats[rank]
        number = 100_000 + 100 * rank + len(seat.others)
        seat.others.append(
            ThreadLook(
                name=name,
                thread_id=number,
                stack=tuple(stack),
                state=state,
                wait_channel=channel,
                holds_interpreter_lock=holds,
                cpu_s=1.0,
            )
        )

    def add_child(self, rank: int, stack: Stack = (), state: str = "S", channel: str = "hrtimer_nanosleep") -> None:
        """A data-loader child of the worker."""
        seat = self.seats[rank]
        pid = 500_000 + 100 * rank + len(seat.children)
        thread = ThreadLook(name="MainThread", thread_id=pid, stack=tuple(stack), state=state, wait_channel=channel)
        threads = (thread,) if stack else ()
        seat.children.append(ProcessLook(pid=pid, state=state, threads=threads, source="py-spy" if stack else ""))

    def hold_interpreter_lock(self, rank: int, stack: Stack = NATIVE_CALL, channel: str = "hrtimer_nanosleep") -> None:
        """Its training thread keeps the lock, so nobody of the worker answers."""
        self.sit(rank, stack, channel=channel)
        seat = self.seats[rank]
        seat.thread = msgspec.structs.replace(seat.thread, holds_interpreter_lock=True)
        seat.answers = False

    def mute(self, ranks: Iterable[int]) -> None:
        """These workers cannot answer: no groups, no Flight Recorder."""
        for rank in ranks:
            self.seats[rank].answers = False

    def stop(self, rank: int, state: str = "T") -> None:
        """The process is stopped; nobody of it answers."""
        self.seats[rank].state = state
        self.seats[rank].answers = False

    def die(self, rank: int, ending: Ending | None = None) -> None:
        """The worker is gone without signing off; call it for the first death first."""
        seat = self.seats[rank]
        how = ending or Ending(kind="signal", number=9, ago_s=self.silent_s)
        self.deaths.append(Death(worker=seat.worker, iteration=412, ending=how, lived_on_s=self.silent_s))

    def leave(self, rank: int) -> None:
        """The worker has ended its program in order."""
        self.left.append(self.seats[rank].worker)

    def hide(self, ranks: Iterable[int]) -> None:
        """Nobody handed in a look at these workers."""
        self.hidden.update(ranks)

    def look_once(self, rank: int) -> None:
        """There is no second look at this worker."""
        self.once.add(rank)

    def burn(self, rank: int, share: float = 1.0) -> None:
        """Its training thread uses this share of a core between the looks."""
        self.seats[rank].cpu_s = share

    def move(self, rank: int, **progress: int) -> None:
        """It makes progress between the looks: `events`, `iteration`, `completed` in the default group, `io_bytes`."""
        self.seats[rank].moves = progress or {"events": 1}

    def blockage(self, reason: str = "worker 0 has shown no event for 10 s", order: int = 1) -> Blockage:
        """The record; `order=-1` lists hosts and workers backwards."""
        gone = {one.worker.global_rank for one in self.deaths} | {one.global_rank for one in self.left} | self.hidden
        hosts = sorted({seat.worker.host for seat in self.seats})[::order]
        present = [seat for seat in self.seats if seat.worker.global_rank not in gone][::order]
        looks = [self._host(host, [seat for seat in present if seat.worker.host == host]) for host in hosts]
        return Blockage(
            look_id=3,
            reason=reason,
            looks=tuple(look for look in looks if look.first or look.notes),
            deaths=tuple(self.deaths),
            left=tuple(self.left),
            world_size=len(self.seats),
            baseline_iteration_s=0.05,
        )

    def _host(self, host: str, seats: Sequence[_Seat]) -> HostLooks:
        first = tuple(self._look(seat, second=False) for seat in seats)
        second = tuple(self._look(seat, second=True) for seat in seats if seat.worker.global_rank not in self.once)
        return HostLooks(look_id=3, host=host, first=first, second=second, notes=self.notes.get(host, ()))

    def _look(self, seat: _Seat, *, second: bool) -> WorkerLook:
        moves = seat.moves if second else {}
        used = 2.0 * seat.cpu_s if second else 0.0
        thread = msgspec.structs.replace(
            seat.thread,
            cpu_s=(seat.thread.cpu_s or 0.0) + used,
            io_bytes=10_000_000 + moves.get("io_bytes", 0),
            stack=seat.later_stack if second and seat.later_stack is not None else seat.thread.stack,
        )
        return WorkerLook(
            worker=seat.worker,
            iteration=412 + moves.get("iteration", 0),
            events=2000 + moves.get("events", 0),
            silent_s=self.silent_s if second else self.silent_s - 2.0,
            silent=True,
            training_thread_id=thread.thread_id,
            process=ProcessLook(
                pid=seat.worker.pid,
                state=seat.state,
                threads=(thread, *seat.others) if thread.stack else (),
                source="py-spy" if thread.stack else "",
                cpu_s=100.0 + used,
            ),
            children=tuple(seat.children),
            asked=seat.asked,
            answered=seat.answers,
            groups=self._groups(seat) if seat.answers else (),
            flight=self._flight(seat, moves) if seat.answers else None,
        )

    def _groups(self, seat: _Seat) -> tuple[ProcessGroup, ...]:
        return tuple(self.groups[name] for name in seat.entered)

    def _flight(self, seat: _Seat, moves: dict[str, int]) -> FlightState:
        waits = {entry.group: entry.sequence for entry in reversed(seat.open)}
        progress = [
            GroupProgress(
                name=name,
                enqueued=number,
                completed=waits.get(name, number + 1) - 1 + (moves.get("completed", 0) if name == "0" else 0),
            )
            for name, number in seat.entered.items()
        ]
        return FlightState(progress=tuple(progress), open=tuple(seat.open), recent=tuple(seat.recent))
