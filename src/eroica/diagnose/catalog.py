"""The catalog of causes: what each means and what to do about it. `docs/causes/<slug>.md` has a page for each."""

from __future__ import annotations

import msgspec


class CatalogEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of cause.

    Attributes:
        title: A few words.
        meaning: One sentence.
        next_step: What to do now.
    """

    title: str
    meaning: str
    next_step: str


CATALOG: dict[str, CatalogEntry] = {
    "slow-data-loading": CatalogEntry(
        title="Slow data loading",
        meaning="The training loop waits for its next batch.",
        next_step=(
            "Look at what this function reads or computes per sample: cache or decode ahead of time, move the data "
            "to faster storage, and let the DataLoader prefetch (num_workers, prefetch_factor, persistent_workers)."
        ),
    ),
    "garbage-collection": CatalogEntry(
        title="Python garbage collection",
        meaning="Python's cyclic garbage collector stops workers at different moments, and each time the others wait.",
        next_step=(
            "Call gc.freeze() after set-up and gc.disable(), then gc.collect() on all workers at the same iteration, "
            "once in a few hundred; keep fewer long-lived Python objects."
        ),
    ),
    "compute-slow": CatalogEntry(
        title="Slow computation",
        meaning="The same operators, equally often, take longer: the processor or device under them is slower.",
        next_step=(
            "Check the host or device of these workers for CPU quotas, stopped processes, frequency limits and "
            "temperature; replace it if it stays slow."
        ),
    ),
    "cpu-contention": CatalogEntry(
        title="CPU contention",
        meaning="The training threads are ready to run but wait for a core.",
        next_step=(
            "Find what else runs on this host (top, pidstat), pin workers to cores of their own, and lower "
            "torch.set_num_threads and the number of loader workers to what the cores can carry."
        ),
    ),
    "python-on-critical-path": CatalogEntry(
        title="Python on the critical path",
        meaning="Python code runs while no operator does, and the iteration waits for it.",
        next_step=(
            "Move this function out of the iteration or run it less often; vectorize it, or let torch.compile take it."
        ),
    ),
    "load-imbalance": CatalogEntry(
        title="Uneven work",
        meaning="These workers run more operators than their peers, each at normal speed.",
        next_step=(
            "Give each worker the same amount of work: balance samples by length, shard tables and experts evenly."
        ),
    ),
    "slow-collective-everywhere": CatalogEntry(
        title="Slow communication on all workers",
        meaning="Collectives take longer on everybody although nobody comes late.",
        next_step=(
            "Check the network between the workers (link speed, congestion, which interface is used) and whether "
            "another job shares it; larger buckets or less data per iteration make it cheaper."
        ),
    ),
    "unknown": CatalogEntry(
        title="Unknown",
        meaning="These workers arrive late, and no function known to this catalog accounts for it.",
        next_step="Look at the stacks and counters of these workers in the report; a longer window gives more samples.",
    ),
}
