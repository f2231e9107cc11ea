"""The report: what it says, that names are inert, and that it needs nothing but itself."""

import base64
import hashlib
import json
import re

import msgspec
import pytest
from drawn import read, texts

from eroica.archive.store import Store
from eroica.diagnosis.blocked import diagnose_blockage
from eroica.errors import InputError
from eroica.model.history import IterationHistory, Mark
from eroica.pipeline import analyze
from eroica.settings import Settings
from eroica.views import page as page_module
from eroica.views.material import Material, gather
from eroica.views.page import PICTURES, build_page, build_report, write_report
from support.cases import robotics
from support.fleet import FleetPlan, synthesize, synthesize_window
from support.run_directories import save_patterns
from support.troubles import SlowLoader
from support.verdicts import plain

HOSTILE = [
    '<script>document.title="owned"</script>',
    "</script><img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "'; alert(1); //",
    "\u202egnp.exe\u2066",
    "\ud800lone",
    "x" * 10_000,
    "{{ 7*7 }}{% raw %}",
]


def all_of(page, tag):
    return [one.attributes for one in page if one.name == tag]


def said(page, tag):
    return "".join("".join(one.text) for one in page if one.name == tag)


@pytest.fixture(scope="module")
def slow():
    patterns = synthesize(FleetPlan(workers=8, iterations=30, seed=1), [SlowLoader(workers=(3,), ms=40)])
    window = synthesize_window(patterns)
    return Material(
        verdict=analyze("job", window, patterns, settings=Settings()),
        window=window,
        patterns=patterns,
        name="run",
        window_id=1,
        history=IterationHistory(
            job="job",
            began=1e9,
            at_s=(10.0, 20.0, 30.0, 40.0),
            iteration=(100, 200, 300, 400),
            mean_ms=(60.0, 61.0, 90.0, 99.0),
            slowest_ms=(61.0, 62.0, 93.0, 99.5),
            slowest_worker=(0, 1, 3, 3),
            marks=(
                Mark(kind="trigger", at_s=25.0, iteration=250, text="40 % above the best"),
                Mark(kind="window", at_s=30.0, until_s=34.0, iteration=300, last_iteration=330, window_id=1),
            ),
        ),
    )


@pytest.fixture(scope="module")
def hostile(slow):
    """The same with hostile names wherever a job can put any."""

    def bad(at):
        return HOSTILE[at % len(HOSTILE)]

    patterns = [
        msgspec.structs.replace(
            pattern,
            worker=msgspec.structs.replace(pattern.worker, host=bad(at)),
            functions=tuple(
                msgspec.structs.replace(
                    row, key=msgspec.structs.replace(row.key, name=bad(number), stack=(bad(number),))
                )
                for number, row in enumerate(pattern.functions)
            ),
        )
        for at, pattern in enumerate(slow.patterns)
    ]
    finding = msgspec.structs.replace(
        slow.verdict.findings[0],
        cause=bad(0),
        function=msgspec.structs.replace(slow.verdict.findings[0].function, name=bad(0), stack=tuple(HOSTILE)),
        hosts=tuple(HOSTILE),
        evidence=tuple(HOSTILE),
        next_step=bad(1),
    )
    verdict = msgspec.structs.replace(
        slow.verdict,
        job=bad(1),
        summary=" ".join(HOSTILE[:4]),
        findings=(finding, *slow.verdict.findings[1:]),
        coverage=msgspec.structs.replace(slow.verdict.coverage, notes=tuple(HOSTILE)),
    )
    marks = tuple(msgspec.structs.replace(mark, text=bad(at)) for at, mark in enumerate(slow.history.marks))
    history = msgspec.structs.replace(slow.history, marks=marks)
    return Material(verdict=verdict, patterns=patterns, history=history, name=bad(0), notes=tuple(HOSTILE), window_id=1)


def test_the_page_says_word_sentence_gain_confidence_and_what_it_is_about(slow):
    text = build_page(slow)
    page = read(text)
    cause = slow.verdict.cause
    assert "_read_block" in said(page, "h1") and [one["lang"] for one in all_of(page, "html")] == ["en"]
    for words in (
        "SLOW",
        f"{100 * cause.confidence:.0f} %",
        f"{100 * cause.gain:.0f} % shorter",
        "worker 3",
        "2001-09-09 01:47 UTC",
    ):
        assert words in text.replace("\xa0", " "), words


