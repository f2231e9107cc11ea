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
import re
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, FunctionLoader
from markupsafe import Markup

from eroica.model.shares import percent
from eroica.model.words import clean, sentence
from eroica.report.phrases import BREAKDOWN, breakdown_lines, describe, opening, signs_of, symptom_lines
from eroica.views import flames, heatmap, iterations, stuck, waits
from eroica.views.material import Material, gather
from eroica.views.svg import Picture
from eroica.views.verdict_parts import (
    MOST_SYMPTOMS,
    draw_coverage,
    key_facts,
    left_out,
    meter,
    pace_bars,
    shown_causes,
    word_sign,
)
from eroica.wire.files import write_whole

log = logging.getLogger("eroica.views")
#: Name -> title in the navigation, and the function that draws it; in the order of the page.
PICTURES: dict[str, tuple[str, Callable[[Material], Picture | None]]] = {
    "stuck": ("Who is stuck where", stuck.draw),
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
