"""The live page: its HTML, drawn once for readers without scripts, and the events that its scripts receive.

`docs/live.md` documents the events.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from eroica.model.look import Ending
from eroica.model.verdict import Verdict
from eroica.model.words import clean, sentence, worker_list
from eroica.wire.messages import JobStatus, WindowLine, WorkerStatus

if TYPE_CHECKING:
    import jinja2

#: Files that the page loads, and their content type.
ASSETS = {
    "live.css": "text/css",
    **dict.fromkeys(
        ("main.js", "stream.js", "chart.js", "scale.js", "workers.js", "windows.js", "ways.js", "words.js"),
        "text/javascript",
    ),
}
#: Policy of a report: its script runs in an origin of its own, without cookies and network.
REPORT_POLICY = (
    "sandbox allow-scripts allow-popups allow-downloads; default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_MOST_WINDOWS, _MOST_WORKERS = 20, 40
_MOST_ODD = 60
_MOST_EVIDENCE = 4
#: Workers of a cause that names none.
_SCOPES = {"all": "all workers", "rotating": "changing workers"}
WorkerLetter = Literal["l", "t", "c", "v", "s", "f", "u", "e", "x"]
#: Meaning of each letter. The page draws later ones over earlier ones.
LETTERS: dict[WorkerLetter, str] = {
    "t": "training",
    "l": "learning its iterations",
    "c": "capturing a window",
    "v": "saving a window",
    "e": "ended in order",
    "u": "its host's agent is not heard",
    "f": "not watched any more",
    "s": "silent",
    "x": "ended badly",
}
#: States that need attention.
ODD = frozenset("usfx")
_BY_STATE: dict[str, WorkerLetter] = {
    "learning": "l",
    "capturing": "c",
    "saving": "v",
    "failed": "f",
    "finished": "e",
    "gone": "x",
}


def letter(status: WorkerStatus, heard: bool = True) -> WorkerLetter:
    """Return the letter of a worker's state; `heard`: its agent reported lately."""
    if status.ended:
        return "e" if status.ending is None or status.ending.kind == "signed-off" else "x"
    if not heard:
        return "u"
    return "s" if status.silent else _BY_STATE.get(status.state, "t")


def facts(status: WorkerStatus) -> Iterator[str]:
    """Yield the clauses that describe a worker."""
    if status.state == "failed":  # Eroica gave up in the training process; the training itself goes on
        yield f"not watched any more, Eroica failed in it: {status.result.note or 'see the log of the worker'}"
    elif status.ended:
        yield f"{_ending(status.ending)} at iteration {status.iteration}"
        return
    else:
        yield status.state
    if status.silent:
        yield f"SILENT ({status.silence or f'{status.silent_s:.0f} s'})"
    yield f"{1e3 * status.current_s:.1f} ms" if status.current_s is not None else "-"
    if status.result.note and status.state != "failed":
        yield status.result.note


def _ending(ending: Ending | None) -> str:
    if ending is None:
        return "ended"
    if ending.out_of_memory:
        return "KILLED for want of memory"
    words = {"signal": f"ENDED by signal {ending.number}", "exit": f"ENDED with status {ending.number}"}
    return {"signed-off": "ended in order", **words}.get(ending.kind, "GONE, nobody saw how")


# --- events ---


class Now(msgspec.Struct, frozen=True, kw_only=True):
    """Event `status`: the job in one line; `letters` counts workers by state letter (`LETTERS`)."""

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
    """Event `roster`: hosts (name, and whether the agent reported lately) and workers (rank, index of the host)."""

    hosts: tuple[str, ...]
    heard: tuple[bool, ...]
    rank: tuple[int, ...]
    host: tuple[int, ...]


class OddWorker(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that needs attention."""

    rank: int
    host: str
    pid: int
    letter: str
    words: str


class WorkerNow(msgspec.Struct, frozen=True, kw_only=True):
    """One worker in full."""

    letter: str
    words: str
    status: WorkerStatus


class Workers(msgspec.Struct, frozen=True, kw_only=True):
    """Event `workers`: one state letter a worker in the roster's order, and those that need attention in words."""

    letters: str
    odd: tuple[OddWorker, ...]


class WindowNow(msgspec.Struct, frozen=True, kw_only=True):
    """Event `window`: one window; `report` is the address of its report, "" before there is one."""

    window_id: int
    purpose: str
    phase: str
    first_iteration: int
    last_iteration: int
    verdict: str
    summary: str
    report: str


class VerdictNow(msgspec.Struct, frozen=True, kw_only=True):
    """Events `verdict` (of a window) and `final` (of the job, `window_id` 0) with the first cause."""

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
    """Return event `status`."""
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
    """Return event `roster`."""
    at = {host: index for index, host in enumerate(status.hosts)}
    known = [each for each in status.workers if each.worker.host in at]
    return Roster(
        hosts=tuple(clean(host) for host in status.hosts),
        heard=tuple(heard(host) for host in status.hosts),
        rank=tuple(each.worker.global_rank for each in known),
        host=tuple(at[each.worker.host] for each in known),
    )


def workers_now(status: JobStatus, who: Roster) -> Workers:
    """Return event `workers`."""
    heard = dict(zip(status.hosts, who.heard, strict=True))
    known = [(each, letter(each, heard[each.worker.host])) for each in status.workers if each.worker.host in heard]
    odd = [_odd(each, sign) for each, sign in known if sign in ODD][:_MOST_ODD]
    return Workers(letters="".join(sign for _, sign in known), odd=tuple(odd))


def _odd(status: WorkerStatus, sign: str) -> OddWorker:
    who = status.worker
    words = "the agent of its host has not been heard for 10 s" if sign == "u" else ", ".join(facts(status))
    return OddWorker(rank=who.global_rank, host=clean(who.host), pid=who.pid, letter=sign, words=sentence(words))


def worker_now(status: WorkerStatus, heard: bool) -> WorkerNow:
    """Return one worker in full."""
    return WorkerNow(letter=letter(status, heard), words=sentence(", ".join(facts(status))), status=status)


def window_now(line: WindowLine, report: str) -> WindowNow:
    """Return event `window`."""
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
    """Return event `verdict` or `final`."""
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


# --- the page ---


@functools.cache
def asset(name: str) -> bytes:
    """Return a file of the page, by its name in `ASSETS`."""
    content = (files("eroica.views") / "live" / name).read_bytes()
    if name == "live.css":
        return (files("eroica.views") / "web" / "palette.css").read_bytes() + content
    return content


@functools.cache
def _template() -> jinja2.Template:
    import jinja2  # not for `eroica status`, which only needs the words

    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    return environment.from_string((files("eroica.views") / "live" / "live.html.jinja").read_text(encoding="utf-8"))


def draw_page(status: JobStatus, final: Verdict | None, run: Path, window_s: float) -> bytes:
    """Return the page of a job with its final verdict (if any), run directory and length of a window, seconds."""
    odd = [worker for worker in status.workers if letter(worker) in ODD][:_MOST_WORKERS]
    text = _template().render(
        status=status,
        final=final,
        run=str(run),
        window_s=f"{window_s:g}",
        windows=list(reversed(status.windows))[:_MOST_WINDOWS],
        odd=[(worker.worker, ", ".join(facts(worker))) for worker in odd],
        letters=LETTERS,
        clean=clean,
        sentence=sentence,
    )
    return text.encode("utf-8", "replace")
