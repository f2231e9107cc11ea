"""The report: one HTML file that opens offline.

`Material` holds what it shows, `web/report.html` is the frame, and `PICTURES` lists the pictures. A picture is a
function from `Material` to a `Picture`, or to None where the verdict has no use for it (a job that stands still has no
flame graphs). A picture may have a script and a style: `web/<name>.js` and `web/<name>.css`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from functools import cache
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, FunctionLoader
from markupsafe import Markup

from eroica.model.shares import percent
from eroica.model.verdict import NO_FUNCTION, Finding, Verdict, VerdictWord
from eroica.model.words import change, clean, milliseconds, plural, sentence, worker_list
from eroica.report.phrases import (
    BREAKDOWN,
    NumberRow,
    breakdown_lines,
    cause_facts,
    compared_with,
    cost_facts,
    coverage_line,
    describe,
    is_recorded,
    number_rows,
    opening,
    signs_of,
    stands_still,
    symptom_lines,
    who,
    window_facts,
)
from eroica.views import flames, heatmap, iterations, waits
from eroica.views.material import Material, gather
from eroica.views.svg import Picture, join, line, path, rect, svg, tag
from eroica.wire.logs import log_to
from eroica.wire.places import write_whole

#: Width of bars in their own coordinates; the page stretches them.
_BAR = 400.0
#: Outline and inner sign of each word, in a square of 24 pixels: triangle, stop sign, disc with a tick, diamond.
_SIGNS: dict[VerdictWord, tuple[str, str]] = {
    "slow": ("M12 1.5 23.4 22.2H.6z", "M12 9v6.2M12 18.6v.1"),
    "blocked": ("M7.3.9h9.4l6.4 6.4v9.4l-6.4 6.4H7.3L.9 16.7V7.3z", "M6.6 12h10.8"),
    "healthy": ("M12 .8a11.2 11.2 0 1 1 0 22.4a11.2 11.2 0 1 1 0-22.4z", "M6.8 12.4l3.6 3.7 6.9-7.6"),
    "undetermined": (
        "M12 .6 23.4 12 12 23.4.6 12z",
        "M9.2 9.6a2.9 2.9 0 1 1 4.3 2.5c-1 .6-1.5 1.1-1.5 2.1M12 17.3v.1",
    ),
}
#: Innermost frames that are not folded.
_OPEN_FRAMES = 4
MOST_CAUSES, MOST_SYMPTOMS, _MOST_COVERAGE_NOTES = 12, 40, 40


def word_sign(word: VerdictWord) -> Markup:
    """Return the shape of a word."""
    outline, inner = _SIGNS[word]
    return svg(24, 24, path(outline, cls="mark"), path(inner, cls="sign"))


def pace_bars(verdict: Verdict) -> Iterator[tuple[str, Markup, str, str]]:
    """Yield label, bar, value and note of the iteration now, without the first cause, and before; none if unknown."""
    now, before, best = verdict.iteration.current_ms, verdict.iteration.baseline_ms, verdict.iteration.best_ms
    if now is None:
        return
    longest = max(now, before or 0.0, best or 0.0)

    def row(
        label: str, value: float, note: str = "", cls: str = "bar", saved: float = 0.0
    ) -> tuple[str, Markup, str, str]:
        width, until = (_BAR * min(one, longest) / longest if longest else 0.0 for one in (value, saved))
        gone = rect(width, 4, until - width - 0.5, 11, cls="saved") if until > width else None
        bar = svg(_BAR, 19, rect(0, 3, width, 13, cls=cls), gone, stretch=True)
        return label, bar, milliseconds(value), note

    yield row("now", now, cls="bar-culprit" if verdict.verdict == "slow" else "bar")
    cause = verdict.cause
    if cause is not None and cause.gain:
        several = sum(finding.role == "cause" for finding in verdict.findings) > 1
        label = "without the first cause" if several else "without the cause"
        yield row(label, now * (1 - cause.gain), f"{percent(cause.gain)} shorter", saved=now)
    if before:
        yield row("before", before, f"now {change(before, now)}" if now > before else "")
    if best and before and milliseconds(best) != milliseconds(before):
        yield row("at its best", best)
    if verdict.iteration.rest_ms:
        yield row("unexplained", verdict.iteration.rest_ms, "longer than before, and no cause explains it")


def meter(share: float) -> Markup:
    """Return a share as a filled part of a track with a tick each quarter."""
    filled = _BAR * min(max(share, 0.0), 1.0)
    quarters = [line(_BAR * at, 2, _BAR * at, 17, cls="tick") for at in (0.25, 0.5, 0.75)]
    bars = (rect(0, 3, _BAR, 13, cls="track"), rect(0, 3, filled, 13, cls="bar"), *quarters)
    return svg(_BAR, 19, *bars, stretch=True)


def key_facts(material: Material) -> Iterator[tuple[str, str, bool]]:
    """Yield what the verdict is about: label, text, and whether it needs a line of its own."""
    verdict, coverage = material.verdict, material.verdict.coverage
    yield "Job", clean(verdict.job, 80) or "without a name", False
    label = "Recorded" if is_recorded(verdict) else "Standstill" if stands_still(verdict) else "Window"
    number = f"window {material.window_id}: " if material.window_id else ""
    yield label, number + ", ".join(window_facts(verdict)), False
    when = happened(material)
    if when:
        yield "When", when, False
    hosts = len(set(material.hosts.values()) - {""})
    on = f" on {plural(hosts, 'host')}" if hosts else ""
    heard = f"{coverage.workers_reported:,} of {coverage.workers_expected:,} heard{on}"
    if coverage.workers_reported >= coverage.workers_expected:
        heard = f"{coverage.workers_reported:,}{on}, all heard"
    yield "Workers", heard, False
    if verdict.window is not None and verdict.window.reason:
        yield "Looked because", sentence(verdict.window.reason), True


def happened(material: Material) -> str:
    """Return when the verdict's window was open: "2026-11-22 03:12 UTC"; "" if unknown."""
    marks = material.history.marks if material.history is not None and material.window_id else ()
    kinds = ("window", "blocked", "verdict")
    at_s = next((mark.at_s for mark in marks if mark.window_id == material.window_id and mark.kind in kinds), None)
    if material.history is None or at_s is None:
        return ""
    try:
        when = datetime.fromtimestamp(material.history.began + at_s, tz=timezone.utc)
    except (OverflowError, ValueError, OSError):
        return ""
    return f"{when:%Y-%m-%d %H:%M} UTC"


