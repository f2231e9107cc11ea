"""The c10d backend: a process group whose connections can be replaced one by one.

Each pair of members of a group has two connections, one for collectives and one for sends and receives. `prepare` opens
connections to a joiner beside the running ones while training continues. `switch`, at an iteration boundary, puts them
in the place of the leaver's and leaves all others as they are.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd.profiler import record_function
from torch.futures import Future

from trainmover import collectives as coll
from trainmover.context import Context, context
from trainmover.errors import LinkError, LinkTimeoutError, MoveError, TrainmoverError, UnsupportedError
from trainmover.sandbox import Recording
from trainmover.transport import Address, Link, Traffic, dial, pump

_DIRECT = 100
_SETUP_S = 60.0
Task = Callable[[coll.GroupContext], None]


class Work(dist._Work):  # type: ignore[misc]
    """One collective under way, as c10d's Work.

    A profiler that is on sees it as a span "trainmover:all_reduce", from its call to its end, as gloo's are seen.
    """

    def __init__(self, name: str, outputs: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._name, self._outputs = name, list(outputs)
        self._done = threading.Event()
        self._error: Exception | None = None
        self._future: Future[list[torch.Tensor]] = Future()
        if name and torch._C._autograd._profiler_enabled():
            with record_function(f"trainmover:{name}") as span:
                span._call_end_callbacks_on_future(self._future)

    def finish(self, error: Exception | None = None) -> None:
        """Mark the collective as ended and wake its waiters."""
        self._error = error
        self._done.set()
        self._future.set_result(self._outputs)  # never an exception: DDP's reducer would take it for tensors

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until the outputs are there.

        Raises:
            TrainmoverError: The collective failed outside an iteration.
            LinkTimeoutError: It has not ended within `timeout`; it is still under way.
        """
        seconds = timeout.total_seconds() if timeout else 0.0
        if not self._done.wait(seconds if seconds > 0 else None):
            raise LinkTimeoutError(f"{self._name or 'a collective'} has not ended within {seconds:g} s")
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self) -> bool:
        """Return whether it has ended, with or without an error."""
        return self._done.is_set()

    def is_success(self) -> bool:
        """Return whether it has ended without an error."""
        return self._done.is_set() and self._error is None

    def result(self) -> list[torch.Tensor]:
        """Return the output tensors."""
        return self._outputs

    synchronize = wait

    def get_future(self) -> Future[list[torch.Tensor]]:
        """Return the future that DDP's reducer waits for."""
        return self._future


class SerialExecutor:
    """Runs tasks one after another in a thread, or in the caller's thread if no task is waiting."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._n_waiting = 0
        self._count = threading.Lock()
        self._busy = threading.Lock()

    def submit(self, task: Callable[[], None], *, here: bool) -> None:
        """Run the task. With `here`, the caller's thread runs it if it would be next."""
        with self._count:
            inline = here and self._n_waiting == 0
            self._n_waiting += 1
        if inline:
            self._run(task)
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
            atexit.register(self.stop)
        self._tasks.put(task)

    @property
    def idle(self) -> bool:
        """Return True if all submitted tasks have ended."""
        return self._n_waiting == 0

    def stop(self) -> None:
        """End the thread after the submitted tasks."""
        self._tasks.put(None)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(1.0)

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            self._run(task)

    def _run(self, task: Callable[[], None]) -> None:
        try:
            with self._busy:
                task()
        finally:
            with self._count:
                self._n_waiting -= 1


