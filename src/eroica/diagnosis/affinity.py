"""Workers that share fewer cores than they need, while others of their host are idle.

A launcher, a container or a script may set an affinity too narrow. In a job that somebody finds slow this shows without
a baseline window: the cores that a host's workers may use are all busy with them, their training threads wait for a
core, and other cores are idle. Where there is a baseline window, the threads must wait more than in it.

Array suffixes: W workers.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from eroica.diagnosis.candidate import Candidate
from eroica.diagnosis.cores import bound_to, listed_cores
from eroica.diagnosis.frames import NOTHING
from eroica.diagnosis.lateness import LEAST_STRENGTH
from eroica.diagnosis.oversubscription import LOOKS_LIKE
from eroica.diagnosis.speed import queued_share
from eroica.diagnosis.view import View
from eroica.diagnosis.words import name_workers
from eroica.model.shares import percent

CAUSE = "cpu-contention"
#: Cores that the workers may use count as busy with them from this share on: workers in step want them all at once.
_BUSY = 0.7
#: Training threads must be without a core for this share of the time, and so many cores must be idle meanwhile.
_LEAST_QUEUED = 0.25
_LEAST_IDLE = 0.5
#: And must be without one for so much more of it than in the baseline window.
_LEAST_GROWN = 0.1
#: A core whose other hyper-thread is busy can do about so much more.
_SIBLING = 0.25
#: A gain that follows from counting cores, not from the window run again.
_DOUBT = 0.9
_NEXT_STEP = (
    "Let the workers use the idle cores, if those are yours: look for taskset, numactl, a cpuset of the container or "
    "the scheduler's binding (srun --cpu-bind, --cpus-per-task), and give each worker cores of its own."
)


class _Narrow(msgspec.Struct, frozen=True, kw_only=True):
    """A host whose workers share too few cores.

    Attributes:
        members: Its workers (indices).
        host: Its name.
        allowed: Cores that they may use.
        cores: Cores it has.
        idle: Cores that do nothing; the other hyper-thread of one that is busy counts for a quarter.
        queued: Share of the time in which their training threads wait for a core.
    """

    members: list[int]
    host: str
    allowed: int
    cores: float
    idle: float
    queued: float

    @property
    def gain(self) -> float:
        """Largest gain: the share of time spent waiting for a core, as far as the idle cores can carry it."""
        return min(self.queued, self.idle / (self.allowed + self.idle))


def find_narrow_affinity(view: View) -> list[Candidate]:
    """Accuse hosts whose workers wait for the few cores that they may use."""
    if view.is_trace or view.fleet.has_accelerator or not view.is_slow:
        return []
    found = [one for host, members in view.homes.items() if (one := _narrow(view, host, members)) is not None]
    return [_candidate(view, found)] if found else []


def _narrow(view: View, host: str, members: Sequence[int]) -> _Narrow | None:
    patterns = [view.fleet.patterns[at] for at in members]
    facts = patterns[0].host_facts
    cores, job = facts.get("cpu_count", 0.0), facts.get("cores_job", 0.0)
    allowed = bound_to(patterns)
    siblings = frozenset[int]().union(*(listed_cores(one.setup.get("siblings", "")) for one in patterns)) - allowed
    idle = cores * (1 - facts.get("host_busy", 1.0))
    idle -= (1 - _SIBLING) * min(idle, len(siblings))
    queued = float(np.nan_to_num(queued_share(view.fleet)[list(members)]).mean())
    before = float(np.nan_to_num(view.then(queued_share)[list(members)]).mean())
    if queued < _LEAST_QUEUED or idle < _LEAST_IDLE or queued - before < _LEAST_GROWN:
        return None
    if not allowed or len(allowed) >= cores or job < _BUSY * len(allowed):
        return None
    return _Narrow(members=list(members), host=host, allowed=len(allowed), cores=cores, idle=idle, queued=queued)


def _candidate(view: View, found: list[_Narrow]) -> Candidate:
    members = sorted(at for one in found for at in one.members)
    everybody = len(members) == view.workers
    gain = float(np.mean([one.gain for one in found]))
    worst = max(found, key=lambda one: one.gain)
    host = worst.host or "their host"
    others = len(found) - 1
    where = host if not others else f"{host} and {others} more host{'s' if others > 1 else ''}, on each of them,"
    whom = "all workers" if everybody else name_workers([view.fleet.ranks[at] for at in members])
    whose = f"The {len(worst.members)} workers" if len(worst.members) > 1 else "The worker"
    keep = "keep" if len(worst.members) > 1 else "keeps"
    removed_WI = np.zeros_like(view.fleet.iteration_us)
    removed_WI[members] = gain * view.fleet.iteration_us[members]
    shared = "one core" if worst.allowed == 1 else f"{worst.allowed} cores"
    return Candidate(
        cause=CAUSE,
        scope="all" if everybody else "some",
        workers=tuple(members),
        focus=NOTHING,
        kind="other",
        removed_us=removed_WI,
        mean_us=view.iteration_us,
        reference_us=view.iteration_us * (1 - gain),
        reference="expectation",
        strength=3 * LEAST_STRENGTH,
        least_gain=view.settings.min_gain,
        evidence=(
            f"{whose} of {host} may use {shared} of {worst.cores:.0f}, and {keep} "
            f"{'it' if worst.allowed == 1 else 'them'} busy; {worst.idle:.1f} cores are idle.",
            f"Their training threads are ready but without a core {percent(worst.queued)} of the time.",
        ),
        gain=gain,
        sentence=(
            f"On {where} {whom} share {shared}, for which their training threads wait {percent(worst.queued)} of the "
            f"time, while {worst.idle:.1f} of {worst.cores:.0f} cores are idle."
        ),
        next_step=_NEXT_STEP,
        doubt=_DOUBT,
        stands_for=LOOKS_LIKE,
    )