def shown_causes(verdict: Verdict) -> list[dict[str, object]]:
    """Return the verdict's causes in order, for the template; texts are clean, not yet escaped.

    Keys: `finding`; `title`: its workers; `compared_with`: head of the column beside "here"; `numbers`: rows with bars;
    `callers`: outer frames, folded; `frames`: the innermost ones; `page`: where the manual explains this cause.
    """
    causes = [finding for finding in verdict.findings if finding.role == "cause"]
    return [_cause(finding, verdict) for finding in causes[:MOST_CAUSES]]


def _cause(finding: Finding, verdict: Verdict) -> dict[str, object]:
    rows = list(number_rows(finding))
    stack = [clean(frame, 200) for frame in finding.function.stack if frame]
    return {
        "finding": finding,
        "title": f"on {worker_list(finding.workers) if len(finding.workers) == 1 else who(finding)}",
        "function": "" if finding.function.name == NO_FUNCTION else clean(finding.function.name, 120),
        "facts": list(cause_facts(finding, verdict)),
        "compared_with": compared_with(finding, is_recorded(verdict)),
        "numbers": [(row, _bars(row)) for row in rows],
        "has_expected": any(row.expected for row in rows),
        "callers": stack[:-_OPEN_FRAMES],
        "frames": stack[-_OPEN_FRAMES:],
        "evidence": [sentence(text) for text in finding.evidence],
        "next_step": sentence(finding.next_step),
        "page": f"docs/causes/{clean(finding.cause, 60)}.md",
    }


