"""Processes beside the job that take what slow workers lack: cores, a virtual machine's time, or a device.

Such a process is a culprit if it took at least half of what the workers lack, and more than on hosts that are not slow
or in the baseline window. A process that is busy while nobody is slow is of no interest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from eroica.diagnosis.block import Block, Culprit
from eroica.diagnosis.frames import HALF
from eroica.diagnosis.operators import FULL, HELD, OF_LOSS, host_fact
from eroica.diagnosis.view import View
from eroica.diagnosis.words import FEW, join_names, name_workers
from eroica.model.pattern import Neighbor
from eroica.model.shares import percent

#: The fewest cores that count.
_LEAST_CORES = 0.2


class _Taken(NamedTuple):
    """The share that others took on one host: a sentence, a few words, and the share."""

    what: str
    short: str
    share: float


class _Host:
    """One host against the hosts of workers that are not accused, and against itself in the baseline window.

    Attributes:
        name: Its name.
        members: Accused workers on it (indices).
        here: All workers on it.
        before: The same in the baseline window.
        elsewhere: One worker of each host without accused ones, where the reference is the peers.
    """

    def __init__(self, view: View, host: str, block: Block) -> None:
        patterns, past = view.fleet.patterns, view.suspects.baseline
        accused = set(block.workers)
        self.name, self.members = host or "its host", [at for at in view.homes[host] if at in accused]
        self.here = [patterns[at] for at in view.homes[host]]
        self.before = [one for one in past.patterns if one.worker.host == host] if past is not None else []
        others = (at[0] for at in view.homes.values() if accused.isdisjoint(at))
        self.elsewhere = [patterns[at] for at in others] if block.reference == "peers" else []

    def usual(self, name: str) -> float | None:
        """Return the larger of what a fact is on the other hosts and was in the baseline window; None without both."""
        known = [float(np.median([one.host_facts.get(name, 0.0) for one in self.elsewhere]))] if self.elsewhere else []
        known += [float(np.mean([one.host_facts.get(name, 0.0) for one in self.before]))] if self.before else []
        return max(known, default=None)

    def more(self, name: str) -> float:
        """Return the excess of a fact over the other hosts and over the baseline window."""
        return float(np.mean([one.host_facts.get(name, 0.0) for one in self.here])) - (self.usual(name) or 0.0)

    def newcomers(self) -> list[Neighbor]:
        """Return the processes that use more than their like elsewhere or before, the heaviest first."""
        grown = sorted(
            ((one.cpu_cores - self._like(one), one) for one in self.here[0].neighbors), key=lambda it: -it[0]
        )
        return [one for more, one in grown if more >= 0.1]

    def _like(self, one: Neighbor) -> float:
        before = [other.cpu_cores for past in self.before[:1] for other in past.neighbors if other.pid == one.pid]
        elsewhere = [sum(o.cpu_cores for o in there.neighbors if o.name == one.name) for there in self.elsewhere]
        return max([*before, float(np.median(elsewhere)) if elsewhere else 0.0])


def find_process(view: View, block: Block) -> Culprit | None:
    """Find the processes beside the job that took what a block's workers lack, on all of their hosts; else None."""
    members = block.workers
    if view.is_trace or not members or block.reference_us <= 0 or block.facts.held > HELD:
        return None
    factor = block.mean_us / block.reference_us
    found = []
    for host in sorted({view.fleet.patterns[at].worker.host for at in members}):
        here = _Host(view, host, block)
        if view.fleet.has_accelerator and block.kind == "compute":
            taken = _on_device(view, here, block, factor)
        else:
            taken = _on_host(view, here, block, factor)
        if taken is None:
            return None
        found.append(taken)
    ranks = [view.fleet.ranks[at] for at in members]
    who = f"{name_workers(ranks, capital=True)} compute{'s' if len(ranks) == 1 else ''}"
    beside = " and ".join(one.short for one in found[:2])
    return Culprit(
        kind="process",
        subject=f"{who} {block.mean_us / block.reference_us:.1f} times as slowly beside {beside}",
        evidence=tuple(one.what for one in found[:FEW]),
        doubt=min(min(one.share for one in found) + 0.5, 1.0),
    )


