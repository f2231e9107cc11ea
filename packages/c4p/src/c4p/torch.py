"""`torch.distributed` over a c4p group: `import c4p.torch`, then `init_process_group("c4p")`.

For tensors in the memory of the host. There is no send, recv, gather, scatter or all-to-all: data go along a ring. A
job that needs them makes a second group with gloo.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Work
from torch.autograd.profiler import record_function

from c4p.errors import BadRequest
from c4p.group import Group, Options
from c4p.ring import Combine, Operation

_REDUCTIONS: dict[str, Callable[..., Any]] = {
    "SUM": torch.add,
    "AVG": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}


class ProcessGroupC4P(dist.ProcessGroup):  # type: ignore[misc]  # torch is not followed by mypy
    """A process group whose members form a ring over planned paths.

    Args:
        store: torch's store, with this group's prefix.
        rank: This member.
        size: Members.
        timeout: Longest time of an operation.
        options: How to communicate; None: from the environment, see `options_from`.
        name: Of the group, as torch calls it: the same on all members and at each start of the job.

    Attributes:
        c4p: The group beneath: its paths, events and counters.
    """

    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        timeout: datetime.timedelta,
        options: Options | None = None,
        name: str = "",
    ) -> None:
        super().__init__(rank, size)
        self._rank, self._size = rank, size
        options = options or options_from(os.environ, timeout.total_seconds(), name)
        self.c4p = Group(rank, size, store, options)

    # -- identity ------------------------------------------------------------------------------------------------

    def getBackendName(self) -> str:
        """Return the backend's name."""
        return "c4p"

    def shutdown(self) -> None:
        """Close the group; `destroy_process_group` calls it."""
        self.c4p.close()

    def abort(self) -> None:
        """End the group at once; the other members get an error."""
        self.c4p.abort("abort() was called")

    # -- operations -------------------------------------------------------------------------------------------------

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        """Reduce each tensor over all members, in place; bitwise what gloo gives (README: how far)."""
        return self._all(
            "all_reduce", (self._allreduce_one(tensor, _operator(opts)) for tensor in tensors), list(tensors)
        )

    allreduce_coalesced = allreduce

    def broadcast(self, tensors: list[torch.Tensor], opts: Any) -> Any:
        """Copy the tensor of `opts.rootRank` to all members."""

        def one(tensor: torch.Tensor) -> Future[None]:
            dense, back = _dense(tensor)
            return self._run(self.c4p.broadcast_operation(_buffer(dense), opts.rootRank), back)

        return self._all("broadcast", (one(tensor) for tensor in tensors), list(tensors))

    def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None) -> Any:
        """Gather every member's tensor on every member."""
        del opts
        works = (self._gather_list(out, one) for out, one in zip(outputs, inputs, strict=True))
        return self._all("all_gather", works, [tensor for out in outputs for tensor in out])

    def all_gather_single(self, output: torch.Tensor, one: torch.Tensor, opts: Any = None) -> Any:
        """Gather every member's tensor, one after the other, in `output`."""
        return self.all_gather_single_coalesced([output], [one], opts)

    def all_gather_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> Any:
        """The same for several tensors."""
        del opts
        works = (self._gather_single(out, one) for out, one in zip(outputs, inputs, strict=True))
        return self._all("all_gather", works, list(outputs))

    def reduce_scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any = None) -> Any:
        """Reduce the list of each member; each gets the element of its rank."""
        flat = [torch.cat([part.reshape(-1) for part in parts]) for parts in inputs]
        return self.reduce_scatter_single_coalesced(outputs, flat, opts)

    def reduce_scatter_single(self, output: torch.Tensor, one: torch.Tensor, opts: Any = None) -> Any:
        """Reduce a tensor; each member gets the slice of its rank."""
        return self.reduce_scatter_single_coalesced([output], [one], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> Any:
        """The same for several tensors."""
        pairs = zip(outputs, inputs, strict=True)
        works = (self._scatter_one(out, one.reshape(-1).clone(), opts) for out, one in pairs)
        return self._all("reduce_scatter", works, list(outputs))

    _allgather_base = all_gather_single  # names of torch before 2.13
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def barrier(self, opts: Any = None) -> Any:
        """Wait for all members."""
        del opts
        one = torch.zeros(1, dtype=torch.uint8)
        return self._all("barrier", [self._allreduce_one(one, dist.ReduceOp.SUM)], [one])

    def _no(self, *_: Any, **__: Any) -> Any:
        how = 'make a second group for it: torch.distributed.new_group(backend="gloo")'
        raise BadRequest(f"c4p sends along a ring: it has no send, recv, gather, scatter, reduce or all-to-all; {how}")

    send = recv = recv_anysource = gather = scatter = reduce = alltoall = all_to_all_single = alltoall_base = _no

    # -- one tensor -------------------------------------------------------------------------------------------------

    def _allreduce_one(self, tensor: torch.Tensor, operator: Any) -> Future[None]:
        dense, back = _dense(tensor)
        flat = dense.reshape(-1)
        name, combine = _combine(flat, operator)
        facts = (str(flat.dtype), name)

        def finish() -> None:
            if name == "AVG":
                dense.div_(self._size)
            if back:
                back()

        return self._run(self.c4p.operation("allreduce", _buffer(flat), flat.element_size(), combine, facts), finish)

    def _gather_single(
        self, output: torch.Tensor, one: torch.Tensor, finish: Callable[[], None] | None = None
    ) -> Future[None]:
        dense, back = _dense(output)
        flat = dense.reshape(-1)
        if flat.dtype != one.dtype or flat.numel() != self._size * one.numel():
            what = f"output of {flat.numel()} {flat.dtype} for {self._size} inputs of {one.numel()} {one.dtype}"
            raise BadRequest(f"{what}: it must hold exactly all of them")
        flat[self._rank * one.numel() : (self._rank + 1) * one.numel()] = one.reshape(-1)
        operation = self.c4p.operation("allgather", _buffer(flat), flat.element_size(), facts=(str(flat.dtype),))
        return self._run(operation, finish or back)

    def _gather_list(self, outputs: Sequence[torch.Tensor], one: torch.Tensor) -> Future[None]:
        if len(outputs) != self._size or any(out.numel() != one.numel() for out in outputs):
            raise BadRequest(f"{self._size} output tensors of {one.numel()} elements are needed, one for each rank")
        gathered = torch.empty(self._size, one.numel(), dtype=one.dtype)

        def finish() -> None:
            for out, row in zip(outputs, gathered, strict=True):
                out.copy_(row.reshape(out.shape))

        return self._gather_single(gathered, one, finish)

    def _scatter_one(self, output: torch.Tensor, work: torch.Tensor, opts: Any) -> Future[None]:
        if work.numel() != self._size * output.numel() or work.dtype != output.dtype:
            what = f"input of {work.numel()} {work.dtype} for {self._size} outputs of {output.numel()} {output.dtype}"
            raise BadRequest(f"{what}: it must be exactly as long as all of them")
        name, combine = _combine(work, _operator(opts))

        def finish() -> None:
            mine = work.reshape(self._size, -1)[self._rank].reshape(output.shape)
            output.copy_(mine / self._size if name == "AVG" else mine)

        facts = (str(work.dtype), name)
        operation = self.c4p.operation("reduce_scatter", _buffer(work), work.element_size(), combine, facts)
        return self._run(operation, finish)

    def _run(self, operation: Operation, finish: Callable[[], None] | None) -> Future[None]:
        """Start an operation; `finish` runs on the transport's thread before the returned future is done."""
        done: Future[None] = Future()

        def after(future: Future[None]) -> None:
            error = future.exception()
            if error is None and finish is not None:
                try:
                    finish()
                except Exception as failed:  # noqa: BLE001 (goes to whoever waits)
                    error = failed
            if error is not None:
                done.set_exception(error)
            else:
                done.set_result(None)

        self.c4p.start(operation).add_done_callback(after)
        return done

    def _all(self, name: str, futures: Any, results: list[torch.Tensor] | None = None) -> Any:
        """Return torch's handle for several operations, with `results` as its value, which DDP reads.

        A profiler that is on sees it as a span "c4p:all_reduce", as it sees gloo's.
        """
        whole: Any = torch.futures.Future()
        if torch._C._autograd._profiler_enabled():
            with record_function(f"c4p:{name}") as span:
                span._call_end_callbacks_on_future(whole)
        waited = list(futures)
        if not waited:
            whole.set_result(results or [])
        left = [len(waited)]

        def after(future: Future[None]) -> None:
            left[0] -= 1  # only the transport's thread comes here, or the caller's where nothing is sent
            error = future.exception()
            if error is not None:
                if not whole.done():
                    whole.set_exception(error)
            elif left[0] == 0 and not whole.done():
                whole.set_result(results or [])

        for future in waited:
            future.add_done_callback(after)
        return _Handle(whole)


class _Handle(Work):
    """torch's handle of an operation; `wait` raises the operation's error."""

    def __init__(self, future: Any) -> None:
        super().__init__()
        self._future = future

    def wait(self, timeout: datetime.timedelta | None = None) -> bool:
        """Wait until the operation has ended; the group's time-out applies."""
        del timeout
        self._future.wait()
        return True

    def is_completed(self) -> bool:
        """Return True if it has ended."""
        return bool(self._future.done())

    def get_future(self) -> Any:
        """Return torch's future of the results, for DDP."""
        return self._future


def options_from(environment: Any, timeout_s: float, group: str = "") -> Options:
    """Return a group's options from environment variables.

    Args:
        environment: `C4P_ADDRESS` (own address), `C4P_SOCKETS` (connections to a neighbour), `C4P_PORTS` (planned or
            random), `C4P_PLANNER` (URL), `C4P_JOB` (name at the planner).
        timeout_s: Longest time of an operation.
        group: Name of the group within the job; it follows the job's name, so that a job's groups are kept apart.

    Raises:
        BadRequest: A variable cannot be used.
    """
    sockets = environment.get("C4P_SOCKETS", "4")
    if not sockets.isdigit():
        raise BadRequest(f"C4P_SOCKETS={sockets!r}: a number of connections to a neighbour, such as 4")
    job = environment.get("C4P_JOB", "")
    return Options(
        address=environment.get("C4P_ADDRESS", ""),
        sockets=int(sockets),
        ports=environment.get("C4P_PORTS", "planned"),
        planner=environment.get("C4P_PLANNER", ""),
        job=f"{job}/{group}" if job and group else job,
        timeout_s=timeout_s,
    )


def _operator(opts: Any) -> Any:
    return getattr(opts, "reduceOp", dist.ReduceOp.SUM) if opts is not None else dist.ReduceOp.SUM


def _dense(tensor: torch.Tensor) -> tuple[torch.Tensor, Callable[[], None] | None]:
    """Return a contiguous tensor, and a function that copies its values back if it is a copy."""
    if tensor.device.type != "cpu" or tensor.is_sparse:
        raise BadRequest(f"c4p carries dense tensors in the host's memory, this one is on {tensor.device}")
    tensor = tensor.detach()
    if tensor.is_contiguous():
        return tensor, None
    copy = tensor.contiguous()
    return copy, lambda: tensor.copy_(copy)


def _buffer(tensor: torch.Tensor) -> memoryview:
    flat = tensor.reshape(-1)
    return memoryview(flat.view(torch.uint8).numpy())


def _combine(flat: torch.Tensor, operator: Any) -> tuple[str, Combine]:
    """Return a reduction's name, and the function that reduces received bytes into a tensor."""
    name = next((name for name in _REDUCTIONS if operator == getattr(dist.ReduceOp, name)), "")
    if not name:
        raise BadRequest(f"c4p has no reduction {operator}; there are {', '.join(_REDUCTIONS)}")
    if name[0] == "B" and (flat.is_floating_point() or flat.is_complex()):
        raise BadRequest(f"{name} of {flat.dtype}: bits are combined for integers only")
    if name == "AVG" and not (flat.is_floating_point() or flat.is_complex()):
        raise BadRequest(f"AVG of {flat.dtype}: only floating-point tensors have a mean")
    one = flat.new_zeros(1)
    try:
        _REDUCTIONS[name](one, one, out=one)
    except RuntimeError as error:  # else it would break the group on the transport's thread
        raise BadRequest(f"torch has no {name} of {flat.dtype}: {error}") from error

    def combine(start: int, stop: int, payload: memoryview) -> None:
        mine = flat[start:stop]
        _REDUCTIONS[name](mine, torch.frombuffer(payload, dtype=flat.dtype), out=mine)

    return name, combine


def _create(at: Any, _: Any) -> ProcessGroupC4P:
    return ProcessGroupC4P(at.store, at.group_rank, at.group_size, at.timeout, name=str(at.group_id))


if not hasattr(dist.Backend, "C4P"):
    dist.Backend.register_backend("c4p", _create, extended_api=True, devices=["cpu"])
