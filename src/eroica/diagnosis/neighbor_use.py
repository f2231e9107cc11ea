"""Measure what processes beside the job took on one host: cores, time of the machine, memory or a device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from eroica.diagnosis.candidate import Candidate
from eroica.diagnosis.hosts import MOST_NAMED, Compared, fact, list_processes, name_use
from eroica.diagnosis.limits import HELD
from eroica.diagnosis.view import View
from eroica.model.pattern import Neighbor, WorkerPattern
from eroica.model.shares import percent

#: Somebody else must have taken this share of what the workers lacked, and so many cores.
_LEAST_TAKEN = 0.5
LEAST_CORES = 0.2
#: Waiting for a core must account for this share of the time lost, or the host be this full; else cores were not short.
#: A process that takes this share of a host that is not full can still be in the way: of its memory and caches.
_LEAST_QUEUED = 0.3
_FULL = 0.85
LARGE = 0.25
_DOUBT_UNSURE = 0.8
#: Share of the time in which tasks lack memory, and of the host's memory held by processes that hold much of it.
_LEAST_PRESSURE = 0.1
_LEAST_MEMORY = 0.2
_MUCH_EACH = 0.1
#: Who takes the cores waits for them, too, this share of the time.
_LEAST_WAIT = 0.05
#: Interrupts and brief processes belong to nobody either.
_LEAST_UNSEEN = 0.5


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """Resource that processes beside the job took on one host.

    Attributes:
        host: Its name.
        what: The sentence that says who took what.
        short: The same in a few words.
        share: Part of what the workers lacked, 0-1.
        doubt: Factor on the confidence.
        is_seen: The processes were seen to take it; holding memory of a device is worth a word, and proves nothing.
    """

    host: str
    what: str
    short: str
    share: float
    doubt: float = 1.0
    is_seen: bool = True


class Lack(msgspec.Struct, frozen=True, kw_only=True):
    """Resources that workers of a host lack.

    Attributes:
        cores: Cores that the workers would use in addition at full speed.
        lost: Share of their time that they lose, 0-1.
        queued: Share of their time that they lose by waiting for a core longer than usual, 0-1.
        waiting: Growth of the share of time in which they wait for a core.
    """

    cores: float
    lost: float
    queued: float
    waiting: float


def lack_of(compared: Compared, members: Sequence[int], cores: float, lost: float) -> Lack:
    """Measure what these workers (indices) of a host lack."""
    queued, waiting = (
        max((ask(at) for at in members), default=0.0)
        for ask in (compared.queued, lambda at: compared.more(at, "run_queue_wait"))
    )
    return Lack(cores=cores, lost=lost, queued=queued, waiting=waiting)


def host_taken(compared: Compared, worker: WorkerPattern, lack: Lack) -> Taken | None:
    """Find what took cores, time of the whole machine, or memory of a host; None where nothing did.

    On a host that was full before, somebody new takes cores from everybody, and the sum of what others use stays.
    """
    steal = compared.more_on_host("steal")
    if steal >= _LEAST_TAKEN * lack.lost and steal >= HELD:
        return _stolen(worker, steal, steal / lack.lost)
    queued = lack.queued >= _LEAST_QUEUED * lack.lost
    full = compared.is_compared and fact(worker, "host_busy") >= _FULL
    more, unseen = compared.more_on_host("cores_outside"), compared.more_on_host("cores_unseen")
    if queued and full:
        more = max(more, compared.grown(worker.neighbors))
    unseen = unseen if unseen >= _LEAST_UNSEEN else 0.0
    if more + unseen >= max(_LEAST_TAKEN * lack.cores, LEAST_CORES):
        large = compared.is_compared and more >= LARGE * max(fact(worker, "cpu_count"), 1.0)
        if queued or full or large:
            found = _crowded(compared, worker, more, unseen, lack)
            sure = (queued and compared.is_compared) or full
            return found if sure else msgspec.structs.replace(found, doubt=_DOUBT_UNSURE)
    return _memory_taken(compared, worker)


def _crowded(compared: Compared, worker: WorkerPattern, more: float, unseen: float, lack: Lack) -> Taken:
    host, cores = worker.worker.host or "its host", fact(worker, "cpu_count")
    clause = name_use(compared.newcomers(worker.neighbors), fact(worker, "cores_outside"), cores)
    if unseen > more:
        clause = f"processes that cannot be seen from here use {fact(worker, 'cores_unseen'):.1f} of {cores:.0f} cores"
    queue = (
        f"; training threads wait for a core {percent(lack.waiting)} more of their time" if lack.waiting >= HELD else ""
    )
    theirs = max((one.run_queue_wait for one in compared.newcomers(worker.neighbors)), default=0.0)
    queue += f", and these processes up to {percent(theirs)} of theirs" if queue and theirs >= _LEAST_WAIT else ""
    usual = compared.usual("cores_unseen" if unseen > more else "cores_outside")
    if more > compared.more_on_host("cores_outside"):
        usual = f"{usual}, but these have come since, and the host is full"
    what = (
        f"On {host} {clause}, and do not belong to the job; {usual}; the workers lack about "
        f"{lack.cores:.1f} cores{queue}."
    )
    used = more + unseen
    short = f"others on {host}: {clause}"
    return Taken(host=worker.worker.host, what=what, short=short, share=min(used / max(lack.cores, 1e-9), 1.0))


def _stolen(worker: WorkerPattern, steal: float, share: float) -> Taken:
    host = worker.worker.host or "its host"
    what = (
        f"{host} is a virtual machine, and other machines take {percent(steal)} more of its CPU time (steal) than "
        "where nobody is slow."
    )
    return Taken(
        host=worker.worker.host,
        what=what,
        short=f"other virtual machines on the hardware of {host}",
        share=min(share, 1),
    )


def _memory_taken(compared: Compared, worker: WorkerPattern) -> Taken | None:
    """Find processes that hold much of a host's memory while tasks wait for memory."""
    pressure, total = compared.more_on_host("memory_pressure"), max(fact(worker, "memory_bytes"), 1.0)
    large = [one for one in worker.neighbors if one.memory_bytes >= _MUCH_EACH * total]
    taken = total * (1 - fact(worker, "memory_available"))  # pages that processes share count for each of them
    held = min(sum(one.memory_bytes for one in large), taken)
    if pressure < _LEAST_PRESSURE or held < _LEAST_MEMORY * total:
        return None
    large.sort(key=lambda one: -one.memory_bytes)
    host, gib, hold = worker.worker.host or "its host", held / 2**30, "holds" if len(large) == 1 else "hold"
    what = (
        f"On {host} {list_processes(large)} {hold} {gib:.1f} of {total / 2**30:.0f} GiB of memory, and tasks wait "
        f"for memory {percent(pressure)} more of the time than where nobody is slow."
    )
    short = f"{list_processes(large)}, which {hold} {gib:.1f} GiB of memory on {host}"
    return Taken(host=worker.worker.host, what=what, short=short, share=_LEAST_TAKEN)


