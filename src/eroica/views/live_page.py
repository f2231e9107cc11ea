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

from eroica.model.verdict import Verdict
from eroica.model.words import clean, ending_words, sentence
from eroica.report.footer import worker_state
from eroica.report.phrases import who
from eroica.wire.messages import JobStatus, WindowLine, WorkerStatus

if TYPE_CHECKING:
    import jinja2

#: Files that the page loads, and their content type.
ASSETS = {
    "live.css": "text/css",
    **dict.fromkeys(
        ("main.js", "stream.js", "chart.js", "scale.js", "workers.js", "windows.js", "words.js"),
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
Event = dict[str, object]
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
    "silent": "s",
    "unwatched": "f",
    "finished": "e",
    "ended": "e",
    "gone": "x",
}


def letter(status: WorkerStatus, heard: bool = True) -> WorkerLetter:
    """Return the letter of a worker's state; `heard`: its agent reported lately."""
    return "u" if not heard and not status.ended else _BY_STATE.get(worker_state(status), "t")


def facts(status: WorkerStatus) -> Iterator[str]:
    """Yield the clauses that describe a worker."""
    if status.state == "failed":  # Eroica gave up in the training process; the training itself goes on
        yield f"not watched any more, Eroica failed in it: {status.result.note or 'see the log of the worker'}"
    elif status.ended:
        yield f"{ending_words(status.ending)} at iteration {status.iteration}"
        return
    else:
        yield status.state
    if status.silent:
        yield f"SILENT ({status.silence or f'{status.silent_s:.0f} s'})"
    yield f"{1e3 * status.current_s:.1f} ms" if status.current_s is not None else "-"
    if status.result.note and status.state != "failed":
        yield status.result.note


# --- events ---


def job_now(status: JobStatus, heard: Callable[[str], bool]) -> dict[str, Event]:
    """Return events `status`, `roster` and `workers`.

    `roster` has hosts (name, and whether the agent reported lately) and workers (rank, index of host); `workers` one
    state letter (`LETTERS`) a worker in the same order, and in words those that need attention.
    """
    at = {host: index for index, host in enumerate(status.hosts)}
    is_heard = [heard(host) for host in status.hosts]
    known = [each for each in status.workers if each.worker.host in at]
    signs = [letter(each, is_heard[at[each.worker.host]]) for each in known]
    unheard = "the agent of its host has not been heard for 10 s"
    return {
        "status": {
            "job": clean(status.job, 60),
            "phase": status.phase,
            "message": sentence(status.message),
            "iteration": status.iteration,
            "mean_ms": status.mean_ms,
            "best_ms": status.best_ms,
            "hosts": len(status.hosts),
            "workers": len(status.workers),
            "letters": dict(sorted(Counter(signs).items())),
        },
        "roster": {
            "hosts": [clean(host) for host in status.hosts],
            "heard": is_heard,
            "rank": [each.worker.global_rank for each in known],
            "host": [at[each.worker.host] for each in known],
        },
        "workers": {
            "letters": "".join(signs),
            "odd": [
                {
                    "rank": each.worker.global_rank,
                    "host": clean(each.worker.host),
                    "pid": each.worker.pid,
                    "letter": sign,
                    "words": sentence(unheard if sign == "u" else ", ".join(facts(each))),
                }
                for each, sign in zip(known, signs, strict=True)
                if sign in ODD
            ][:_MOST_ODD],
        },
    }


def worker_now(status: WorkerStatus, heard: bool) -> Event:
    """Return one worker in full."""
    return {"letter": letter(status, heard), "words": sentence(", ".join(facts(status))), "status": status}


def window_now(line: WindowLine, report: str) -> Event:
    """Return event `window`: one window; `report` is the address of its report, "" before there is one."""
    names = ("window_id", "purpose", "phase", "first_iteration", "last_iteration", "verdict")
    return {**{name: getattr(line, name) for name in names}, "summary": sentence(line.summary), "report": report}


def verdict_now(window_id: int, verdict: Verdict, report: str) -> Event:
    """Return event `verdict` of a window, or `final` of the job (`window_id` 0), with the first cause."""
    first = verdict.cause or next(iter(verdict.findings), None)
    words = {"window_id": window_id, "verdict": verdict.verdict, "summary": sentence(verdict.summary), "report": report}
    return {
        **words,
        "cause": first.cause if first else "",
        "workers": who(first) if first else "",
        "hosts": [clean(host) for host in first.hosts[:8]] if first else [],
        "gain": first.gain if first else None,
        "confidence": first.confidence if first else None,
        "evidence": [sentence(text) for text in first.evidence[:_MOST_EVIDENCE]] if first else [],
        "next_step": sentence(first.next_step) if first else "",
    }


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
