"""How a run is, from what its collector wrote: the beats of a running job, and the last one of a job that is over."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path
from typing import NamedTuple

import msgspec

from eroica.archive.check import MOST_JSON_BYTES
from eroica.archive.load import decode_history
from eroica.errors import InputError
from eroica.fleet.records import Beat, Points, RunFacts
from eroica.fleet.reporting.packing import signature_of
from eroica.fleet.reporting.spool import KeptBeat, SendState, Spool, digest_of, now
from eroica.model.history import IterationHistory
from eroica.wire.codec import UNDECODABLE
from eroica.wire.messages import JobStatus
from eroica.wire.places import read_private

#: Stretches of iteration times, of about a second each, in which a job may still be warming up.
_FIRST_STRETCHES = 5


class Seen(NamedTuple):
    """What a run directory says of its run now.

    Attributes:
        status: As the collector wrote it last; None where it cannot be read.
        history: Iteration times; None where they cannot be read.
        over: The run's final verdict is there.
        ends_at: When another run began in this directory, seconds since 1970: status, iteration times and all that was
            written later are its. Infinite where none did.
        signature: Changes when a file of this run does; "" without any.
        written_at: When the newest of them was written, seconds since 1970; 0 without any.
    """

    status: JobStatus | None
    history: IterationHistory | None
    over: bool
    ends_at: float
    signature: str
    written_at: float

    @property
    def is_another(self) -> bool:
        """The collector that counts here now began anew."""
        return self.ends_at < math.inf


def watch(spool: Spool, facts: RunFacts) -> Seen:
    """Look for a run, and remember since when its iterations are counted.

    Raises:
        OSError: The directory cannot be written.
    """
    state = spool.state(facts.run)
    seen = look(spool.run, state)
    if seen.history is not None and not state.began:
        spool.save_state(msgspec.structs.replace(state, began=seen.history.began))
    return seen


def look(run: Path, state: SendState) -> Seen:
    """Look into a run directory for the run that a state is of."""
    verdict, status, history = (run / name for name in ("verdict.json", "status.json", "history.json"))
    times = read_history(run)
    ends_at = math.inf if times is None or state.began in (0.0, times.began) else times.began
    is_another = ends_at < math.inf
    over = signature_of([verdict], ends_at) not in ("", state.stale)
    ours = [*([verdict] if over else []), *([] if is_another else [status, history])]
    written = []
    for path in ours:
        with contextlib.suppress(FileNotFoundError):
            written.append(path.stat().st_mtime)
    return Seen(
        status=None if is_another else _status(status),
        history=None if is_another else times,
        over=over,
        ends_at=ends_at,
        signature=signature_of(ours),
        written_at=max(written, default=0.0),
    )


def beat_of(facts: RunFacts, seen: Seen, state: SendState) -> Beat:
    """A beat that tells what is new since the last one that was taken.

    Args:
        facts: Who the run is.
        seen: How it is.
        state: What the service has of it.
    """
    status = seen.status
    hosts = status.hosts if status is not None else ()
    phase = "over" if seen.over else status.phase if status is not None else "starting"
    return Beat(
        facts=facts,
        at=now(),
        phase=phase,
        message=status.message if status is not None else "",
        iteration=status.iteration if status is not None else 0,
        mean_ms=status.mean_ms if status is not None else None,
        best_ms=best_of(seen.history),
        workers=len(status.workers) if status is not None else 0,
        hosts=hosts if hosts and digest_of(hosts) != state.hosts else None,
        points=points_after(seen.history, state.until_s),
        orders=state.heard,
    )


def keep_last(spool: Spool, facts: RunFacts, seen: Seen) -> None:
    """Keep what is left to be told of a run that nobody reports any more, as one beat, until the service has it.

    A beat that was kept before another run began in the directory knows more, and stays.

    Raises:
        OSError: The directory cannot be read or written.
    """
    state = spool.state(facts.run)
    if seen.is_another and spool.keeps_beat(facts.run):
        return
    if seen.signature and (seen.signature != state.told or not spool.is_empty()):
        spool.keep_beat(KeptBeat(beat=aged(beat_of(facts, seen, state), seen), told=seen.signature))


def aged(beat: Beat, seen: Seen) -> Beat:
    """A beat of a run that nobody watches any more: it is as old as what it was made from."""
    return msgspec.structs.replace(beat, age_s=max(0.0, now() - seen.written_at) if seen.written_at else 0.0)


def points_after(history: IterationHistory | None, until_s: float, most: int = 5000) -> Points:
    """Stretches that ended after a moment, the first `most` of them."""
    if history is None:
        return Points()
    first = next((at for at, end_s in enumerate(history.at_s) if end_s > until_s), len(history.at_s))
    return Points(**{name: getattr(history, name)[first : first + most] for name in Points.__struct_fields__})


def best_of(history: IterationHistory | None) -> float | None:
    """Milliseconds that a fifth of a run's stretches stayed below, without its first ones; None for a short run."""
    means = sorted(history.mean_ms[_FIRST_STRETCHES:]) if history is not None else []
    return means[len(means) // 5] if means else None


def read_history(run: Path) -> IterationHistory | None:
    """Iteration times as the collector wrote them last; None where they cannot be read."""
    try:
        return decode_history(read_private(run / "history.json", MOST_JSON_BYTES))
    except (OSError, InputError, *UNDECODABLE):
        return None


def _status(path: Path) -> JobStatus | None:
    try:
        return msgspec.json.decode(read_private(path, MOST_JSON_BYTES), type=JobStatus)
    except (OSError, *UNDECODABLE):
        return None
