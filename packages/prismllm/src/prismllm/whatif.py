"""Changes to a captured job.

parse("slow rank=713 by=1.5 from=2")
parse("hang rank=5 op=12 from=3")
parse("cut host=3 by=0.1")           # what is left of the host's network
parse("cut hosts=3-7 by=0.1")        # of the link between two hosts
parse("network by=2")                # everything twice as fast
parse("compute by=0.5")              # every rank computes in half the time
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prismllm.errors import InputError

if TYPE_CHECKING:
    from prismllm.graph import Job


@dataclass(frozen=True)
class Slow:
    """A rank computes `by` times as long, from an iteration on."""

    rank: int
    by: float
    since: int = 0


@dataclass(frozen=True)
class Hang:
    """A rank never launches its call number `op` (from 0) of iteration `since`."""

    rank: int
    op: int
    since: int = 0


@dataclass(frozen=True)
class Cut:
    """Share `by` is left of a host's network (`other` < 0), or of the link between two hosts."""

    host: int
    by: float
    other: int = -1


@dataclass(frozen=True)
class Network:
    """All links are `by` times as fast."""

    by: float


@dataclass(frozen=True)
class Compute:
    """Every rank computes `by` times as long."""

    by: float


@dataclass(frozen=True)
class Busy:
    """Own work in which a rank uses a core takes `by` times as long; sleep does not. Used for ranges."""

    by: float


Change = Slow | Hang | Cut | Network | Compute | Busy
_HELP = (
    'say "slow rank=R by=FACTOR [from=ITERATION]", "hang rank=R op=N [from=ITERATION]", "cut host=H by=SHARE", '
    '"cut hosts=H-H by=SHARE", "network by=FACTOR" or "compute by=FACTOR"'
)


def parse(text: str) -> Change:
    """Parse a change.

    Raises:
        InputError: It is none, or a number is missing or impossible.
    """
    verb, *words = text.split()
    values = dict(word.partition("=")[::2] for word in words)
    try:
        match verb:
            case "slow":
                change: Change = Slow(int(values.pop("rank")), float(values.pop("by")), int(values.pop("from", "0")))
            case "hang":
                change = Hang(int(values.pop("rank")), int(values.pop("op")), int(values.pop("from", "0")))
            case "cut" if "hosts" in values:
                one, _, other = values.pop("hosts").partition("-")
                change = Cut(int(one), float(values.pop("by")), int(other))
            case "cut":
                change = Cut(int(values.pop("host")), float(values.pop("by")))
            case "network":
                change = Network(float(values.pop("by")))
            case "compute":
                change = Compute(float(values.pop("by")))
            case _:
                raise InputError(f"{text!r} is no change that is known; {_HELP}")
    except (KeyError, ValueError) as error:
        raise InputError(f"{text!r} cannot be read ({error}); {_HELP}") from None
    if values:
        raise InputError(f"{text!r}: {', '.join(values)} is not known here; {_HELP}")
    if getattr(change, "by", 1.0) <= 0:
        raise InputError(f"{text!r}: `by` must be above 0")
    return change


def check_changes(changes: Sequence[Change], job: Job) -> None:
    """Check that changes name ranks, hosts and calls that exist.

    Raises:
        InputError: One does not.
    """
    hosts = -(-job.world // job.local_world)
    for change in changes:
        rank = getattr(change, "rank", 0)
        if not 0 <= rank < job.world:
            raise InputError(f"there is no rank {rank}; the job has ranks 0 to {job.world - 1}")
        n_calls = len(job.classes[job.class_of[rank]].step.calls)
        if isinstance(change, Hang) and not 0 <= change.op < n_calls:
            raise InputError(f"rank {rank} makes calls 0 to {n_calls - 1} in an iteration, not {change.op}")
        if isinstance(change, Cut) and not (0 <= change.host < hosts and change.other < hosts):
            raise InputError(f"the job has hosts 0 to {hosts - 1} ({change} names another); see --ranks-per-host")