class UsualDevices(msgspec.Struct, frozen=True, kw_only=True):
    """Use of devices by processes beside the job: devices of workers not accused, or those of the baseline window.

    Attributes:
        known: There are such devices.
        share: Median share of their time, 0-1.
        held: Somebody is on one of them.
    """

    known: bool
    share: float
    held: bool


def usual_devices(view: View, candidate: Candidate) -> UsualDevices:
    """Measure the use of devices with which those of a candidate's workers are compared."""
    accused = set(candidate.workers)
    others = [pattern for at, pattern in enumerate(view.fleet.patterns) if at not in accused]
    if candidate.reference == "baseline":
        others = list(view.suspects.baseline.patterns) if view.suspects.baseline is not None else []
    share = float(np.median([_device_share(one.neighbors) for one in others])) if others else 0.0
    return UsualDevices(
        known=bool(others), share=share, held=any(there.device for one in others for there in one.neighbors)
    )


def device_taken(view: View, others: UsualDevices, host: str, members: Sequence[int], factor: float) -> Taken | None:
    """Find processes on the devices of all accused workers of a host, and not on their peers'."""
    beside = [[one for one in view.fleet.patterns[at].neighbors if one.device] for at in members]
    if not all(beside):
        return None
    more, lost = min(_device_share(some) for some in beside) - others.share, 1 - 1 / factor
    is_enough = more >= _LEAST_TAKEN * lost  # of a short window, drivers tell the use of some time before
    if not is_enough and (others.held or not others.known):
        return None
    unseen = not any(there.device_utilization for some in beside for there in some)
    named = _distinct(one for some in beside for one in some)
    devices = sorted({one.device for some in beside for one in some})
    text = ", ".join(_on_device(one) for one in named[:MOST_NAMED])
    what = (
        f"On {host or 'its host'} {text}; nobody saw it compute there."
        if unseen
        else f"On {host or 'its host'} {text}; the job's own processes aside, devices of workers that are not slow "
        f"give others {percent(others.share)} of their time."
    )
    short = f"{list_processes(named)} on {' and '.join(devices)} of {host or 'its host'}"
    share = min(max(more, 0.0) / max(lost, 1e-9), 1.0)
    return Taken(host=host, what=what, short=short, share=share, is_seen=is_enough)


def _device_share(neighbors: Iterable[Neighbor]) -> float:
    return sum(one.device_utilization for one in neighbors if one.device)


def _on_device(one: Neighbor) -> str:
    used = f"uses {percent(one.device_utilization)} of {one.device}'s time" if one.device_utilization else "is on"
    where = "" if one.device_utilization else f" {one.device}"
    held = f" and holds {one.device_bytes / 2**30:.1f} GiB there" if one.device_bytes else ""
    return f"{list_processes([one])} {used}{where}{held}"


def _distinct(neighbors: Iterable[Neighbor]) -> list[Neighbor]:
    return sorted({one.pid: one for one in neighbors}.values(), key=lambda one: -one.device_utilization)