def test_nothing_is_loaded_and_only_hashed_style_and_script_count(slow):
    text = build_page(slow)
    page = read(text)
    policy = next(a["content"] for a in all_of(page, "meta") if a.get("http-equiv") == "Content-Security-Policy")
    style = re.search(r"<style>(.*?)</style>", text, re.S)[1]
    script = re.search(r"<script>(.*?)</script>", text, re.S)[1]
    for inside, kind in ((style, "style"), (script, "script")):
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")
    for tag, attributes, _ in page:
        assert not [name for name in attributes if name == "style" or name.startswith("on")], tag
        for name in ("src", "href", "xlink:href", "action", "data"):
            assert (attributes.get(name) or "#").startswith(("#", "data:")), (tag, attributes)
    assert "url(" not in style.replace("url(data:", "")
    assert "@import" not in style


def test_hostile_names_stay_text(hostile):
    text = build_report(hostile).decode()
    page = read(text)
    assert len([one for one in all_of(page, "script") if one.get("type") != "application/json"]) == 1
    assert not all_of(page, "img")
    assert not [name for one in page for name in one.attributes if name.startswith("on")]
    assert "49" not in said(page, "h1")
    for sign in ("\u202e", "\u2066", "\ud800", "x" * 700):
        assert sign not in text
    assert "alert(1)" in said(page, "li")  # it is shown, not swallowed


def test_data_blocks_are_json(slow, hostile):
    for material in (slow, hostile):
        blocks = re.findall(
            r'<script type="application/json" id="data-([a-z-]+)">(.*?)</script>', build_page(material), re.S
        )
        assert {name for name, _ in blocks} <= set(PICTURES)
        assert all(json.loads(text) for _, text in blocks)


def test_a_verdict_alone_makes_a_page_without_empty_places():
    verdict = plain("healthy", "Healthy: nothing ever looked wrong.")
    page = read(build_page(Material(verdict=verdict)))
    assert [one["id"] for one in all_of(page, "section")] == ["verdict", "coverage"]
    assert "Nothing ever looked wrong." in said(page, "h1")


def test_a_job_that_stands_still_shows_who_is_where():
    blockage = robotics()
    verdict = diagnose_blockage(blockage, "robotics", Settings())
    page = read(build_page(Material(verdict=verdict, blockage=blockage)))
    assert [one["id"] for one in all_of(page, "section")] == ["verdict", "findings", "why", "stuck", "coverage"]
    assert "workers 0–76, 78–127" in said(page, "b")
    assert len([one for one in all_of(page, "b") if one.get("class") == "named"]) == 1


def test_a_picture_that_fails_costs_only_itself(slow, monkeypatch, caplog):
    def fail(material):
        raise ZeroDivisionError("<b>secret</b>")

    monkeypatch.setitem(PICTURES, "iterations", ("Iterations", fail))
    text = build_page(slow)
    assert "This picture could not be drawn: ZeroDivisionError" in text
    assert "secret" not in text
    assert "Coverage and cost" in text


def test_iteration_times_carry_trigger_and_window(slow):
    picture = page_module.draw_picture("iterations", slow)
    page = read(picture.body)
    bands = [one for one in all_of(page, "rect") if one.get("class") == "band-window"]
    assert len(bands) == 2  # the drawing and the legend
    assert float(bands[0]["width"]) == pytest.approx(4 / 40 * (960 - 62 - 28), rel=0.01)
    assert {"trigger", "window 1"} <= set(texts(picture.body))
    assert ("25 s", "trigger", "40 % above the best") in picture.facts.rows


def test_without_history_the_windows_own_iterations_are_drawn(slow):
    picture = page_module.draw_picture("iterations", Material(verdict=slow.verdict, patterns=slow.patterns))
    assert picture.title == "Iteration times in the window"
    assert len(picture.facts.rows) == 30


def test_what_lies_on_disk_is_gathered(tmp_path, slow):
    store = Store(tmp_path / "run")
    save_patterns(store.window_directory(1), slow.window, slow.patterns)
    with pytest.raises(InputError, match="holds no verdict"):
        gather(tmp_path / "run")
    store.save_verdict(1, slow.verdict)
    store.save_final(slow.verdict)
    store.save_history(slow.history)
    for place in (tmp_path / "run", store.window_directory(1)):
        found = gather(place)
        assert (found.verdict, found.history) == (slow.verdict, slow.history)
        assert [one.worker.global_rank for one in found.patterns] == list(range(8))
        assert (found.name, found.window_id) == ("run", 1)
    write_report(tmp_path / "run", tmp_path / "page.html")
    assert (tmp_path / "page.html").read_bytes() == build_report(gather(tmp_path / "run"))
