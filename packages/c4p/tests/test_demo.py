"""`c4p demo`: its table, on made-up runs and, with root, on a short real one."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from c4p import demo, testbed
from c4p.cli import main
from c4p.errors import C4PError
from c4p.measure import JobResult, JobSpec, run_jobs

PACKAGE = Path(__file__).resolve().parents[1]


class Bed:
    """Nothing to cut."""

    def __init__(self) -> None:
        self.cuts: list[tuple[str, str]] = []
        self.routers = {"spine1": "s1", "spine2": "s2"}

    def cut(self, source: str, target: str) -> None:
        self.cuts.append((source, target))


def test_the_table_shows_the_runs_and_the_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    bed = Bed()

    @contextlib.contextmanager
    def build(shape: object) -> Iterator[Bed]:
        yield bed

    def run_jobs(_: Bed, specs: Sequence[JobSpec], during: Callable[[], None] | None = None) -> list[JobResult]:
        [spec] = specs
        rate = 400.0 if spec.ports == "random" else 760.0
        event = {"path": ["s1"], "to_path": ["s2"], "time": time.time() + 0.25, "what": "left", "why": "dead"}
        if during is not None:
            during()
        now = time.time()
        operations = [{"end": now + k, "took_s": 1.0, "busbw_mbit": rate, "right": True} for k in (-1, 0.5)]
        return [JobResult(operations, [{"events": [event]}, {"events": []}], True)]

    monkeypatch.setattr(demo, "build", build)
    monkeypatch.setattr(demo, "run_jobs", run_jobs)
    monkeypatch.setattr(demo, "CUT_AFTER_S", 0.0)
    done = CliRunner().invoke(main, ["demo", "--draws", "2"])
    assert done.exit_code == 0, done.output
    lines = [line.split() for line in done.output.splitlines()]
    assert [line[:3] for line in lines if line[:1] == ["random"]] == [["random", "1", "400"], ["random", "2", "400"]]
    assert ["planned", "760", "█" * 38] in lines
    assert "planned / random: 1.90; planned is 95% of the paths' sum" in done.output
    assert "rank 0: leaves the path over spine1 for spine2: nothing comes through" in done.output
    assert "every sum was right: yes" in done.output
    assert bed.cuts == [("spine1", "host1")]


def test_make_demo_runs_the_command() -> None:
    argv = ["make", "-n", "--no-print-directory", "-C", str(PACKAGE), "demo"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.splitlines()[-1].endswith("/c4p demo")


MEMBER = """
import sys
sys.stderr.write("UserWarning: this is no JSON")
print('{"right": true, "took_s": 1, "busbw_mbit": 3, "end": 1}', '{"paths": []}', sep=chr(10), flush=True)
"""


class LocalBed:
    """Members are a program on this host."""

    addresses = ("127.0.0.1", "127.0.0.1")

    def __init__(self, program: str) -> None:
        self.program = program

    def start(self, _host: int, _argv: Sequence[str], **options) -> subprocess.Popen[str]:
        return subprocess.Popen([sys.executable, "-c", self.program], text=True, **options)


def test_a_members_warning_is_no_result_and_its_error_is_shown() -> None:
    (job,) = run_jobs(LocalBed(MEMBER), [JobSpec((0, 1))])  # type: ignore[arg-type]
    assert job.right and job.members == [{"paths": []}] * 2 and job.busbw_mbit() == 3
    with pytest.raises(C4PError, match=r"ended with 3: .*no JSON"):
        run_jobs(LocalBed(MEMBER + "sys.exit(3)"), [JobSpec((0, 1))])  # type: ignore[arg-type]


@pytest.mark.root
@pytest.mark.skipif(bool(testbed.why_not()), reason=testbed.why_not() or "-")
def test_a_short_demo_runs_on_real_namespaces() -> None:
    argv = ["demo", "--seconds", "0.3", "--draws", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "c4p.cli", *argv], capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "planned / random:" in done.stdout
    assert "every sum was right: yes" in done.stdout
