"""The report: one page that needs nothing but itself.

What it shows comes from `Material`; the words of `report/`, the pictures of `views/pictures/`, the frame of
`web/report.html`. Style and script stand in the page and are allowed by their hashes alone.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import re
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.resources import files

from jinja2 import Environment, FunctionLoader
from markupsafe import Markup

from eroica.model.shares import percent
from eroica.report.phrases import opening
from eroica.report.why import describe, fate, signs_of
from eroica.report.words import clean, sentence
from eroica.views.findings import left_out, shown_causes, shown_symptoms
from eroica.views.glance import key_facts, meter, pace_bars, word_sign
from eroica.views.material import Material
from eroica.views.picture import Facts, Picture
from eroica.views.pictures import NAMES, TITLES

log = logging.getLogger("eroica.views")
_MOST_NOTES = 8
_UNIT = re.compile(r"(?<=\d) (?=(?:%|(?:ms|µs|s|min|[kMGT]?B)\b))")


@dataclass(frozen=True, kw_only=True)
class _Shown:
    """A picture as the template wants it: its data as JSON that nothing in it can end."""

    id: str
    nav: str
    title: str
    body: Markup
    reads: str
    facts: Facts | None
    missing: str
    data: Markup | None


def build_page(material: Material) -> str:
    """The whole page as HTML."""
    verdict = material.verdict
    causes = shown_causes(verdict)
    cause = verdict.cause
    css, script = Markup(_together("css")), Markup(_together("js"))
    return _environment().get_template("report.html").render(
        material=material,
        verdict=verdict,
        opening=opening(verdict.verdict, verdict.summary),
        sign=word_sign(verdict.verdict),
        pace=pace_bars(verdict),
        confidence=percent(cause.confidence) if cause is not None else "",
        meter=meter(cause.confidence) if cause is not None else "",
        key=list(key_facts(material)),
        notes=_notes(material),
        causes=causes,
        symptoms=shown_symptoms(verdict),
        left_out=left_out(verdict),
        considered=[
            {"title": describe(one), "decision": fate(one), "signs": list(signs_of(one))}
            for one in verdict.considered
        ],
        has_letters=any(one.finding.pattern is not None for one in causes),
        pictures=[shown for name in NAMES if (shown := _shown(name, material)) is not None],
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
    """One picture; if it fails, what says so in its place."""
    try:
        picture: Picture | None = import_module(f"eroica.views.pictures.{name}").draw(material)
    except Exception as error:
        log.exception("the picture %s could not be drawn", name)
        return _failed(name, error)
    return picture


def _failed(name: str, error: Exception) -> Picture:
    why = f"This picture could not be drawn: {type(error).__name__}. Everything else on the page is unaffected."
    return Picture(id=name, title=TITLES[name], missing=why)


def _shown(name: str, material: Material) -> _Shown | None:
    """A picture; where there are no patterns at all, none that would only say so."""
    picture = draw_picture(name, material)
    if picture is None or (picture.missing and not material.patterns):
        return None
    try:
        return _ready(name, picture)
    except (TypeError, ValueError) as error:  # a number that is none, for which JSON has no word
        log.exception("the data of the picture %s are no JSON", name)
        return _ready(name, _failed(name, error))


def _ready(name: str, picture: Picture) -> _Shown:
    return _Shown(
        id=picture.id,
        nav=TITLES[name],
        title=picture.title,
        body=picture.body,
        reads=picture.reads,
        facts=picture.facts,
        missing=picture.missing,
        data=None if picture.data is None else as_script(picture.data),
    )


def as_script(data: object) -> Markup:
    """JSON that can stand in a script element: ASCII only, and no "<" that could end it."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _prose(text: str) -> str:
    """A sentence in which no number is parted from its unit at the end of a line."""
    return _UNIT.sub("\u00a0", sentence(text))


def _frame(text: str) -> Markup:
    """A frame of a stack, which may be broken behind slashes."""
    return Markup("/<wbr>").join(text.split("/"))


def _policy(css: str, script: str) -> str:
    """Nothing may be loaded, and only this style and this script count."""
    return (
        f"default-src 'none'; style-src '{_hash(css)}'; script-src '{_hash(script)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


@cache
def _together(kind: str) -> str:
    """Colors, the page's own file and those of the pictures that have one, in the order of the page."""
    room = files("eroica.views") / "web"
    found = [room / f"{name}.{kind}" for name in ("palette", "report", *NAMES)]
    return "\n".join(file.read_text(encoding="utf-8") for file in found if file.is_file())


@cache
def _environment() -> Environment:
    """Templates from the package; what is no Markup is escaped."""
    room = files("eroica.views") / "web"
    environment = Environment(
        loader=FunctionLoader(lambda name: (room / name).read_text(encoding="utf-8")),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(clean=clean, percent=percent, sentence=sentence, prose=_prose, frame=_frame)
    return environment
