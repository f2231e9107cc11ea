"""The report: what it says, that names are inert, and that it needs nothing but itself."""

import base64
import dataclasses
import hashlib
import json
import re
from html.parser import HTMLParser
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from eroica.archive.store import Store, save_patterns
from eroica.diagnosis.blocked import diagnose_blockage
from eroica.errors import InputError
from eroica.model.history import IterationHistory, Mark
from eroica.model.series import encode_series
from eroica.model.verdict import Coverage, IterationTimes, Verdict
from eroica.pipeline import analyze
from eroica.report.numbers import number_rows
from eroica.settings import Settings
from eroica.views import page as page_module
from eroica.views.course import of_window
from eroica.views.glance import happened
from eroica.views.material import Material, gather
from eroica.views.page import as_script, build_page
from eroica.views.pictures import NAMES, cloud
from eroica.views.write import build_report, write_report
from support.cases import robotics
from support.fleet import FleetPlan, synthesize, synthesize_window
from support.troubles import SlowLoader

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


VOID = frozenset({"meta", "link", "br", "wbr", "img", "input", "hr"})


class Page(HTMLParser):
    """Elements with their attributes, text by element, and what is left open."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.open, self.texts, self.strays = [], [], {}, []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if self.open and self.open[-1] == tag:
            self.open.pop()
        else:
            self.strays.append(tag)

    def handle_data(self, data):
        if self.open:
            self.texts.setdefault(self.open[-1], []).append(data)

    def all(self, tag):
        return [attrs for name, attrs in self.elements if name == tag]


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


def alone(**changes):
    basis = {
        "eroica_version": "0.1.0",
        "job": "quick",
        "verdict": "healthy",
        "summary": "Healthy: nothing ever looked wrong.",
        "window": None,
        "iteration": IterationTimes(),
        "coverage": Coverage(workers_expected=4, workers_reported=4),
    }
    return Verdict(**{**basis, **changes})


def test_the_page_says_word_sentence_gain_confidence_and_what_it_is_about(slow):
    text = build_page(slow)
    page = Page(text)
    flat = text.replace("\xa0", " ")
    assert "SLOW" in flat
    assert "_read_block" in "".join(page.texts["h1"])
    cause = slow.verdict.cause
    for said in (
        f"{100 * cause.confidence:.0f} %",
        f"{100 * cause.gain:.0f} % shorter",
        "worker 3",
        "2001-09-09 01:47 UTC",
    ):
        assert said in flat, said
    assert [attrs["lang"] for attrs in page.all("html")] == ["en"]


def test_headings_go_down_one_level_at_a_time_and_ids_are_unique(slow):
    page = Page(build_page(slow))
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(later <= earlier + 1 for earlier, later in pairwise(levels))
    ids = [attrs["id"] for _, attrs in page.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    targets = [attrs["href"][1:] for attrs in page.all("a") if attrs["href"].startswith("#")]
    assert set(targets) <= set(ids)


def test_nothing_is_loaded_and_only_hashed_style_and_script_count(slow):
    text = build_page(slow)
    page = Page(text)
    policy = next(a["content"] for a in page.all("meta") if a.get("http-equiv") == "Content-Security-Policy")
    style = re.search(r"<style>(.*?)</style>", text, re.S)[1]
    script = re.search(r"<script>(.*?)</script>", text, re.S)[1]
    for inside, kind in ((style, "style"), (script, "script")):
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")
    for tag, attrs in page.elements:
        assert "style" not in attrs, tag
        assert not [name for name in attrs if name.startswith("on")], tag
        for name in ("src", "href", "xlink:href", "action", "data"):
            assert (attrs.get(name) or "#").startswith(("#", "data:")), (tag, attrs)
    assert "url(" not in style.replace("url(data:", "")
    assert "@import" not in style


def test_hostile_names_stay_text(hostile):
    text = build_report(hostile).decode()
    page = Page(text)
    assert not page.strays
    assert not page.open
    scripts = page.all("script")
    assert len([one for one in scripts if one.get("type") != "application/json"]) == 1
    assert not page.all("img")
    for _, attrs in page.elements:
        assert not [name for name in attrs if name.startswith("on")]
    assert "49" not in "".join(page.texts["h1"])
    for sign in ("\u202e", "\u2066", "\ud800", "x" * 700):
        assert sign not in text
    assert "alert(1)" in "".join(page.texts["li"])  # it is shown, not swallowed


def test_data_for_the_script_cannot_end_its_element():
    made = as_script({"name": "</script><!--", "lone": "\ud800", "line": "\u2028"})
    assert "<" not in made
    assert made.isascii()
    assert json.loads(made)["name"] == "</script><!--"


def test_data_blocks_are_json(slow, hostile):
    for material in (slow, hostile):
        blocks = re.findall(
            r'<script type="application/json" id="data-([a-z-]+)">(.*?)</script>', build_page(material), re.S
        )
        assert {name for name, _ in blocks} <= set(NAMES)
        assert all(json.loads(text) for _, text in blocks)


@pytest.mark.parametrize("word", ["slow", "blocked", "healthy", "undetermined"])
def test_every_word_has_a_shape_of_its_own(word):
    page = Page(build_page(Material(verdict=alone(verdict=word))))
    shapes = [attrs["d"] for attrs in page.all("path") if attrs.get("class") == "mark"]
    others = [
        attrs["d"]
        for other in {"slow", "blocked", "healthy", "undetermined"} - {word}
        for attrs in Page(build_page(Material(verdict=alone(verdict=other)))).all("path")
    ]
    assert len(shapes) == 1
    assert shapes[0] not in others


def test_a_verdict_alone_makes_a_page_without_empty_places():
    page = Page(build_page(Material(verdict=alone())))
    sections = [attrs["id"] for attrs in page.all("section")]
    assert sections == ["verdict", "coverage"]
    assert "Nothing ever looked wrong." in "".join(page.texts["h1"])


def test_a_job_that_stands_still_shows_who_is_where():
    blockage = robotics()
    verdict = diagnose_blockage(blockage, "robotics", Settings())
    text = build_page(Material(verdict=verdict, blockage=blockage))
    page = Page(text)
    assert [attrs["id"] for attrs in page.all("section")] == ["verdict", "findings", "why", "stuck", "coverage"]
    assert "workers 0–76, 78–127" in "".join(page.texts["b"])
    named = [attrs for tag, attrs in page.elements if tag == "b" and attrs.get("class") == "named"]
    assert len(named) == 1


def test_a_picture_that_fails_costs_only_itself(slow, monkeypatch, caplog):
    from eroica.views.pictures import coverage, iterations

    def fail(material):
        raise ZeroDivisionError("<b>secret</b>")

    monkeypatch.setattr(iterations, "draw", fail)
    text = build_page(slow)
    assert "This picture could not be drawn: ZeroDivisionError" in text
    assert "secret" not in text
    assert coverage.draw(slow).title in text


def test_data_that_json_has_no_word_for_costs_only_their_picture(slow, monkeypatch, caplog):
    from eroica.views.pictures import heatmap

    whole = heatmap.draw(slow)
    broken = dataclasses.replace(whole, data={**whole.data, "top": float("nan")})
    monkeypatch.setattr(heatmap, "draw", lambda material: broken)
    text = build_page(slow)
    assert "This picture could not be drawn: ValueError" in text
    assert 'id="data-flames"' in text and 'id="data-heatmap"' not in text


def test_what_came_before_is_not_called_the_best(slow):
    """The healthy window was measured while Eroica looked: the job may well have been quicker since."""
    times = IterationTimes(baseline_ms=196.0, current_ms=152.0)
    verdict = msgspec.structs.replace(slow.verdict, iteration=times)
    text = build_page(dataclasses.replace(slow, verdict=verdict))
    assert "<dt>before</dt>" in text and "before, 196 ms" in text
    assert "at best" not in text and "best before" not in text


def test_when_is_only_told_where_it_is_known(slow):
    assert happened(slow) == "2001-09-09 01:47 UTC"
    assert happened(dataclasses.replace(slow, window_id=7)) == ""
    assert happened(dataclasses.replace(slow, window_id=0)) == ""


def test_everything_expected_is_nothing_worth_saying(slow):
    finding = slow.verdict.findings[0]
    pattern = msgspec.structs.replace(finding.pattern, expected={"beta": (0.0, 1.0)})
    assert next(number_rows(msgspec.structs.replace(finding, pattern=pattern))).expected == ""


def test_files_of_the_pages_are_packed_with_the_code():
    """The wheel takes what lies in the package and is not ignored by git."""
    room = files("eroica.views")
    kinds = {path.name.rpartition(".")[2] for folder in ("web", "live") for path in (room / folder).iterdir()}
    assert {"css", "js", "html", "jinja"} <= kinds
    root = Path(__file__).parents[2]
    rules = (root / ".gitignore").read_text(encoding="utf-8").split()
    assert not [rule for rule in rules if rule.rstrip("/").endswith(("web", "live", ".css", ".js", ".html", ".jinja"))]
    project = (root / "pyproject.toml").read_text(encoding="utf-8")
    assert (
        'packages = ["src/eroica"]' in project
        and "exclude" not in project.split("hatch.build")[1].split("[tool.pytest")[0]
    )


def test_iteration_times_carry_trigger_and_window(slow):
    picture = page_module.draw_picture("iterations", slow)
    page = Page(str(picture.body))
    bands = [attrs for attrs in page.all("rect") if attrs.get("class") == "band-window"]
    assert len(bands) == 3  # a wide and a narrow drawing, and the legend
    assert float(bands[0]["width"]) == pytest.approx(4 / 40 * (960 - 62 - 28), rel=0.01)
    assert {"trigger", "window 1"} <= set(page.texts["text"])
    assert ("25 s", "trigger", "40 % above the best") in picture.facts.rows


def test_without_history_the_windows_own_iterations_are_drawn(slow):
    picture = page_module.draw_picture("iterations", Material(verdict=slow.verdict, patterns=slow.patterns))
    assert picture.title == "Iteration times in the window"
    assert len(picture.facts.rows) == 30


def test_a_worker_that_captured_less_does_not_shift_the_names_of_others(slow):
    patterns = list(slow.patterns)
    patterns[0] = msgspec.structs.replace(patterns[0], iteration_us=encode_series(np.ones(3, dtype=np.float32)))
    long = np.full(30, 60_000, dtype=np.float32)
    rest = [msgspec.structs.replace(one, iteration_us=encode_series(long)) for one in patterns[1:]]
    rest[4] = msgspec.structs.replace(rest[4], iteration_us=encode_series(long * 2))
    course = of_window(Material(verdict=slow.verdict, patterns=(patterns[0], *rest)))
    assert all(note.endswith("on worker 5") for note in course.notes)


def test_names_of_culprits_move_only_where_they_would_lie_on_each_other():
    def heights(places):
        panel = SimpleNamespace(named=np.array([True, True]), ranks=np.array([4, 9]), resource="cpu")
        made = cloud._names(panel, np.array(places), np.array([100.0, 100.0]), 960.0, Material(verdict=alone()))
        return re.findall(r' y="([\d.]+)"', "".join(made))

    assert heights([100.0, 500.0]) == ["104", "104"]
    assert heights([100.0, 110.0]) == ["104", "118"]


def test_the_cloud_names_culprits_and_shows_everybody(slow):
    page = Page(str(page_module.draw_picture("cloud", slow).body))
    culprits = [attrs for attrs in page.all("path") if attrs.get("class") == "culprit"]
    peers = [attrs for attrs in page.all("circle") if attrs.get("class") == "peer"]
    assert len(culprits) == 2 * 1 + 1  # wide, narrow, legend
    assert len(peers) == 2 * 7 + 1
    assert any(text.startswith("worker 3 on node-0: β ") for text in page.texts["title"])


def test_a_thousand_peers_become_discs_and_culprits_stay_apart(slow):
    many = [
        msgspec.structs.replace(
            slow.patterns[rank % 8 if rank % 8 != 3 or rank < 8 else 4],
            worker=msgspec.structs.replace(slow.patterns[0].worker, global_rank=rank),
        )
        for rank in range(1000)
    ]
    body = str(page_module.draw_picture("cloud", Material(verdict=slow.verdict, patterns=many)).body)
    page = Page(body)
    told = "".join(page.texts["title"])
    assert "workers, among them" in told
    assert len(page.all("circle")) < 200
    assert len([attrs for attrs in page.all("path") if attrs.get("class") == "culprit"]) == 3


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


def test_a_damaged_pattern_costs_only_itself(tmp_path, slow):
    store = Store(tmp_path / "run")
    save_patterns(store.window_directory(1), slow.window, slow.patterns)
    store.save_verdict(1, slow.verdict)
    (store.window_directory(1) / "patterns" / "5.pattern").write_bytes(b"no pattern")
    found = gather(tmp_path / "run")
    assert len(found.patterns) == 7
    assert "1 pattern was left out" in build_page(found)


def test_functions_of_a_finding_are_those_with_its_numbers(slow):
    """What a loader's process does is never critical; the wait for its batch is, and has the finding's β."""
    cause = slow.verdict.cause
    columns = slow.functions_of(cause)
    beta, _ = slow.rows.joined(columns)
    assert beta[3] == pytest.approx(cause.pattern.beta, rel=0.02)
    assert slow.culprit_and_peer()[0] == 3
    assert slow.peer_of(3) in range(8)
