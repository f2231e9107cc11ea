"""What a window boils down to on one worker: a few kilobytes of behavior.

The paper's P(f, w) = (β, μ, σ) (EROICA, section 4.2, equations 1-5) plus counts and durations, because "same speed,
more work" and "same work, slower" end in different causes, plus the durations of collectives, because who waits for
whom is read from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from eroica.model.worker import ProcessGroup, Worker

FunctionKind = Literal["compute", "memory", "collective", "python", "gc", "other"]
Phase = Literal["input", "forward", "backward", "optimizer", "other"]
#: All but the loading of data.
BESIDE_INPUT: tuple[Phase, ...] = ("forward", "backward", "optimizer", "other")
ThreadRole = Literal["training", "autograd", "collective", "device", "background", "loader", "child"]
#: Threads that are never critical themselves: others of the process, of its data loaders' processes, and of other
#: processes that it has started.
ASIDE: frozenset[ThreadRole] = frozenset({"background", "loader", "child"})


#: Name of the rows, of kind "other", of a host that launches kernels while its accelerator has no work.
LAUNCHING = "launching kernels"


class FunctionKey(msgspec.Struct, frozen=True, kw_only=True, order=True, gc=False):
    """Identity of a function across workers.

    Attributes:
        kind: Class of the function.
        name: Short name: the leaf frame ("__getitem__ (dataset.py:41)" -> "__getitem__"), operator or kernel.
        stack: For Python: the whole call stack, outermost first, as "function (file.py:first_line)", without addresses,
            install prefixes and instance numbers. Empty for others.
        phase: Part of the iteration it ran in. Python functions inside the loader's next are "input".
        thread: Which threads ran it. Only "training", "autograd", "collective" and "device" can be critical.
        group: For collectives: name of the process group; else empty.
    """

    kind: FunctionKind
    name: str
    stack: tuple[str, ...] = ()
    phase: Phase = "other"
    thread: ThreadRole = "training"
    group: str = ""


class FunctionPattern(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One function on one worker over one window.

    Attributes:
        key: Which function.
        beta: Fraction of the window in which it is on the critical path, 0-1 (eq. 1).
        mu: Mean utilization of its resource over the critical durations, 0-1 (eq. 4); 0 if never sampled.
        sigma: Mean of the per-execution standard deviation of that utilization, 0-1 (eq. 5).
        resource: Name of the channel that bounds it ("cpu", "nic", "nvlink", "sm"), empty if none was sampled.
        resource_samples: Distinct samples behind mu and sigma.
        critical_s: Seconds on the critical path (beta times the window).
        total_s: Seconds over all executions, critical or not.
        count: Executions (for sampled Python: runs of consecutive samples with this stack).
        max_s: Longest execution, seconds.
        active_iterations: Iterations in which it was critical at all.
        beta_error: Standard error of beta where it comes from samples, else 0.
        device_s: Of sampled Python: seconds that a device works on what was launched from it; 0 where nothing tells.
        per_iteration_us: Critical microseconds in each captured iteration, little-endian float32, zlib-compressed;
            empty when the row did not get room. Decoded by `eroica.model.series.decode_series`.
    """

    key: FunctionKey
    beta: float
    mu: float = 0.0
    sigma: float = 0.0
    resource: str = ""
    resource_samples: int = 0
    critical_s: float = 0.0
    total_s: float = 0.0
    count: int = 0
    max_s: float = 0.0
    active_iterations: int = 0
    beta_error: float = 0.0
    device_s: float = 0.0
    per_iteration_us: bytes = b""


class CollectiveRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Executions of one kind of collective in one process group, as one worker saw them.

    Attributes:
        group: Name of the process group.
        kind: "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather", "scatter",
            "send", "recv", "barrier".
        paired_by: "sequence" if the numbers below are the group's own sequence numbers (Flight Recorder, NCCL
            arguments), "order" if they only count inside the window, "none" if nothing pairs.
        sequence: Sequence number of each execution, int64.
        iteration: Captured iteration (0-based) in which each execution ends, int32.
        duration_us: Duration, float32.
        critical_us: The part of it on this worker's critical path, float32.
        elements: Elements of the first input, int64 (0 = unknown).
        peers: For send/recv: global rank of the other side, int32 (-1 = unknown). Empty for others, or if nothing is
            known.
        end_us: End of each execution, microseconds after the start of this worker's window by its own clock, float64;
            may be empty. Workers' clocks are not compared by it.
        dropped: Executions that did not get room.

    All arrays are little-endian bytes, zlib-compressed, one value an execution, same length.
    """

    group: str
    kind: str
    paired_by: Literal["sequence", "order", "none"]
    executions: int
    sequence: bytes
    iteration: bytes
    duration_us: bytes
    critical_us: bytes
    elements: bytes = b""
    peers: bytes = b""
    end_us: bytes = b""
    dropped: int = 0


class LinkUse(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """TCP traffic of one worker with one address of another host, over the window.

    Attributes:
        local: Its own address on these connections.
        remote: The other side's.
        sent_bytes: Acknowledged by the other side.
        received_bytes: Received from it.
        busy_s: Seconds in which a load of some kilobytes was under way to the other side, neither idle nor held back by
            its window; of several connections, the busiest one.
        queued_bytes: Mean of what was not yet acknowledged.
        retransmits: Segments sent again.
        rtt_s: Mean round trip while busy, 0 if unknown.
    """

    local: str
    remote: str
    sent_bytes: float = 0.0
    received_bytes: float = 0.0
    busy_s: float = 0.0
    queued_bytes: float = 0.0
    retransmits: float = 0.0
    rtt_s: float = 0.0


class Workload(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the training itself sets, of one worker over one window; 0 where nothing tells.

    Attributes:
        parameters: Elements of the optimizers' parameters that have a gradient.
        gradients: Those parameters.
        passes: Backward passes in an iteration: how often each gradient is added to.
        batches: Batches that torch's loaders hand out in an iteration.
        samples: Length of the first dimension of a batch's largest tensor, mean.
        elements: Elements of that tensor for each sample, mean.
        collectives: Collectives in an iteration.
        sent: Elements that they carry in an iteration.
    """

    parameters: float = 0.0
    gradients: float = 0.0
    passes: float = 0.0
    batches: float = 0.0
    samples: float = 0.0
    elements: float = 0.0
    collectives: float = 0.0
    sent: float = 0.0


