"""The process group of a slice: calls among its members are carried out, all others are pruned.

A collective all of whose members run in the slice is carried out over gloo. Any other returns at once, with a result
from the first source that there is: recorded in another slice, by rule (as if every member were like this one), zeros.
Which it was stands in the call's record. A send or receive whose other side runs in the slice is carried out as well.

Source: PrismLLM (arXiv 2605.15617), abstract: slicing-based construction, pruned collectives. The order of sources and
the rules are this implementation's own.
"""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Variable
from torch.autograd.profiler import record_function

from prismllm.errors import ScriptError, SlicingError, call_site
from prismllm.model import UNEVEN, Call, Group

if TYPE_CHECKING:
    from prismllm.recorder import Recorder
    from prismllm.taint import Watch

GLOO_TIMEOUT = timedelta(seconds=90)
#: Payloads up to this size are kept for other slices: Python objects, shapes, flags.
KEPT_BYTES = 65_536
MARK = "prismllm::call"
_OBJECTS = ("recv_object_list", "broadcast_object_list", "scatter_object_list")


class Slice:
    """The state that the groups of one process share.

    Args:
        rank: Global rank of this process.
        world: Ranks of the job.
        members: Global ranks that run at the same time as this one, it included, ascending.
        store: Where members meet; None for a slice of one.
        payloads: Directory of payloads that slices leave for each other.
        hook: Records each call.
        unsent: Follows tensors of zeros that no rank has sent.
    """

    def __init__(
        self,
        rank: int,
        world: int,
        members: Sequence[int],
        store: Any,
        payloads: Path,
        hook: Recorder,
        unsent: Watch,
    ) -> None:
        self.rank, self.world, self.members = rank, world, tuple(members)
        self.payloads, self.hook, self.unsent = payloads, hook, unsent
        self.store = store
        self.groups: list[Group] = []
        self.grouped_ns = 0
        self.payload_counts: Counter[tuple[int, str]] = Counter()
        self.direct = self.connect("direct", self.members)

    def connect(self, name: str, ranks: Sequence[int]) -> Any:
        """Make a gloo group of these members of the slice; return None if this rank is not among them or alone."""
        if self.store is None or len(ranks) < 2 or self.rank not in ranks:
            return None
        prefix = dist.PrefixStore(f"prismllm/{name}/", self.store)
        return dist.ProcessGroupGloo(prefix, list(ranks).index(self.rank), len(ranks), GLOO_TIMEOUT)

    def make_group(self, ranks: Sequence[int], name: str, description: str) -> SlicedGroup | None:
        """Make a group as the script asked for it; return None if this rank is no member."""
        number = len(self.groups)
        self.groups.append(Group(list(ranks), description, call_site()))
        real = self.connect(f"g{number}", ranks) if set(ranks) <= set(self.members) else None
        self.grouped_ns = time.monotonic_ns()
        if self.rank not in ranks:
            return None
        return SlicedGroup(self, number, list(ranks), name, description, real)


