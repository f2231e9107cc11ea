"""The catalog of causes: what each means and what to do about it. `docs/causes/<slug>.md` has a page for each."""

from __future__ import annotations

import msgspec


class CatalogEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of cause.

    Attributes:
        meaning: One sentence.
        next_step: Advice while the job runs.
        next_step_recorded: The same where files were read and the job may be long over; "" if it is the same.
            "{active}" in it stands for the number of iterations to record.
        brings_about: Vaguer causes as which its time may also show, on the same workers. "unknown" is vaguer than all.
    """

    meaning: str
    next_step: str
    next_step_recorded: str = ""
    brings_about: frozenset[str] = frozenset()


CATALOG: dict[str, CatalogEntry] = {
    "slow-data-loading": CatalogEntry(
        meaning="The training loop waits for its next batch.",
        next_step=(
            "Look at what this function reads or computes per sample: cache or decode ahead of time, move the data "
            "to faster storage, and let the DataLoader prefetch (num_workers, prefetch_factor, persistent_workers)."
        ),
        brings_about=frozenset({"python-on-critical-path"}),
    ),
    "slow-storage-read": CatalogEntry(
        meaning="Data loading waits in a read of a file, a socket or an object store, on hardly any processor time.",
        next_step=(
            "Move the data to faster or nearer storage, read larger pieces in order (shards rather than many small "
            "files), cache what is read again, and let more loader processes read at the same time (num_workers, "
            "prefetch_factor)."
        ),
        brings_about=frozenset({"python-on-critical-path", "slow-data-loading"}),
    ),
    "blocking-checkpoint": CatalogEntry(
        meaning="Training stands still while state is written to storage.",
        next_step=(
            "Save less often, or copy the state to memory and write it in the background "
            "(torch.distributed.checkpoint.async_save); let each worker write its own shard, to fast local storage "
            "first."
        ),
        brings_about=frozenset({"python-on-critical-path"}),
    ),
    "blocking-logging": CatalogEntry(
        meaning="Training stands still while something is logged, printed or sent to a metrics service.",
        next_step=(
            "Log every so many iterations only, keep values on the device until then, and hand them to a thread or "
            "process (logging.handlers.QueueHandler) rather than wait for a file, a terminal or a network."
        ),
        brings_about=frozenset({"python-on-critical-path"}),
    ),
    "memory-operation-storm": CatalogEntry(
        meaning="Copies, fills or allocations take a share of the iteration that computation should have.",
        next_step=(
            "Look at the function that copies (if none is named, record with_stack=True): avoid .to(), .contiguous(), "
            ".clone() and cat in the iteration, reuse buffers, pin host memory; where allocations show, set "
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True and lower peak memory, and do not call empty_cache()."
        ),
        brings_about=frozenset({"compute-slow", "host-bound", "load-imbalance"}),
    ),
    "fragmented-collectives": CatalogEntry(
        meaning="Collectives run more often than needed: many small ones, or one after each of several passes.",
        next_step=(
            "Send more at once: larger buckets (bucket_cap_mb, gradient_as_bucket_view=True), one flat tensor instead "
            "of one call per tensor (coalescing), metrics reduced together and every so many iterations."
        ),
        brings_about=frozenset({"slow-collective-everywhere"}),
    ),
    "garbage-collection": CatalogEntry(
        meaning="Python's cyclic garbage collector stops workers at different moments, and each time the others wait.",
        next_step=(
            "Call gc.freeze() after set-up and gc.disable(), then gc.collect() on all workers at the same iteration, "
            "once in a few hundred; keep fewer long-lived Python objects."
        ),
        brings_about=frozenset({"python-on-critical-path"}),
    ),
    "compute-slow": CatalogEntry(
        meaning="The same operators, equally often, take longer: the processor or device under them is slower.",
        next_step=(
            "Check the host or device of these workers for CPU quotas, stopped processes, frequency limits and "
            "temperature; replace it if it stays slow."
        ),
    ),
    "cpu-contention": CatalogEntry(
        meaning="The training threads are ready to run but wait for a core.",
        next_step=(
            "Find what else runs on this host (top, pidstat), pin workers to cores of their own, and lower "
            "torch.set_num_threads and the number of loader workers to what the cores can carry."
        ),
        brings_about=frozenset({"compute-slow", "slow-collective-everywhere"}),
    ),
    "python-on-critical-path": CatalogEntry(
        meaning="Python code runs while no operator does, and the iteration waits for it.",
        next_step=(
            "Move this function out of the iteration or run it less often; vectorize it, or let torch.compile take it."
        ),
    ),
    "load-imbalance": CatalogEntry(
        meaning=(
            "These workers have more to compute than their peers, at the usual speed: more operators, or the same ones "
            "on larger tensors."
        ),
        next_step=(
            "Give each worker the same amount of work: balance samples by length, shard tables and experts evenly."
        ),
    ),
    "slow-collective-everywhere": CatalogEntry(
        meaning="Collectives take longer on everybody although nobody comes late.",
        next_step=(
            "Check the network between the workers (link speed, congestion, which interface is used) and whether "
            "another job shares it; larger buckets or less data per iteration make it cheaper."
        ),
    ),
    "slow-link": CatalogEntry(
        meaning=(
            "One host's network link is slower than the others', and every collective runs at its pace; or a link "
            "carries nothing, and collectives that everybody has entered never end."
        ),
        next_step=(
            "Check this host's cable, port and network interface for speed and errors (ethtool, ip -s link) and the "
            "switch port at the other end; move the job off this host until that is mended."
        ),
        brings_about=frozenset({"slow-collective-everywhere"}),
    ),
    "desynchronized-collective": CatalogEntry(
        meaning="Workers are in different collectives, or one went on without a collective that the others wait in.",
        next_step=(
            "Compare where the program calls these collectives: a condition there is not the same on all workers "
            "(rank, loss, end of data, an exception), or the order differs; call each on all workers or on none."
        ),
    ),
    "blocked-in-user-code": CatalogEntry(
        meaning="A worker sits in its own code (a queue, a lock, storage, an endless loop) and the others wait for it.",
        next_step=(
            "Look at the named function and at what it waits for: give waits a timeout, empty every queue that is "
            "filled, and let a failed helper thread or process end the worker instead of leaving it waiting."
        ),
    ),
    "held-interpreter-lock": CatalogEntry(
        meaning="A thread holds Python's interpreter lock for good, so that no other thread of its worker can run.",
        next_step=(
            "Look at the native code that this function calls: it must release the interpreter lock around waits "
            "(Py_BEGIN_ALLOW_THREADS, pybind11's gil_scoped_release, ctypes.CDLL instead of PyDLL)."
        ),
    ),
    "dead-worker": CatalogEntry(
        meaning="A worker's process was killed, ran out of memory, vanished or is stopped, and the others wait for it.",
        next_step=(
            "Find out on its host who ended it (dmesg, journalctl -k, the scheduler's log, the end of its output), "
            "then restart the job from its last checkpoint."
        ),
    ),
    "stage-imbalance": CatalogEntry(
        meaning="One pipeline stage takes longer than the others on every worker that runs it; no worker is slow.",
        next_step=(
            "Move layers away from the long stage (the last one also computes the loss and the output embedding, the "
            "first one the input embedding), or cut the model into more, smaller virtual stages."
        ),
    ),
    "host-bound": CatalogEntry(
        meaning="The device waits for the host, which takes longer to launch kernels than the device to run them.",
        next_step=(
            "Launch fewer and larger kernels (torch.compile, CUDA graphs, fused optimizers, larger batches), and keep "
            "Python and synchronizing calls (.item(), .cpu(), printing) out of the iteration."
        ),
    ),
    "sibling-process": CatalogEntry(
        meaning="Processes that do not belong to the job take cores or device time that its workers lack.",
        next_step=(
            "Stop the named processes or move them to another host; if they must stay, keep them apart from the "
            "workers (taskset, CPU sets, a cgroup with a CPU limit, another device). Where it is another virtual "
            "machine or container, ask who runs the host."
        ),
        brings_about=frozenset({"compute-slow", "cpu-contention", "slow-collective-everywhere"}),
    ),
    "misconfiguration": CatalogEntry(
        meaning=(
            "Slow workers are set up differently from their peers, or from how they were while all was well; or a "
            "setting that all share does not suit the job."
        ),
        next_step=(
            "Set the named setting to what the peers have, or had in the baseline window (job script, module files, "
            "container image, cgroup or scheduler limits of that host), and restart the workers concerned."
        ),
        brings_about=frozenset(
            {"compute-slow", "cpu-contention", "host-bound", "slow-collective-everywhere", "slow-data-loading"}
        ),
    ),
    "planned-change": CatalogEntry(
        meaning=(
            "The training itself does more in each iteration than before: more parameters get gradients, batches or "
            "samples are larger, or there are more of them. That explains the longer iteration, and is no fault."
        ),
        next_step=(
            "Nothing, if it was meant so. Else look at the schedule that changes it: what is frozen, the batch size, "
            "the steps of gradient accumulation, the length of samples."
        ),
    ),
    "unknown": CatalogEntry(
        meaning="These workers arrive late, and no function known to this catalog accounts for it.",
        next_step="Look at the stacks and counters of these workers in the report; a longer window gives more samples.",
        next_step_recorded=(
            "Record more steps on all ranks, the first of them as warm-up (schedule(warmup=2, active={active})), "
            "and with Python stacks (with_stack=True) on these workers."
        ),
    ),
}