class Neighbor(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A process of a worker's host, or of its device, that belongs neither to the job nor to Eroica.

    Attributes:
        name: Its command's name, without arguments.
        pid: Process id on that host.
        cpu_cores: Cores it used on average over the window.
        device: The worker's device if it uses that ("cuda:0"), else empty.
        device_utilization: Its share of that device's time, 0-1; 0 if unknown.
    """

    name: str
    pid: int
    cpu_cores: float = 0.0
    device: str = ""
    device_utilization: float = 0.0


if TYPE_CHECKING:
    Rows = Sequence[FunctionPattern]
else:
    Rows = tuple[FunctionPattern, ...]  # what msgspec makes of rows that lie inside other records


class WorkerPattern(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """All that leaves a worker's host: about 30 KB.

    Attributes:
        worker: Who.
        window_id: Which window.
        first_iteration: First captured iteration.
        last_iteration: Exclusive end.
        duration_s: First to last boundary, seconds.
        iteration_us: Duration of each captured iteration, little-endian float32, zlib-compressed.
        wait_us: Critical collective time in each captured iteration, same form.
        functions: Rows in order of falling beta, then total; a tuple, or columns (`eroica.model.rows`) that make a row
            when it is asked for.
        collectives: One record per process group and kind.
        process_groups: Groups of this worker; roles are read from them.
        idle_s: Critical time of no function at all; critical seconds of all rows + `dropped_critical_s` + `idle_s`
            equal `duration_s`.
        dropped_critical_s: Critical seconds of rows that did not fit into the byte budget.
        samples_used: Stack samples that count.
        has_accelerator: Device kernels were seen.
        host_facts: Facts of the host in this window: "cpu_count", "run_queue_wait" (fraction of the training
            thread's time spent runnable but not running), "stopped" (fraction in state T), "throttled" (cgroup); all
            of them stand at `eroica.summarize.facts.host_facts`.
        links: Traffic with other hosts, the most talked to first; empty where there was none or nobody looked.
        neighbors: Other processes of its host that could slow it, the heaviest first; empty where there were none or
            nobody looked.
        setup: How this worker is set up, for comparison with others: name -> value as text ("torch_threads" -> "4",
            "affinity" -> "0-3", "env:OMP_NUM_THREADS" -> "1", "loader_workers" -> "2", "torch" -> "2.13.0"). Values
            that are not meant to be compared (paths, secrets) are not in it.
        workload: What the training itself sets: parameters, batches, collectives.
        stall_s: The worker's stall for this window.
        summarize_s: Seconds the summary took.
        raw_bytes: Size of raw trace, stacks and samples.
        timeline: The critical path of one iteration, for pictures: an encoded `Timeline`
            (`eroica.wire.codec.encode_record`); empty if there was nothing to show. Nothing is concluded from it, so it
            stays encoded until a picture is drawn.
        found_by: Recorded traces: how the iterations were found (see `eroica.model.trace`); "span" are none.
        has_trace: The worker lived long enough to save its trace; else iterations, stacks and the host's hardware are
            all there is, and a wait cannot be told from work.
        notes: What is missing and why.
    """

    worker: Worker
    window_id: int
    first_iteration: int
    last_iteration: int
    duration_s: float
    iteration_us: bytes
    wait_us: bytes
    functions: Rows
    collectives: tuple[CollectiveRecord, ...] = ()
    process_groups: tuple[ProcessGroup, ...] = ()
    idle_s: float = 0.0
    dropped_critical_s: float = 0.0
    samples_used: int = 0
    has_accelerator: bool = False
    host_facts: dict[str, float] = {}
    links: tuple[LinkUse, ...] = ()
    neighbors: tuple[Neighbor, ...] = ()
    setup: dict[str, str] = {}
    workload: Workload = Workload()
    stall_s: float = 0.0
    summarize_s: float = 0.0
    raw_bytes: int = 0
    timeline: bytes = b""
    found_by: str = ""
    has_trace: bool = True
    notes: tuple[str, ...] = ()


class Track(msgspec.Struct, frozen=True, kw_only=True):
    """Slices of the critical path, in order of start.

    Attributes:
        names: The functions that occur, as in `FunctionKey.name`.
        kinds: Kind of each of `names`.
        phases: Part of the iteration of each of `names`; empty if unknown.
        function: Of each slice, its place in `names`; int32.
        start_us: Of each slice, after the start of the iteration; float32.
        duration_us: Of each slice; float32.
        dropped: Slices that did not get room, the shortest ones.

    Arrays are made by `eroica.model.series.encode_series` and have one value a slice.
    """

    names: tuple[str, ...]
    kinds: tuple[FunctionKind, ...]
    function: bytes
    start_us: bytes
    duration_us: bytes
    phases: tuple[Phase, ...] = ()
    dropped: int = 0


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """What the picture of one worker is drawn from where its raw trace is gone.

    Attributes:
        iteration: Captured iteration that is shown, 0-based: the same on all workers of a window.
        start_us: Its start after the start of this worker's window, by its own clock.
        duration_us: How long it took.
        critical: What the worker's iteration waited for, from end to end; without overlaps. None if unknown.
    """

    iteration: int
    start_us: float
    duration_us: float
    critical: Track | None = None