def _bars(row: NumberRow) -> Markup:
    """Return the number above its peers', on one scale from 0."""
    longest = max(row.value, row.peers_value or 0.0)
    unit = _BAR / longest if longest > 0 else 0.0
    here = rect(0, 2, max(row.value * unit, 1.0), 6, cls="bar-culprit")
    peers = rect(0, 10, max(row.peers_value * unit, 1.0), 6, cls="bar") if row.peers_value is not None else None
    return svg(_BAR, 18, here, peers, stretch=True)


def left_out(verdict: Verdict) -> str:
    """Return a sentence on the findings that are not on the page; "" if all are."""
    roles = [finding.role for finding in verdict.findings]
    more = max(0, roles.count("cause") - MOST_CAUSES) + max(0, roles.count("symptom") - MOST_SYMPTOMS)
    return f"{more} more findings stand in the JSON." if more else ""


def draw_coverage(material: Material) -> Picture:
    """Return who was heard, the notes, and what the window cost."""
    verdict, coverage = material.verdict, material.verdict.coverage
    expected = max(coverage.workers_expected, coverage.workers_reported, 1)
    heard = rect(0, 3, _BAR * coverage.workers_reported / expected, 13, cls="bar")
    bar = svg(_BAR, 19, rect(0, 3, _BAR, 13, cls="track"), heard, stretch=True)
    parts = [tag("div", tag("p", f"{coverage_line(verdict)}."), tag("div", bar, cls="thin"), cls="heard")]
    if coverage.notes:
        items = [tag("li", sentence(note)) for note in coverage.notes[:_MOST_COVERAGE_NOTES]]
        more = len(coverage.notes) - _MOST_COVERAGE_NOTES
        last = tag("li", f"and {more} more in the JSON") if more > 0 else None
        parts += [tag("h3", "What to keep in mind"), tag("ul", *items, last, cls="evidence")]
    rows = [tag("div", tag("dt", term.capitalize()), tag("dd", tag("b", value))) for term, value in cost_facts(verdict)]
    if rows:
        title = "What reading cost" if is_recorded(verdict) else "What looking cost"
        parts += [tag("h3", title), tag("dl", *rows, cls="key cost")]
    return Picture(id="coverage", title="Coverage and cost", body=join(parts))


log = logging.getLogger("eroica.views")
#: Name -> title in the navigation, and the function that draws it; in the order of the page.
PICTURES: dict[str, tuple[str, Callable[[Material], Picture | None]]] = {
    "stuck": ("Who is stuck where", waits.draw_stuck),
    "iterations": ("Iterations", iterations.draw),
    "heatmap": ("Heat map", heatmap.draw),
    "waits": ("Waits", waits.draw),
    "flames": ("Stacks", flames.draw),
    "coverage": ("Coverage", draw_coverage),
}
_MOST_NOTES = 8
_UNIT = re.compile(r"(?<=\d) (?=(?:%|(?:ms|µs|s|min|[kMGT]?B)\b))")


def build_report(material: Material) -> bytes:
    """Return the page as UTF-8."""
    return build_page(material).encode("utf-8", "replace")


def write_report(directory: Path, file: Path, window_id: int | None = None) -> None:
    """Draw a run directory, one of its windows, or a verdict in a file; the page appears whole or not at all.

    Raises:
        InputError: The directory holds no verdict, or Eroica did not write it.
        UsageError: The run has no such window.
        OSError: The file cannot be written.
    """
    write_whole(file, build_report(gather(directory, window_id)))