class MovableGroup(dist.ProcessGroup):  # type: ignore[misc]
    """A c10d process group over connections that can be replaced one by one.

    Args:
        owner: The process's connections.
        name: The same on all members.
        rank: This member's rank within the group.
        members: Global ranks, by rank within the group.
        timeout_s: Longest wait for a peer in one collective.
    """

    def __init__(self, owner: Context, name: str, rank: int, members: Sequence[int], timeout_s: float) -> None:
        super().__init__(rank, len(members))
        self.label = name
        self.ordinal = len(owner.groups)
        self.members = tuple(members)
        self.collective: dict[int, Link] = {}
        self.direct: dict[int, Link] = {}
        self._owner = owner
        self._rank = rank
        self._timeout_s = timeout_s
        self._prepared: dict[int, dict[int, tuple[Link, Link]]] = {}
        self._sequence = 0
        self._executor = SerialExecutor(f"trainmover-{name}")
        self._direct_executors: dict[tuple[str, int], SerialExecutor] = {}
        self._early: dict[int, list[tuple[int, bytearray]]] = {}

    # -- connections -------------------------------------------------------------------------------------------------

    def prepare(self, joiners: Mapping[int, Address], generation: int, deadline: float) -> None:
        """Open connections to joiners beside the running ones; at the start of the job all members are joiners.

        A stayer dials; a joiner waits for stayers, and for joiners of lower rank.

        Args:
            joiners: Address of each, by the global rank that it will have.
            generation: The generation that is being prepared.
            deadline: `time.monotonic()` after which a wait is an error.
        """
        own = self.members[self._rank]
        pairs: dict[int, tuple[Link, Link]] = {}
        try:
            if own in joiners:
                for place, member in enumerate(self.members):
                    if member != own and (member not in joiners or member < own):
                        pairs[place] = self._take_pair(member, generation, deadline)
            for place, member in enumerate(self.members):
                if member in joiners and (own not in joiners or member > own):
                    pairs[place] = self._dial_pair(member, joiners[member], generation, deadline)
        except TrainmoverError:
            _close(pairs.values())
            raise
        self._prepared[generation] = pairs

    def switch(self, generation: int) -> None:
        """Replace connections by the prepared ones of the same ranks, at an iteration boundary.

        Raises:
            MoveError: A collective is still under way.
        """
        if not self.idle:
            raise MoveError(f"group {self.label}: a collective crosses the iteration boundary; wait for it within")
        pairs = self._prepared.pop(generation, {})
        for place, (collective, direct) in pairs.items():
            _close([(self.collective[place], self.direct[place])] if place in self.collective else [])
            self.collective[place], self.direct[place] = collective, direct
        if pairs:
            self.rewind()
        for older in [one for one in self._prepared if one < generation]:
            self.abandon(older)

    def abandon(self, generation: int | None = None) -> None:
        """Close connections that were prepared for one generation, or for all."""
        for one in list(self._prepared) if generation is None else [generation]:
            _close(self._prepared.pop(one, {}).values())

    def links(self) -> list[Link]:
        """Return all connections that are in use."""
        return [*self.collective.values(), *self.direct.values()]

    def rewind(self) -> None:
        """At a message boundary, count collectives from 0 again and drop messages that came early."""
        self._sequence = 0
        self._early.clear()

    def disconnect(self) -> None:
        """Close all connections."""
        for link in self.links():
            link.close()
        self.collective.clear()
        self.direct.clear()
        self.abandon()

    @property
    def idle(self) -> bool:
        """Return True if no collective, send or receive is under way."""
        return self._executor.idle and all(executor.idle for executor in self._direct_executors.values())

    def _dial_pair(self, member: int, address: Address, generation: int, deadline: float) -> tuple[Link, Link]:
        left_s = max(0.1, deadline - time.monotonic())
        one, two = (
            dial(address, self._owner.hello(purpose, self.label, generation, member), left_s)
            for purpose in ("collective", "direct")
        )
        return one, two

    def _take_pair(self, member: int, generation: int, deadline: float) -> tuple[Link, Link]:
        take = self._owner.listener.take
        one, two = (
            take(purpose, self.label, generation, member, self._owner.wake, deadline)
            for purpose in ("collective", "direct")
        )
        return one, two

    # -- running collectives -----------------------------------------------------------------------------------------

    def _submit(self, name: str, outputs: Sequence[torch.Tensor], task: Task, opts: Any) -> Work:
        """Run one collective in its turn."""
        sequence = self._sequence
        if self._owner.replay is None:
            self._sequence += 1
        inline = not getattr(opts, "asyncOp", True)
        return self._run(name, outputs, lambda: task(self._context(sequence)), self._executor, here=inline)

    def _run(
        self,
        name: str,
        outputs: Sequence[torch.Tensor],
        task: Callable[[], None],
        executor: SerialExecutor,
        *,
        here: bool,
    ) -> Work:
        """Run one operation. In the sandbox the recording answers it; after a failure it does nothing."""
        work, owner = Work(name, outputs), self._owner
        if owner.replay is not None:
            owner.replay.answer(self.ordinal, name, outputs)
            work.finish()
            return work
        note = owner.recorder.reserve(self.ordinal, name) if owner.recorder is not None else None

        def run() -> None:
            error = self._attempt(task)
            if note is not None and error is None:
                note.outputs = [one.detach().clone() for one in outputs]
            work.finish(error)

        executor.submit(run, here=here)
        return work

    def _attempt(self, task: Callable[[], None]) -> Exception | None:
        owner = self._owner
        if owner.broken is not None:
            return owner.broken
        if owner.failure is not None:
            return None if owner.shielded else owner.failure
        try:
            task()
        except LinkError as error:
            return None if owner.failed(error) else error
        except Exception as error:  # noqa: BLE001 - raised in the thread that waits for the collective
            owner.broken = owner.broken or error
            return error
        return None

    def _context(self, sequence: int) -> coll.GroupContext:
        return coll.GroupContext(
            self._rank, self.size(), self.collective, self._owner.wake, self._timeout_s, sequence & 0xFFFFFFFF
        )

    # -- collectives of c10d -----------------------------------------------------------------------------------------

    def getBackendName(self) -> str:
        """Return the backend's name."""
        return "trainmover"

    def getGroupName(self) -> str:
        """Return the group's name, which is the same on all members."""
        return self.label

    group_name = property(getGroupName)

    def _set_group_name(self, name: str) -> None:
        """Ignore the name; it was given when the group was created."""

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Work:
        """Reduce tensors in place on all ranks."""
        opts = opts if opts is not None else dist.AllreduceOptions()
        operation = _operation(opts.reduceOp, tensors)

        def task(ctx: coll.GroupContext) -> None:
            with _flats(tensors) as flats:
                for flat in flats:
                    coll.all_reduce(ctx, flat, operation)

        return self._submit("all_reduce", tensors, task, opts)

    allreduce_coalesced = allreduce

    def reduce(self, tensors: list[torch.Tensor], opts: Any) -> Work:
        """Reduce a tensor at the root."""
        operation, root = _operation(opts.reduceOp, tensors), opts.rootRank

        def task(ctx: coll.GroupContext) -> None:
            with _flats(tensors) as flats:
                coll.reduce(ctx, flats[0], root, operation)

        return self._submit("reduce", tensors, task, opts)

    def broadcast(self, tensors: list[torch.Tensor], opts: Any) -> Work:
        """Send the root's tensors to all ranks."""
        root = opts.rootRank

        def task(ctx: coll.GroupContext) -> None:
            with _flats(tensors) as flats:
                for flat in flats:
                    coll.broadcast(ctx, flat, root)

        return self._submit("broadcast", tensors, task, opts)

    def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None) -> Work:
        """Gather a list of all ranks' tensors."""

        def task(ctx: coll.GroupContext) -> None:
            with _flats(outputs[0]) as places:
                _gather(ctx, places, _flat(inputs[0]))

        return self._submit("all_gather", outputs[0], task, opts)

    def all_gather_single(self, output: torch.Tensor, given: torch.Tensor, opts: Any = None) -> Work:
        """Gather all ranks' tensors into one tensor."""
        return self.all_gather_single_coalesced([output], [given], opts)

    def all_gather_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> Work:
        """Gather several tensors of all ranks, each into one tensor."""

        def task(ctx: coll.GroupContext) -> None:
            with _flats(outputs) as flats:
                for flat, given in zip(flats, inputs, strict=True):
                    _gather(ctx, list(flat.tensor_split(ctx.size)), _flat(given))

        return self._submit("all_gather", outputs, task, opts)

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def reduce_scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any = None) -> Work:
        """Reduce lists of tensors; each rank gets the one of its rank."""
        operation = _operation(opts.reduceOp, outputs)

        def task(ctx: coll.GroupContext) -> None:
            with _flats(outputs) as flats:
                coll.reduce_scatter(ctx, flats[0], [_flat(piece) for piece in inputs[0]], operation)

        return self._submit("reduce_scatter", outputs, task, opts)

    def reduce_scatter_single(self, output: torch.Tensor, given: torch.Tensor, opts: Any = None) -> Work:
        """Reduce a tensor; each rank gets the segment of its rank."""
        return self.reduce_scatter_single_coalesced([output], [given], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> Work:
        """Reduce several tensors; each rank gets the segments of its rank."""
        operation = _operation(opts.reduceOp, outputs)

        def task(ctx: coll.GroupContext) -> None:
            with _flats(outputs) as flats:
                for flat, given in zip(flats, inputs, strict=True):
                    coll.reduce_scatter(ctx, flat, _flat(given).tensor_split(ctx.size), operation)

        return self._submit("reduce_scatter", outputs, task, opts)

    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def alltoall(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None) -> Work:
        """Send one tensor from each rank to each rank."""

        def task(ctx: coll.GroupContext) -> None:
            with _flats(outputs) as places:
                _all_to_all(ctx, places, [_flat(one) for one in inputs])

        return self._submit("all_to_all", outputs, task, opts)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        given: torch.Tensor,
        output_sizes: list[int],
        input_sizes: list[int],
        opts: Any = None,
    ) -> Work:
        """Exchange rows of one tensor. Sizes are rows per rank; empty sizes mean equal shares."""

        def task(ctx: coll.GroupContext) -> None:
            with _flats([output]) as flats:
                places = _rows(flats[0], output, output_sizes, ctx.size)
                _all_to_all(ctx, places, _rows(_flat(given), given, input_sizes, ctx.size))

        return self._submit("all_to_all", [output], task, opts)

    alltoall_base = all_to_all_single

    def gather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any) -> Work:
        """Gather all ranks' tensors at the root."""
        root = opts.rootRank
        output = outputs[0] if outputs else []

        def task(ctx: coll.GroupContext) -> None:
            if ctx.rank != root:
                coll.exchange(ctx, {root: _flat(inputs[0])}, {})
                return
            with _flats(output) as places:
                places[root].copy_(_flat(inputs[0]))
                coll.exchange(ctx, {}, dict(enumerate(places)))

        return self._submit("gather", output, task, opts)

    def scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any) -> Work:
        """Send one tensor from the root to each rank."""
        root = opts.rootRank

        def task(ctx: coll.GroupContext) -> None:
            with _flats(outputs) as flats:
                if ctx.rank == root:
                    flats[0].copy_(_flat(inputs[0][root]))
                    coll.exchange(ctx, {rank: _flat(one) for rank, one in enumerate(inputs[0])}, {})
                else:
                    coll.exchange(ctx, {}, {root: flats[0]})

        return self._submit("scatter", outputs, task, opts)

    def barrier(self, opts: Any = None) -> Work:
        """Wait for all ranks."""
        return self._submit("barrier", [], coll.barrier, opts)

    def _start_coalescing(self, _device: torch.device) -> None:
        """Do nothing: collectives run when they are called."""

    def _end_coalescing(self, _device: torch.device) -> Work:
        work = Work("", [])
        work.finish()
        return work

    # -- sends and receives ------------------------------------------------------------------------------------------

    def send(self, tensors: list[torch.Tensor], peer: int, tag: int = 0) -> Work:
        """Send to one peer; the work ends when the connection has taken all bytes."""
        flat = _flat(tensors[0])

        def task() -> None:
            view = coll.bytes_of(flat)
            traffic = Traffic(self.direct[peer])
            traffic.sends(tag & 0xFFFFFFFF, _DIRECT, view.nbytes)
            traffic.push(view)
            pump([traffic], self._owner.wake, time.monotonic() + self._timeout_s)

        return self._directly("send", peer, [], task)

    def recv(self, tensors: list[torch.Tensor], peer: int, tag: int = 0) -> Work:
        """Receive from one peer what it sent with the same tag."""

        def task() -> None:
            with _flats(tensors) as flats:
                self._receive(peer, tag & 0xFFFFFFFF, coll.bytes_of(flats[0]))

        return self._directly("recv", peer, tensors, task)

    def recv_anysource(self, _tensors: list[torch.Tensor], _tag: int = 0) -> Work:
        """Refuse the operation.

        Raises:
            UnsupportedError: Always.
        """
        raise UnsupportedError("receiving from any source is not in the trainmover backend: name the source rank")

    def _directly(self, name: str, peer: int, outputs: list[torch.Tensor], task: Callable[[], None]) -> Work:
        executor = self._direct_executors.get((name, peer))
        if executor is None:
            executor = self._direct_executors[name, peer] = SerialExecutor(f"trainmover-{self.label}-{name}-{peer}")
        return self._run(name, outputs, task, executor, here=False)

    def _receive(self, peer: int, tag: int, view: memoryview) -> None:
        early = self._early.setdefault(peer, [])
        for place, (other, body) in enumerate(early):
            if other == tag:
                del early[place]
                _fits(peer, len(body), view.nbytes)
                view[:] = body
                return
        traffic = Traffic(self.direct[peer])
        found: list[int] = []

        def look(number: int, _code: int, n_bytes: int) -> None:
            if number == tag:
                _fits(peer, n_bytes, view.nbytes)
                traffic.into(view)
                found.append(number)
                return
            body = bytearray(n_bytes)
            early.append((number, body))
            traffic.into(memoryview(body), lambda: traffic.listens(look))

        traffic.listens(look)
        pump([traffic], self._owner.wake, time.monotonic() + self._timeout_s)

    def shutdown(self) -> None:
        """End threads and connections."""
        self._executor.stop()
        for executor in self._direct_executors.values():
            executor.stop()
        self.disconnect()
        self._owner.groups.pop(self.label, None)

    abort = shutdown


