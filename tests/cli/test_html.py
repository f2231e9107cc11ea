"""Pages from the command line and from a notebook."""

import pytest
from click.testing import CliRunner

import eroica
from eroica.archive.store import Store
from eroica.cli import group
from eroica.errors import UsageError
from eroica.pipeline import analyze
from eroica.settings import Settings
from support.fleet import FleetPlan, synthesize, synthesize_window
from support.run_directories import save_patterns
from support.troubles import SlowLoader


@pytest.fixture(scope="module")
def run_directory(tmp_path_factory):
    patterns = synthesize(FleetPlan(workers=4, iterations=30, seed=1), [SlowLoader(workers=(2,), ms=40)])
    window = synthesize_window(patterns)
    store = Store(tmp_path_factory.mktemp("eroica") / "run")
    verdict = analyze("job", window, patterns, settings=Settings())
    save_patterns(store.window_directory(1), window, patterns)
    store.save_verdict(1, verdict)
    store.save_final(verdict)
    return store.run


@pytest.mark.parametrize("more", [(), ("--window", "1"), ("--again",)])
def test_report_writes_a_page(run_directory, tmp_path, more):
    file = tmp_path / "page.html"
    done = CliRunner().invoke(group, ["report", str(run_directory), "--html", str(file), *more])
    assert done.exit_code == 3, done.output
    text = file.read_text()
    assert text.startswith("<!DOCTYPE html>")
    assert 'id="heatmap"' in text
    assert f"Report: {file.as_uri()}" in done.output.replace("\n", "")


def test_a_printed_page_stands_alone(run_directory):
    done = CliRunner().invoke(group, ["report", str(run_directory), "--html", "-"])
    assert done.output.startswith("<!DOCTYPE html>")
    both = CliRunner().invoke(group, ["report", str(run_directory), "--html", "-", "--json", "-"])
    assert isinstance(both.exception, UsageError)


def test_diagnose_writes_a_page(run_directory, tmp_path):
    file = tmp_path / "page.html"
    done = CliRunner().invoke(group, ["diagnose", str(run_directory), "--quiet", "--html", str(file)])
    assert done.exit_code == 3, done.output
    assert 'id="heatmap"' in file.read_text()


def test_a_notebook_gets_the_page_as_text(run_directory):
    for source in (run_directory, str(run_directory / "verdict.json"), eroica.diagnose(run_directory)):
        text = eroica.report_html(source)
        assert "_read_block" in text
        assert ('id="heatmap"' in text) == (source == run_directory)
