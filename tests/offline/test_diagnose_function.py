"""`eroica.diagnose`: the library's door."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from written_traces import START_US, write

from eroica.errors import InputError, UsageError
from eroica.offline import diagnose, diagnose_all

HOUR_US = 3.6e9


@pytest.fixture(autouse=True)
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EROICA_READERS", "1")


def test_a_single_path_a_list_and_a_pattern_mean_the_same(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.json", rank=None, load_us=60_000.0)
    verdicts = [diagnose(given) for given in (path, str(path), [path], tmp_path, str(tmp_path / "*.json"))]
    assert {verdict.summary for verdict in verdicts} == {verdicts[0].summary}
    assert verdicts[0].cause is not None and verdicts[0].cause.cause == "slow-data-loading"
    assert "trace.json does not say its rank; it counts as worker 0" in verdicts[0].coverage.notes
    assert verdicts[0].window is not None and verdicts[0].window.kind == "trace"
    assert verdicts[0].job == tmp_path.name


def test_the_greatest_cause_is_the_verdict_and_names_the_others(tmp_path: Path) -> None:
    write(tmp_path / "good" / "rank0.json", rank=0)
    write(tmp_path / "bad" / "rank0.json", rank=0, load_us=60_000.0)
    write(tmp_path / "worse" / "rank0.json", rank=0, load_us=80_000.0, start_us=START_US + HOUR_US)
    verdicts = diagnose_all(tmp_path)
    assert [verdict.job for verdict in verdicts] == ["worse", "bad", "good"]
    verdict = diagnose(tmp_path)
    assert verdict.job == "worse"
    also = [note for note in verdict.coverage.notes if note.startswith("also here: ")]
    assert [note.split(",")[0] for note in also] == ["also here: bad", "also here: good"]
    assert verdict.coverage.notes[-2:] == tuple(also)


def test_ranks_that_nobody_knows_are_asked_for_and_may_be_given(tmp_path: Path) -> None:
    for gpu in range(3):
        write(tmp_path / f"gpu{gpu}.json", rank=None, pid=100 + gpu)
    with pytest.raises(UsageError, match=r"gpu0.json, gpu1.json, gpu2.json: .*--rank-regex 'gpu\(\\d\+\)'"):
        diagnose(tmp_path)
    assert diagnose(tmp_path, rank_regex=r"gpu(\d)").coverage.workers_reported == 3


def test_a_file_that_cannot_be_read_costs_itself_and_is_named(tmp_path: Path) -> None:
    write(tmp_path / "rank0.json", rank=0)
    (tmp_path / "rank1.pt.trace.json").write_bytes(b"{")
    notes = diagnose(tmp_path).coverage.notes
    assert any("rank1.pt.trace.json" in note for note in notes)


def test_names_that_are_no_text_do_not_keep_a_verdict_from_being_written(tmp_path: Path) -> None:
    write(tmp_path / "odd\udcff" / "rank0\udcff.json", rank=None)
    (tmp_path / "odd\udcff" / "rank1\udcff.pt.trace.json").touch()
    assert b"rank1" in diagnose(tmp_path).to_json()


def test_nothing_but_damage_is_one_clear_error(tmp_path: Path) -> None:
    for rank in range(5):
        (tmp_path / f"rank{rank}.pt.trace.json").touch()
    with pytest.raises(InputError, match=r"nothing here can be used: .*; and 2 more"):
        diagnose(tmp_path)
    with pytest.raises(InputError, match=r"rank0.pt.trace.json"):
        diagnose(tmp_path / "rank0.pt.trace.json")


def test_a_script_without_a_main_guard_may_read_many_files(tmp_path: Path) -> None:
    for rank in (0, 1):
        write(tmp_path / f"rank{rank}.json", rank=rank)
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, eroica\n"
        f"print('once', eroica.diagnose({str(tmp_path)!r}, settings={{'readers': 2}}).verdict)\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.count("once") == 1 and not done.stderr