def build_page(material: Material) -> str:
    """Return the page as HTML."""
    verdict = material.verdict
    causes = shown_causes(verdict)
    cause = verdict.cause
    css, script = Markup(_together("css")), Markup(_together("js"))
    return _environment().get_template("report.html").render(
        material=material,
        verdict=verdict,
        opening=opening(verdict.verdict, verdict.summary),
        sign=word_sign(verdict.verdict),
        pace=list(pace_bars(verdict)),
        confidence=percent(cause.confidence) if cause is not None else "",
        meter=meter(cause.confidence) if cause is not None else "",
        key=list(key_facts(material)),
        notes=_notes(material),
        causes=causes,
        symptoms=symptom_lines(verdict)[:MOST_SYMPTOMS],
        left_out=left_out(verdict),
        considered=[
            {"title": describe(one), "decision": one.decision, "signs": list(signs_of(one))}
            for one in verdict.considered
        ],
        breakdown=(BREAKDOWN[1], *breakdown_lines(verdict)),
        has_letters=any(one.pattern is not None for one in verdict.findings if one.role == "cause"),
        pictures=[
            (PICTURES[name][0], picture)
            for name in PICTURES
            if (picture := draw_picture(name, material)) is not None
        ],
        css=css,
        script=script,
        policy=_policy(css, script),
    )  # fmt: skip


def _notes(material: Material) -> list[str]:
    window = material.verdict.window
    if window is not None and window.kind != "blocked" and not material.patterns:
        return ["Only the verdict was at hand; its pictures are drawn from the patterns in a run directory."]
    return [sentence(note) for note in material.notes[:_MOST_NOTES]]


def draw_picture(name: str, material: Material) -> Picture | None:
    """Return one picture; if it fails, or its data are no JSON, the sentence in its place."""
    try:
        picture = PICTURES[name][1](material)
        as_script(picture.data if picture is not None else None)
    except Exception as error:
        log.exception("the picture %s could not be drawn", name)
        why = f"This picture could not be drawn: {type(error).__name__}. Everything else on the page is unaffected."
        return Picture(id=name, title=PICTURES[name][0], missing=why)
    if picture is None or (picture.missing and not material.patterns):  # one that only says so
        return None
    return picture


def as_script(data: object) -> Markup:
    """Return JSON for a script element: ASCII only, and no "<" that could end it."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _prose(text: str) -> str:
    """Return a sentence that never breaks between a number and its unit."""
    return _UNIT.sub("\u00a0", sentence(text))


def _frame(text: str) -> Markup:
    """Return a frame of a stack that may break after slashes."""
    return Markup("/<wbr>").join(text.split("/"))


def _policy(css: str, script: str) -> str:
    """Return a policy that loads nothing and allows only this style and this script."""
    return (
        f"default-src 'none'; style-src '{_hash(css)}'; script-src '{_hash(script)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


@cache
def _together(kind: str) -> str:
    """Return the colors, the page's own file and those of the pictures."""
    room = files("eroica.views") / "web"
    found = [room / f"{name}.{kind}" for name in ("palette", "report", *PICTURES)]
    return "\n".join(file.read_text(encoding="utf-8") for file in found if file.is_file())


@cache
def _environment() -> Environment:
    """Return the environment of the template, which escapes everything but Markup."""
    room = files("eroica.views") / "web"
    environment = Environment(
        loader=FunctionLoader(lambda name: (room / name).read_text(encoding="utf-8")),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        clean=clean, percent=percent, sentence=sentence, prose=_prose, frame=_frame, script=as_script
    )
    return environment


# --- as a program ---


def main(run: str, window: str, file: str, limit_s: str) -> int:
    """Draw a window of a run ("0": its final verdict) into a file; return 1 if that failed."""
    os.umask(0o077)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(max(1, int(float(limit_s))))
    log_to(Path(run) / "log" / "pages.log")
    try:
        write_report(Path(run), Path(file), int(window) or None)
    except Exception:  # nobody reads the output of this process
        logging.exception("%s could not be drawn", file)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:5]))
