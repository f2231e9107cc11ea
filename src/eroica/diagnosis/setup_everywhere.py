"""Settings that are slow wherever they are: told beside a cause that they can make worse, even if all have them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from eroica.diagnosis.limits import LISTED
from eroica.diagnosis.setup_rules import BAD, COMPUTE, LEAST_QUEUE, LOADING, OVERSUBSCRIBED, READING, number
from eroica.diagnosis.view import View


def known_bad(view: View, workers: Iterable[int], cause: str | None) -> Iterator[str]:
    """List settings of these workers that are known to make the cause worse; of any cause for None."""
    patterns = [view.fleet.patterns[worker] for worker in workers]
    setups = [pattern.setup for pattern in patterns]

    def all_have(fact: str, *values: str) -> bool:
        return bool(setups) and all(setup.get(fact, "").lower() in values for setup in setups)

    def explains(causes: frozenset[str]) -> bool:
        return cause is None or cause in causes

    for fact, values, causes, text in BAD:
        if explains(causes) and all_have(fact, *values):
            yield text
    if explains(COMPUTE):
        yield from _threads(view, _their_hosts(view, workers))
    if explains(LOADING | READING) and any(_has_many_loaders(view, host) for host in _their_hosts(view, workers)):
        yield "There are more loader processes on a host than it has cores."


def _their_hosts(view: View, workers: Iterable[int]) -> list[str]:
    return sorted({view.fleet.patterns[worker].worker.host for worker in workers})


def _threads(view: View, hosts: Sequence[str]) -> Iterator[str]:
    """Note more threads than cores while threads wait for cores, or one thread of a host that is mostly idle."""
    for judge in (_oversubscribed, _single_threaded):
        texts = [(host, text) for host in hosts if (text := judge(view, host))]
        if texts:
            more = [host for host, _ in texts[1:]]
            also = f" So it is on {', '.join(more[: LISTED - 1])}" if more else ""
            beyond = len(more) - (LISTED - 1)
            also += f" and {beyond} more hosts" if beyond > 0 else ""
            yield f"{texts[0][1]}{also}{'.' if also else ''}"


def _oversubscribed(view: View, host: str) -> str:
    here = [view.fleet.patterns[worker] for worker in view.homes[host]]
    each = [number(one.setup.get("torch_threads")) or 0.0 for one in here]
    threads = sum(each)
    cores = view.cores[host].allowed
    waiting = float(np.mean([one.host_facts.get("run_queue_wait", 0.0) for one in here]))
    if np.isnan(cores) or max(each) <= 1 or threads < OVERSUBSCRIBED * cores or waiting < LEAST_QUEUE:
        return ""
    return (
        f"{len(here)} workers with {threads:.0f} computing threads together share the {cores:.0f} cores of "
        f"{host or 'their host'}: set OMP_NUM_THREADS to {max(int(cores) // len(here), 1)}."
    )


def _single_threaded(view: View, host: str) -> str:
    here = [view.fleet.patterns[worker] for worker in view.homes[host]]
    each = [number(one.setup.get("torch_threads")) or 0.0 for one in here]
    cores, idle = view.cores[host].allowed, view.cores[host].idle
    if view.fleet.has_accelerator or set(each) != {1.0} or not idle >= 3 * len(here):
        return ""
    return (
        f"Each worker computes with one thread while {idle:.0f} of the {cores:.0f} cores of {host or 'their host'} "
        "are idle: torchrun sets OMP_NUM_THREADS=1 unless told otherwise."
    )


def _has_many_loaders(view: View, host: str) -> bool:
    here = [view.fleet.patterns[worker] for worker in view.homes[host]]
    loaders = sum(number(one.setup.get("loader_workers")) or 0.0 for one in here)
    return loaders > view.cores[host].allowed
