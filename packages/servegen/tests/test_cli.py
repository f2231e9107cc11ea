from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from conftest import DATA
from servegen.cli import main
from servegen.export import read_requests


def run(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(main, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_show_prints_and_draws(work: Path) -> None:
    output = run("show", "sample", "--html", "show.html")
    assert "40 clients, 24 hours" in output
    assert "▁" in output or "▃" in output
    assert "Client skew" in (work / "show.html").read_text()


def test_a_run_is_repeated_by_its_workload_file(work: Path) -> None:
    run("generate", "sample", "--rate", 5, "--hours", 0.5, "--seed", 1, "-o", "w.parquet", "--html", "w.html")
    run("generate", "w.parquet.workload.yaml", "-o", "again.parquet")
    assert Path("w.parquet").read_bytes() == Path("again.parquet").read_bytes()
    assert "Dispersion of counts" in Path("w.html").read_text()
    run("generate", "w.parquet.workload.yaml", "-o", "w.jsonl")
    assert read_requests(Path("w.jsonl")).num_rows == read_requests(Path("w.parquet")).num_rows


def test_options_reach_the_workload(work: Path) -> None:
    Path("rate.csv").write_text("second,rate\n0,2\n600,4\n")
    run("generate", "sample", "--rate", "rate.csv", "--hours", 0.4, "-o", "w.jsonl", "--counts", "exact",
        "--coupling", "rank:0.5",
        "--sessions", '{"share": 0.3}', "--only-client", "client-00")  # fmt: skip
    stated = Path("w.jsonl.workload.yaml").read_text()
    for text in ("counts: exact", "coupling: rank:0.5", "share: 0.3", "- client-00", "- 600.0", "pool_digest"):
        assert text in stated
    assert set(read_requests(Path("w.jsonl"))["client"].to_pylist()) == {"client-00"}


def test_fit_and_compare_work_on_what_generate_wrote(work: Path) -> None:
    run("generate", "sample", "--hours", 1, "--start-hour", 12, "-o", "monday.jsonl")
    run("generate", "sample", "--hours", 1, "--start-hour", 12, "--seed", 1, "-o", "tuesday.jsonl")
    output = run("fit", "monday.jsonl", "-o", "mine", "--html", "fit.html")
    assert "Gamma (likelihood ratio)" in output
    assert "Demand as usual" in run("compare", "tuesday.jsonl", "mine", "--json", "c.json", "--html", "c.html")
    assert json.loads(Path("c.json").read_text())["verdict"] == "demand as usual"
    lines = Path("tuesday.jsonl").read_text().splitlines()
    changed = [json.loads(line) for line in lines]
    for row in changed:
        row["output_tokens"] *= 3 if row["client"] == "client-01" else 1
    Path("changed.jsonl").write_text("\n".join(map(json.dumps, changed)))
    assert "client client-01: output_tokens" in run("compare", "changed.jsonl", "mine")


def test_filter_and_size(work: Path) -> None:
    run("filter", "sample", "-o", "big", "--share", 0.05)
    output = run(
        "size",
        "big",
        "--hours",
        0.1,
        "--rate",
        10,
        "--seeds",
        2,
        "--workers",
        1,
        "--json",
        "s.json",
        "--html",
        "s.html",
    )
    assert "not calibrated" in output
    sizing = json.loads(Path("s.json").read_text())
    assert set(sizing["generators"]) == {"servegen", "poisson", "gamma"}


def test_import_reads_the_published_layout(work: Path) -> None:
    Path("m").mkdir()
    Path("m/chunk-0-trace.csv").write_text("0,2.5,1.4,Gamma,0.51,0.78\n")
    Path("m/chunk-0-dataset.json").write_text('{"0": {"input_tokens": "{3: 1.0}", "output_tokens": "{7: 1.0}"}}')
    run("import", "m", "-o", "pool")
    run("generate", "pool", "--hours", 0.1, "-o", "w.parquet")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("show", "nothing"), "no such file"),
        (("generate", "sample", "--rate", "-3", "-o", "w"), "not a positive number"),
        (("generate", "sample", "--rate", "x", "-o", "w"), "neither a number nor a file"),
        (("generate", "sample", "--hours", "48", "-o", "w"), "--repeat"),
        (("generate", "sample", "--hours", "-1", "-o", "w"), "out of range"),
        (("generate", "sample", "--sessions", '{"share": 2}', "-o", "w"), "out of range"),
        (("generate", "sample", "--coupling", "tight", "-o", "w"), "use independent, comonotone or rank:RHO"),
        (("generate", "missing.yaml", "-o", "w"), "cannot be read"),
        (("fit", "missing.csv", "-o", "p"), "No such file"),
        (("replay", "missing.jsonl", "--url", "http://127.0.0.1:9", "--model", "m"), "cannot be read"),
    ],
)
def test_a_mistake_is_one_line_and_no_traceback(arguments: tuple[str, ...], message: str, work: Path) -> None:
    output = run(*arguments, code=1)
    assert output.startswith("Error: ")
    assert message in output
    assert len(output.strip().splitlines()) == 1


def test_the_command_is_installed_and_starts_quickly_without_heavy_imports() -> None:
    heavy = ("torch", "matplotlib", "aiohttp", "scipy.optimize")
    code = f"import sys, servegen.cli; print([m for m in {heavy} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    assert found.stdout.strip() == "[]"


def test_published_pools_are_shown(work: Path) -> None:
    if not DATA.is_dir():
        pytest.skip("the published pools are not on this machine")
    assert "37%" in run("show", DATA / "language-m-large") or "38%" in run("show", DATA / "language-m-large")
