"""The live page as the collector serves it: drawn once for readers without scripts, then kept up to date by its own."""

from __future__ import annotations

import functools
from importlib.resources import files
from pathlib import Path

import jinja2

from eroica.model.verdict import Verdict
from eroica.report.words import clean, sentence
from eroica.views.workers import LETTERS, ODD, facts, letter
from eroica.wire.messages import JobStatus

#: What the page loads, and what it is.
ASSETS = {
    "live.css": "text/css",
    **dict.fromkeys(
        ("main.js", "stream.js", "chart.js", "scale.js", "workers.js", "windows.js", "ways.js", "words.js"),
        "text/javascript",
    ),
}
#: A report is a page by itself: it runs its own script, but in an origin of its own, without cookies and network.
REPORT_POLICY = (
    "sandbox allow-scripts allow-popups allow-downloads; default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_MOST_WINDOWS, _MOST_WORKERS = 20, 40


@functools.cache
def asset(name: str) -> bytes:
    """A file of the page; `name` is one of `ASSETS`."""
    content = (files("eroica.views.live") / name).read_bytes()
    if name == "live.css":
        return (files("eroica.views") / "web" / "palette.css").read_bytes() + content
    return content


@functools.cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    return environment.from_string((files("eroica.views.live") / "live.html.jinja").read_text(encoding="utf-8"))


def draw_page(status: JobStatus, final: Verdict | None, run: Path, window_s: float) -> bytes:
    """The page as it is now.

    Args:
        status: The job.
        final: Its verdict, once it has one.
        run: Its run directory.
        window_s: How long a window is that somebody asks for, seconds.
    """
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