class SlicedWork(dist.Work):  # type: ignore[misc]
    """A launched call.

    Args:
        hook: Records the wait.
        place: Of the call in its iteration.
        outputs: Tensors that it fills.
        real: Works that carry it out; none if it was pruned.
        held: What has to live as long as the call, as its inputs; gloo's own works hold them as long.
    """

    #: Calls without a wait that are still under way, with the memory that they use.
    dropped: ClassVar[list[tuple[Sequence[Any], Any]]] = []

    def __init__(self, hook: Recorder, place: int, outputs: list[Tensor], real: Sequence[Any], held: Any) -> None:
        super().__init__()
        self._hook, self._place, self._outputs, self._real, self._held = hook, place, outputs, real, held
        self._iteration = hook.iteration
        self._done = False
        self.dropped[:] = [one for one in self.dropped if not all(work.is_completed() for work in one[0])]

    def __del__(self) -> None:
        """Memory that is lent to a call under way stays."""
        if self._real:
            self.dropped.append((self._real, self._held))

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until the call is complete, in emulated time, too."""
        if not self._done:
            self._done = True
            with record_function(MARK):
                self._hook.enter()
                self._hook.ask(self._place)
                for one in self._real:
                    one.wait()
                self._real = ()
                if self._iteration != self._hook.iteration:
                    call = self._hook.steps[self._iteration].calls[self._place]
                    raise ScriptError(
                        f"rank {self._hook.rank} waits at {call_site()} in iteration {self._hook.iteration} for a call "
                        f"of iteration {self._iteration}: {call}. Wait for it before optimizer.step()."
                    )
                self._hook.waited(self._place)
        return True

    synchronize = wait

    def is_completed(self) -> bool:
        """A pruned call is complete as soon as it is launched."""
        return self._done or not self._real

    def is_success(self) -> bool:
        """Failures raise when waited for."""
        return True

    def result(self) -> list[Tensor]:
        """Return the tensors that the call has filled."""
        return self._outputs

    def get_future(self) -> torch.futures.Future[Any]:
        """A future that has its value already: DDP's reducer waits for it in C++ at the end of backward.

        That wait is told in a callback of the autograd engine that is queued here, so it runs right before the
        reducer's own.
        """
        for one in self._real:
            one.wait()
        future: torch.futures.Future[Any] = torch.futures.Future()
        future.set_result(self._outputs)
        try:
            Variable._execution_engine.queue_callback(self.wait)
        except RuntimeError:  # not in a backward pass
            self.wait()
        return future


def _refusing(what: str, remedy: str) -> Any:
    """Return a method of a group that cannot be sliced: it raises SlicingError."""

    def refuse(self: SlicedGroup, *_: Any, **__: Any) -> Any:
        raise SlicingError(f"rank {self._slice.rank} calls {what} at {call_site()}: {remedy}")

    return refuse


class SlicedGroup(dist.ProcessGroup):  # type: ignore[misc]
    """One group of a sliced job; made by `Slice.make_group`."""

    def __init__(self, part: Slice, number: int, ranks: list[int], name: str, description: str, real: Any) -> None:
        super().__init__(ranks.index(part.rank), len(ranks))
        self._slice, self._number, self._ranks, self._real = part, number, ranks, real
        self._name, self._description = name, description
        self._at = ranks.index(part.rank)
        self._n = len(ranks)

    # ------------------------------------------------------------------ what torch asks of a group

    def new_group(
        self,
        ranks: Sequence[int],
        timeout: timedelta | None = None,
        pg_options: Any = None,
        group_name: str = "",
        group_desc: str | None = None,
    ) -> SlicedGroup | None:
        """A further group; torch hands `dist.new_group` on to this."""
        return self._slice.make_group(ranks, group_name, group_desc or "")

    @property
    def group_name(self) -> str:
        """The name under which torch finds the group."""
        return self._name

    pg_name = group_name

    @property
    def group_desc(self) -> str:
        """The description that its maker gave."""
        return self._description

    def name(self) -> str:
        """Return the name of the backend."""
        return "prismllm"

    getBackendName = name

    def size(self) -> int:
        """Return the number of members in the full-size job."""
        return self._n

    def rank(self) -> int:
        """Return the place of this process in the group."""
        return self._at

    def abort(self) -> None:
        """Nothing to abort, or to shut down."""

    shutdown = abort

    # ------------------------------------------------------------------ one call

    def _call(  # noqa: PLR0913, PLR0917 - one place for what all calls have in common
        self,
        op: str,
        signature: str,
        nbytes: int,
        outputs: list[Tensor],
        carry_out: Callable[[], Any],
        invent: Callable[[], str],
        peer: int = -1,
        tag: int = 0,
        is_real: bool | None = None,
        kept: Sequence[tuple[str, Sequence[Tensor]]] = (),
    ) -> SlicedWork:
        hook = self._slice.hook
        with record_function(MARK):
            hook.enter()
            for key, tensors in kept:
                self._keep(key, tensors)
            real: list[Any] = []
            if self._real is not None if is_real is None else is_real:
                source = "real"
                done = carry_out()
                real = list(done) if isinstance(done, list) else [done]
            else:
                with torch.no_grad():
                    source = invent()
            number = hook.number(op, self._number, peer, tag)
            call = Call(op, self._number, number, signature, nbytes, peer, tag, call_site(), source)
            return SlicedWork(hook, hook.launched(call), outputs, real, carry_out)

    def _as_if_alike(self, tensors: Sequence[Tensor], reduce_op: Any) -> str:
        if reduce_op == dist.ReduceOp.SUM:
            for tensor in tensors:
                tensor.mul_(self._n)
        elif reduce_op == dist.ReduceOp.PRODUCT:
            for tensor in tensors:
                tensor.pow_(self._n)
        return "rule"

    def allreduce(self, tensors: Any, opts: Any = None, timeout: Any = None) -> SlicedWork:
        """Reduce over all members; by rule as if every member had this one's values."""
        many = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        opts = opts if hasattr(opts, "reduceOp") else _options(dist.AllreduceOptions(), reduceOp=opts)
        return self._call(
            "all_reduce", f"{_reduction(opts)} {_signature(many)}", _nbytes(many), many,
            lambda: self._real.allreduce(_lend(many), opts),
            lambda: self._as_if_alike(many, opts.reduceOp),
        )  # fmt: skip

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> SlicedWork:
        """Make several such calls at once."""
        opts = opts or dist.AllreduceCoalescedOptions()
        return self._call(
            "all_reduce", f"{_reduction(opts)} {_signature(tensors)}", _nbytes(tensors), tensors,
            lambda: self._real.allreduce_coalesced(_lend(tensors), opts),
            lambda: self._as_if_alike(tensors, opts.reduceOp),
        )  # fmt: skip

    def reduce(self, tensors: list[Tensor], opts: Any = None) -> SlicedWork:
        """Reduce to one member; by rule as if every member had this one's values."""
        opts = opts or dist.ReduceOptions()
        root = opts.rootRank
        return self._call(
            "reduce", f"{_reduction(opts)} {_signature(tensors)} root {root}", _nbytes(tensors), tensors,
            lambda: self._real.reduce(_lend(tensors), opts),
            lambda: self._as_if_alike(tensors if root == self._at else [], opts.reduceOp),
            peer=self._ranks[root],
        )  # fmt: skip

    def broadcast(self, tensors: Any, opts: Any = None, timeout: Any = None) -> SlicedWork:
        """Broadcast from one member: recorded values, else those of this rank."""
        many = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        opts = opts if hasattr(opts, "rootRank") else _options(dist.BroadcastOptions(), rootRank=opts or 0)
        root = opts.rootRank
        key = self._key("broadcast", root, root)

        def invent() -> str:
            if root == self._at:
                return "none"
            if self._load(key, many):
                return "recorded"
            self._refuse_objects(self._ranks[root])
            return "rule"

        return self._call(
            "broadcast", f"{_signature(many)} root {root}", _nbytes(many), many,
            lambda: self._real.broadcast(_lend(many), opts), invent, peer=self._ranks[root],
            kept=[(key, many)] if root == self._at else (),
        )  # fmt: skip

    def allgather(self, output_tensors: Any, input_tensors: Any, opts: Any = None, timeout: Any = None) -> SlicedWork:
        """Gather all members' tensors; by rule copies of this rank's."""
        if isinstance(input_tensors, Tensor):
            output_tensors, input_tensors = [output_tensors], [input_tensors]
        flat = [one for many in output_tensors for one in many]

        def invent() -> str:
            for many, own in zip(output_tensors, input_tensors, strict=True):
                for one in many:
                    _fill(one, own)
            return "rule"

        return self._call(
            "all_gather", _signature(input_tensors), _nbytes(flat), flat,
            lambda: self._real.allgather(_lend(output_tensors), _lend(input_tensors), opts or dist.AllgatherOptions()),
            invent,
        )  # fmt: skip

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None, timeout: Any = None) -> SlicedWork:
        """Gather all members' tensors into one."""
        return self.all_gather_single_coalesced([output], [input], opts)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> SlicedWork:
        """Make several such calls at once."""

        def invent() -> str:
            for one, own in zip(outputs, inputs, strict=True):
                _fill(one, own)
            return "rule"

        return self._call(
            "all_gather", _signature(inputs), _nbytes(outputs), outputs,
            lambda: [self._real._allgather_base(_lend(one), _lend(own), opts or dist.AllgatherOptions())
                     for one, own in zip(outputs, inputs, strict=True)],
            invent,
        )  # fmt: skip

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def gather(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> SlicedWork:
        """Gather all members' tensors on one member."""
        root = opts.rootRank
        flat = [one for many in output_tensors for one in many]

        def invent() -> str:
            for many in output_tensors:
                for one in many:
                    _fill(one, input_tensors[0])
            return "rule" if root == self._at else "none"

        return self._call(
            "gather", f"{_signature(input_tensors)} root {root}", _nbytes(input_tensors) * self._n, flat,
            lambda: self._real.gather(_lend(output_tensors), _lend(input_tensors), opts), invent,
            peer=self._ranks[root],
        )  # fmt: skip

    def scatter(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> SlicedWork:
        """Scatter one member's tensors, one to each."""
        root = opts.rootRank
        kept = []
        if root == self._at:
            kept = [(self._key("scatter", root, to), [one]) for to, one in enumerate(input_tensors[0])]

        def invent() -> str:
            if root == self._at:
                output_tensors[0].copy_(input_tensors[0][self._at])
                return "none"
            return self._from_elsewhere(self._key("scatter", root, self._at), root, output_tensors)

        return self._call(
            "scatter", f"{_signature(output_tensors)} root {root}", _nbytes(output_tensors) * self._n,
            list(output_tensors),
            lambda: self._real.scatter(_lend(output_tensors), _lend(input_tensors), opts), invent,
            peer=self._ranks[root], kept=kept,
        )  # fmt: skip

    def reduce_scatter(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> SlicedWork:
        """Reduce and scatter; by rule this rank's own share times members."""
        if isinstance(output_tensors, Tensor):
            output_tensors, input_tensors = [output_tensors], [input_tensors]
        opts = opts or dist.ReduceScatterOptions()

        def invent() -> str:
            for one, many in zip(output_tensors, input_tensors, strict=True):
                one.copy_(many[self._at])
            return self._as_if_alike(output_tensors, opts.reduceOp)

        return self._call(
            "reduce_scatter", f"{_reduction(opts)} {_signature(output_tensors)}",
            _nbytes([one for many in input_tensors for one in many]), list(output_tensors),
            lambda: self._real.reduce_scatter(_lend(output_tensors), _lend(input_tensors), opts), invent,
        )  # fmt: skip

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None, timeout: Any = None) -> SlicedWork:
        """Reduce and scatter from one tensor."""
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> SlicedWork:
        """Make several such calls at once."""
        opts = opts or dist.ReduceScatterOptions()

        def invent() -> str:
            for one, all_of_it in zip(outputs, inputs, strict=True):
                own = all_of_it.reshape(-1)[self._at * one.numel() : (self._at + 1) * one.numel()]
                one.copy_(own.view(one.shape))
            return self._as_if_alike(outputs, opts.reduceOp)

        return self._call(
            "reduce_scatter", f"{_reduction(opts)} {_signature(outputs)}", _nbytes(inputs), outputs,
            lambda: [self._real._reduce_scatter_base(_lend(one), _lend(own), opts)
                     for one, own in zip(outputs, inputs, strict=True)],
            invent,
        )  # fmt: skip

    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def all_to_all_single(
        self, output: Tensor, input: Tensor, output_splits: Any = None, input_splits: Any = None, opts: Any = None
    ) -> SlicedWork:
        """Exchange a piece with each member; by rule each sends the piece that this rank has for itself."""
        is_uneven = bool(input_splits or output_splits)
        rows = list(input_splits) if input_splits else [len(input) // self._n] * self._n
        first = sum(rows[: self._at])
        kind = f"{UNEVEN}{str(input.dtype).removeprefix('torch.')} {['*', *input.shape[1:]]}"
        return self._call(
            "all_to_all", kind if is_uneven else _signature([input]),
            max(input.nbytes, output.nbytes) if is_uneven else input.nbytes, [output],
            lambda: self._real.alltoall_base(
                _lend(output), _lend(input), output_splits or [], input_splits or [], opts or dist.AllToAllOptions()
            ),
            lambda: self._repeat([output], input[first : first + rows[self._at]], input),
        )  # fmt: skip

    alltoall_base = all_to_all_single

    def alltoall(self, output: list[Tensor], input: list[Tensor], opts: Any = None) -> SlicedWork:
        """Do the same with a list of tensors, whose sizes may always be uneven."""
        return self._call(
            "all_to_all", f"{UNEVEN}{str(input[0].dtype).removeprefix('torch.')}",
            max(_nbytes(input), _nbytes(output)), output,
            lambda: self._real.alltoall(_lend(output), _lend(input), opts or dist.AllToAllOptions()),
            lambda: self._repeat(output, input[self._at], torch.cat([one.reshape(-1) for one in input])),
        )  # fmt: skip

    def _repeat(self, outputs: Sequence[Tensor], own: Tensor, spare: Tensor) -> str:
        """Fill the outputs with copies of the own piece; of `spare` if that is empty; with zeros if both are."""
        source = own if own.numel() else spare
        for output in outputs:
            if source.numel() == 0 and output.numel():
                output.zero_()
                self._slice.unsent.add(output, call_site())
                return "zeros"
            _fill(output, source)
        return "rule"

    def barrier(self, opts: Any = None, timeout: Any = None) -> SlicedWork:
        """Wait for all members."""
        return self._call(
            "barrier", "", 0, [], lambda: self._real.barrier(dist.BarrierOptions()), lambda: "none"
        )  # fmt: skip

    def send(self, tensors: list[Tensor], to: int, tag: int = 0) -> SlicedWork:
        """Send to one member."""
        peer, part = self._ranks[to], self._slice
        return self._call(
            "send", _signature(tensors), _nbytes(tensors), [],
            lambda: part.direct.send(tensors, part.members.index(peer), self._number * 100_003 + tag),
            lambda: "none", peer, tag, is_real=peer in part.members and part.direct is not None,
            kept=[(self._key("send", self._at, to, tag), tensors)],
        )  # fmt: skip

    def recv(self, tensors: list[Tensor], source: int, tag: int = 0) -> SlicedWork:
        """Receive from one member: really, recorded values, or zeros."""
        peer, part = self._ranks[source], self._slice
        key = self._key("send", source, self._at, tag)
        return self._call(
            "recv", _signature(tensors), _nbytes(tensors), tensors,
            lambda: part.direct.recv(tensors, part.members.index(peer), self._number * 100_003 + tag),
            lambda: self._from_elsewhere(key, source, tensors),
            peer, tag, is_real=peer in part.members and part.direct is not None,
        )  # fmt: skip

    # ------------------------------------------------------------------ payloads of other slices

    def _key(self, op: str, source: int, to: int, tag: int = 0) -> str:
        """Return the name of the next payload from one place of the group to another."""
        key = f"{self._description or self._number}.{self._n}.{op}.{source}.{to}.{tag}"
        self._slice.payload_counts[self._number, key] += 1
        return f"{key}.{self._slice.payload_counts[self._number, key]}"

    def _places(self, key: str) -> tuple[Path, Path]:
        """The file of this group's own payload, and of whichever alike group was first."""
        return (self._slice.payloads / f"{self._ranks[0]}.{key}.npy", self._slice.payloads / f"alike.{key}.npy")

    def _keep(self, key: str, tensors: Sequence[Tensor]) -> None:
        if len(tensors) != 1 or tensors[0].nbytes > KEPT_BYTES:
            return
        if self._slice.unsent.site_of(tensors[0]) is not None:
            return  # made of zeros: a reader gets zeros, too, and knows
        raw = tensors[0].detach().contiguous().view(-1).view(torch.uint8).numpy()
        for path in self._places(key):
            if not path.exists():
                part = path.with_name(f"{path.name}.{self._slice.rank}.part")
                with part.open("wb") as file:
                    np.save(file, raw)
                part.replace(path)

    def _load(self, key: str, tensors: Sequence[Tensor]) -> bool:
        path = next((one for one in self._places(key) if one.exists()), None)
        if path is None or len(tensors) != 1:
            return False
        raw = np.load(path)
        if raw.nbytes != tensors[0].nbytes:
            return False
        tensors[0].copy_(torch.from_numpy(raw).view(tensors[0].dtype).view(tensors[0].shape))
        return True

    def _from_elsewhere(self, key: str, source: int, tensors: Sequence[Tensor]) -> str:
        if self._load(key, tensors):
            return "recorded"
        self._refuse_objects(self._ranks[source])
        for tensor in tensors:
            tensor.zero_()
            self._slice.unsent.add(tensor, call_site())
        return "zeros"

    def _refuse_objects(self, source: int) -> None:
        """A Python object cannot be made of zeros."""
        frame: Any = sys._getframe(2)
        while frame is not None:
            if frame.f_code.co_name in _OBJECTS:
                error = SlicingError(
                    f"rank {self._slice.rank} needs a Python object from rank {source} ({frame.f_code.co_name} at "
                    f"{call_site()}), which has not run yet. Put both into one slice (a larger --slice)."
                )
                error.needs = tuple(self._ranks) if self._n <= 64 else (source,)
                raise error
            frame = frame.f_back

    # ------------------------------------------------------------------ what cannot be sliced

    recv_anysource = _refusing(
        "recv from any source", "whose message comes first is not decided by the script. Name it."
    )
    split_group = merge_remote_group = _refusing(
        "split_group or merge_remote_group", "use dist.new_group or a DeviceMesh."
    )
    allgather_coalesced = _refusing("allgather_coalesced", "use all_gather_into_tensor.")
    monitored_barrier = _refusing("monitored_barrier", "use dist.barrier.")
    _start_coalescing = _refusing("a coalescing manager", "gloo has none; make the calls one by one.")


def _options(options: Any, **values: Any) -> Any:
    for name, value in values.items():
        if value is not None:
            setattr(options, name, value)
    return options


def _signature(tensors: Sequence[Tensor]) -> str:
    """Types and shapes: "float32 [2, 3]"."""
    if len(tensors) > 4:
        return f"{len(tensors)} tensors of {sum(one.numel() for one in tensors)}"
    return ", ".join(f"{str(one.dtype).removeprefix('torch.')} {list(one.shape)}" for one in tensors)


def _reduction(opts: Any) -> str:
    for name in ("SUM", "AVG", "MAX", "MIN", "PRODUCT", "BAND", "BOR", "BXOR"):
        if opts.reduceOp == getattr(dist.ReduceOp, name):
            return name.lower()
    return "premul_sum"


def _nbytes(tensors: Sequence[Tensor]) -> int:
    return sum(one.nbytes for one in tensors)


def _fill(output: Tensor, own: Tensor) -> str:
    """Fill the output with as many copies of `own` as it needs."""
    flat, source = output.detach().view(-1), own.detach().reshape(-1)
    if source.numel() == 0 or flat.numel() == 0:
        return "rule"
    for at in range(math.ceil(flat.numel() / source.numel())):
        piece = flat[at * source.numel() : (at + 1) * source.numel()]
        piece.copy_(source[: piece.numel()])
    return "rule"


def _lend(tensors: Any) -> Any:
    """Return the same memory without a reference to it, so that gloo is never the last to free a tensor.

    Gloo's threads keep what they work on a little longer than the call lasts, and PyTorch's profiler does not see what
    they free: a rank's account of memory would depend on which thread came first. `SlicedWork` holds the memory.
    The tensor's own storage is not asked for: autograd adds gradients in place only where Python has never seen it.

    Args:
        tensors: One, or lists of them in any depth.
    """
    if not isinstance(tensors, Tensor):
        return [_lend(one) for one in tensors]
    steps = zip(tensors.size(), tensors.stride(), strict=True)
    reach = sum((size - 1) * stride for size, stride in steps) + 1 if tensors.numel() else 0
    lent = torch._C._construct_storage_from_data_pointer(
        tensors.data_ptr(), tensors.device, reach * tensors.element_size()
    )
    return torch.empty(0, dtype=tensors.dtype).set_(lent, 0, tensors.size(), tensors.stride())