def _fits(peer: int, n_sent: int, n_wanted: int) -> None:
    if n_sent != n_wanted:
        raise UnsupportedError(f"rank {peer} of the group sent {n_sent} bytes, the receiving tensor has {n_wanted}")


def _close(pairs: Any) -> None:
    for pair in pairs:
        for link in pair:
            link.close()


@contextlib.contextmanager
def _flats(tensors: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Give contiguous one-dimensional views of tensors; write back those that had to be copies."""
    flats = [_flat(tensor) for tensor in tensors]
    yield flats
    for tensor, flat in zip(tensors, flats, strict=True):
        if not tensor.is_contiguous():
            tensor.detach().copy_(flat.view(tensor.shape))


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.device.type != "cpu" or tensor.is_sparse:
        raise UnsupportedError(
            f"a {tensor.layout} tensor on {tensor.device}: the trainmover backend moves dense CPU tensors"
        )
    return tensor.detach().contiguous().view(-1)


def _gather(ctx: coll.GroupContext, places: list[torch.Tensor], given: torch.Tensor) -> None:
    places[ctx.rank].copy_(given)
    coll.exchange(ctx, dict.fromkeys(ctx.links, given), {peer: places[peer] for peer in ctx.links})


def _all_to_all(ctx: coll.GroupContext, places: Sequence[torch.Tensor], given: Sequence[torch.Tensor]) -> None:
    places[ctx.rank].copy_(given[ctx.rank])
    coll.exchange(ctx, {peer: given[peer] for peer in ctx.links}, {peer: places[peer] for peer in ctx.links})


def _rows(flat: torch.Tensor, shaped: torch.Tensor, sizes: list[int], n_parts: int) -> list[torch.Tensor]:
    if not sizes:
        return list(flat.tensor_split(n_parts))
    row = flat.numel() // max(1, shaped.size(0))
    return list(flat.split([size * row for size in sizes]))


def _operation(given: Any, tensors: Sequence[torch.Tensor]) -> str:
    """Return a reduction's name, after a check that the tensors can be reduced."""
    name = next((name for name in coll.COMBINE if given == getattr(dist.ReduceOp, name)), repr(given))
    coll.check(name, tensors)
    return name


def create(options: Any, _own_options: object = None) -> MovableGroup:
    """Create a group of this backend; c10d calls this."""
    owner = context()
    members = list(options.global_ranks_in_group) or list(range(options.group_size))
    timeout_s = options.timeout.total_seconds()
    group = MovableGroup(owner, options.group_id, options.group_rank, members, timeout_s)
    if owner.rank < 0:
        owner.rank = members[options.group_rank]
        if os.environ.get("TRAINMOVER_CONTROLLER"):
            owner.recorder = Recording()
    owner.groups[group.label] = group
    if owner.replay is None:
        deadline = time.monotonic() + min(_SETUP_S, timeout_s)
        addresses = _exchange_addresses(owner, options.store, members)
        group.prepare(addresses, owner.generation, deadline)
        group.switch(owner.generation)
    return group


def _exchange_addresses(owner: Context, store: Any, members: Sequence[int]) -> dict[int, Address]:
    """Return the members' addresses, through the group's store if they are not known."""
    if owner.generation:
        raise MoveError(
            "a new process group cannot be made after a member was replaced; make all groups before the first iteration"
        )
    if not set(members) <= owner.directory.keys():
        host, port = owner.listener.address
        own_token = "" if owner.token else owner.own_token  # the job's token is never in the store
        store.set(f"trainmover-{owner.rank}", f"{host} {port} {own_token}")
        for member in members:
            where, port_text, token = store.get(f"trainmover-{member}").decode().split(" ")
            owner.directory[member] = (where, int(port_text))
            if token:
                owner.tokens[member] = token
    return {member: owner.directory[member] for member in members}


def register() -> None:
    """Register the backend "trainmover" with torch.distributed; importing the package calls this."""
    if "trainmover" not in dist.Backend.backend_list:
        dist.Backend.register_backend("trainmover", create, extended_api=True, devices=["cpu"])
