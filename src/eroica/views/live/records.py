"""What the live page's events carry, made from the job's status and verdicts. Documented in docs/live.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import msgspec

from eroica.model.verdict import Verdict
from eroica.report.words import clean, sentence, worker_list
from eroica.views.workers import ODD, facts, letter
from eroica.wire.messages import JobStatus, WindowLine, WorkerStatus

_MOST_ODD = 60
_MOST_EVIDENCE = 4
#: Whom a cause is about where it names nobody in particular.
_SCOPES = {"all": "all workers", "rotating": "changing workers"}


class Now(msgspec.Struct, frozen=True, kw_only=True):
    """Event `status`: the job in one line.

    Attributes:
        workers: Of all that are known.
        letters: Workers by state letter (`eroica.views.workers.LETTERS`).
    """

    job: str
    phase: str
    message: str
    iteration: int
    mean_ms: float | None
    best_ms: float | None
    hosts: int
    workers: int
    letters: dict[str, int]


class Roster(msgspec.Struct, frozen=True, kw_only=True):
    """Event `roster`: who takes part, in columns; sent when that changes.

    Attributes:
        hosts: Names; the other columns have one value a worker, sorted by rank.
        heard: Whether each host's agent reported lately.
        host: Index into `hosts`.
    """

    hosts: tuple[str, ...]
    heard: tuple[bool, ...]
    rank: tuple[int, ...]
    host: tuple[int, ...]


class OddWorker(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that somebody should look at."""

    rank: int
    host: str
    pid: int
    letter: str
    words: str


class WorkerNow(msgspec.Struct, frozen=True, kw_only=True):
    """One worker in full: what its agent says, its letter, and both in words."""

    letter: str
    words: str
    status: WorkerStatus


class Workers(msgspec.Struct, frozen=True, kw_only=True):
    """Event `workers`: one state letter a worker, in the roster's order, and the odd ones in words."""

    letters: str
    odd: tuple[OddWorker, ...]


class WindowNow(msgspec.Struct, frozen=True, kw_only=True):
    """Event `window`: one window as it is; `report` is the address of its report, "" before there is one."""

    window_id: int
    purpose: str
    phase: str
    first_iteration: int
    last_iteration: int
    verdict: str
    summary: str
    report: str


class VerdictNow(msgspec.Struct, frozen=True, kw_only=True):
    """Events `verdict` (of a window) and `final` (of the job, `window_id` 0): the first cause in short."""

    window_id: int
    verdict: str
    summary: str
    cause: str = ""
    workers: str = ""
    hosts: tuple[str, ...] = ()
    gain: float | None = None
    confidence: float | None = None
    evidence: tuple[str, ...] = ()
    next_step: str = ""
    report: str = ""


def job_now(status: JobStatus, letters: str) -> Now:
    """The job in one line."""
    return Now(
        job=clean(status.job, 60),
        phase=status.phase,
        message=sentence(status.message),
        iteration=status.iteration,
        mean_ms=status.mean_ms,
        best_ms=status.best_ms,
        hosts=len(status.hosts),
        workers=len(status.workers),
        letters=dict(sorted(Counter(letters).items())),
    )


def roster(status: JobStatus, heard: Callable[[str], bool]) -> Roster:
    """Who takes part."""
    at = {host: index for index, host in enumerate(status.hosts)}
    known = [each for each in status.workers if each.worker.host in at]
    return Roster(
        hosts=tuple(clean(host) for host in status.hosts),
        heard=tuple(heard(host) for host in status.hosts),
        rank=tuple(each.worker.global_rank for each in known),
        host=tuple(at[each.worker.host] for each in known),
    )


def workers_now(status: JobStatus, who: Roster) -> Workers:
    """Everybody's state, in the order of the roster."""
    heard = dict(zip(status.hosts, who.heard, strict=True))
    known = [(each, letter(each, heard[each.worker.host])) for each in status.workers if each.worker.host in heard]
    odd = [_odd(each, sign) for each, sign in known if sign in ODD][:_MOST_ODD]
    return Workers(letters="".join(sign for _, sign in known), odd=tuple(odd))


def _odd(status: WorkerStatus, sign: str) -> OddWorker:
    who = status.worker
    words = "the agent of its host has not been heard for 10 s" if sign == "u" else ", ".join(facts(status))
    return OddWorker(rank=who.global_rank, host=clean(who.host), pid=who.pid, letter=sign, words=sentence(words))


def worker_now(status: WorkerStatus, heard: bool) -> WorkerNow:
    """One worker in full."""
    return WorkerNow(letter=letter(status, heard), words=sentence(", ".join(facts(status))), status=status)


def window_now(line: WindowLine, report: str) -> WindowNow:
    """One window as it is."""
    return WindowNow(
        window_id=line.window_id,
        purpose=line.purpose,
        phase=line.phase,
        first_iteration=line.first_iteration,
        last_iteration=line.last_iteration,
        verdict=line.verdict,
        summary=sentence(line.summary),
        report=report,
    )


def verdict_now(window_id: int, verdict: Verdict, report: str) -> VerdictNow:
    """A verdict in short."""
    first = verdict.cause or next(iter(verdict.findings), None)
    short = VerdictNow(window_id=window_id, verdict=verdict.verdict, summary=sentence(verdict.summary), report=report)
    if first is None:
        return short
    return msgspec.structs.replace(
        short,
        cause=first.cause,
        workers=_SCOPES.get(first.scope) or worker_list(first.workers),
        hosts=tuple(clean(host) for host in first.hosts[:8]),
        gain=first.gain,
        confidence=first.confidence,
        evidence=tuple(sentence(text) for text in first.evidence[:_MOST_EVIDENCE]),
        next_step=sentence(first.next_step),
    )