def _on_host(view: View, here: _Host, block: Block, factor: float) -> _Taken | None:
    """Find what took cores, or time of the whole machine, on a host; None where nothing did."""
    lost = 1 - 1 / factor  # share of their time that the workers lose; at full speed they would use these cores, too
    cores = sum(view.fleet.patterns[at].host_facts.get("cores_worker", 1.0) for at in here.members) * (factor - 1)
    steal = here.more("steal")
    if steal >= max(HALF * lost, HELD):
        what = f"{here.name} is a virtual machine, and others take {percent(steal)} more of its CPU time than usual."
        return _Taken(what, f"other virtual machines on the hardware of {here.name}", min(steal / lost, 1.0))
    usual = here.usual("cores_outside")
    is_full = usual is not None and here.here[0].host_facts.get("host_busy", 0.0) >= FULL
    is_queued, more = block.facts.queued >= OF_LOSS, here.more("cores_outside")
    unseen = here.more("cores_unseen")
    more += unseen if unseen >= HALF else 0.0  # interrupts and brief processes are such, too
    if more < max(HALF * cores, _LEAST_CORES) or not (is_queued or is_full):
        return None
    own = here.here[0]
    clause = _name_use(here.newcomers(), own.host_facts.get("cores_outside", 0.0), own.host_facts.get("cpu_count", 0.0))
    if HALF <= unseen > more / 2:
        clause = f"processes that cannot be seen from here use {own.host_facts.get('cores_unseen', 0.0):.1f} cores"
    compared = "there is nothing to compare with" if usual is None else f"usually such processes use {usual:.1f}"
    what = (
        f"On {here.name} {clause}, and do not belong to the job; {compared}; the workers lack about {cores:.1f} cores."
    )
    return _Taken(what, f"others on {here.name}: {clause}", min(more / max(cores, 1e-9), 1.0))


def _on_device(view: View, here: _Host, block: Block, factor: float) -> _Taken | None:
    """Find processes on the devices of all accused workers of a host, and not on the reference's.

    A device whose lower clock explains the slowness is slow by itself.
    """
    clock_W = host_fact(view.fleet, "gpu_sm_clock")
    usual_W = view.fleet.usual(clock_W)
    if block.reference == "baseline":
        usual_W = view.suspects.then(lambda past: host_fact(past, "gpu_sm_clock"))
    ratio_W = usual_W[here.members] / np.maximum(clock_W[here.members], 0.01)
    left = factor / (1.0 if np.isnan(ratio_W).all() else max(float(np.nanmedian(ratio_W)), 1.0))
    if left - 1 < HALF * (factor - 1):
        return None
    beside = [[one for one in view.fleet.patterns[at].neighbors if one.device] for at in here.members]
    accused = set(block.workers)
    peers = [one for at, one in enumerate(view.fleet.patterns) if at not in accused]
    others = here.before if block.reference == "baseline" else peers
    usual = float(np.median([_device_share(one.neighbors) for one in others])) if others else 0.0
    if not all(beside):
        return None
    more, lost = min(map(_device_share, beside)) - usual, 1 - 1 / left
    if more < HALF * lost:
        return None
    named = sorted({one.pid: one for some in beside for one in some}.values(), key=lambda one: -one.device_utilization)
    devices = " and ".join(sorted({one.device for one in named}))
    text = ", ".join(
        f"{_list_processes([one])} uses {percent(one.device_utilization)} of {one.device}'s time" for one in named[:FEW]
    )
    what = (
        f"On {here.name} {text}; the job's own processes aside, devices of workers that are not slow give others "
        f"{percent(usual)} of their time."
    )
    return _Taken(what, f"{_list_processes(named)} on {devices} of {here.name}", min(more / max(lost, 1e-9), 1.0))


def _device_share(neighbors: Iterable[Neighbor]) -> float:
    return sum(one.device_utilization for one in neighbors if one.device)


def _list_processes(neighbors: Sequence[Neighbor]) -> str:
    """Return processes by name and id."""
    named = [f"{one.name} (pid {one.pid})" for one in neighbors[:FEW]]
    return join_names([*named, *(["others"] if len(neighbors) > FEW else [])])


def _name_use(neighbors: Sequence[Neighbor], total: float, cores: float) -> str:
    """Return which processes use how many of the cores of a host (0 if unknown), as a clause."""
    named, of_all = sum(one.cpu_cores for one in neighbors), f" of {cores:.0f}" if cores else ""
    if named < 0.6 * total:
        among = f", {_list_processes(neighbors)} among them," if neighbors else ""
        return f"many small processes{among} use {total:.1f}{of_all} cores"
    return f"{_list_processes(neighbors)} use{'s' if len(neighbors) == 1 else ''} {named:.1f}{of_all} cores"
