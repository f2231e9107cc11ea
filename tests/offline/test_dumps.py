"""Folders of Flight Recorder dumps end in a verdict that names who holds the others up, and nobody else."""

from __future__ import annotations

import io
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parent))
from written_traces import write

from eroica import cli
from eroica.errors import InputError
from eroica.model.verdict import Finding, Verdict
from eroica.offline import diagnose, diagnose_all
from eroica.report.text import render_verdict
from eroica.settings import Settings
from eroica.trace.flight import FlightDump, parse_dump
from support.dumps import DumpedJob, diagnose_dumps

_REAL = Path(__file__).parents[2] / "../shared/traces/flight_recorder"
needs_dumps = pytest.mark.skipif(not _REAL.is_dir(), reason="the real dumps are not here")


def _verdict(job: DumpedJob) -> Verdict:
    return diagnose_dumps(job.dumps(), "demo", Settings())


def _causes(verdict: Verdict) -> list[Finding]:
    return [finding for finding in verdict.findings if finding.role == "cause"]


def _named(verdict: Verdict) -> list[int]:
    return sorted(rank for finding in _causes(verdict) for rank in finding.workers)


def _text(verdict: Verdict) -> str:
    console = Console(width=100, no_color=True, file=io.StringIO())
    render_verdict(verdict, console)
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def _others(job: DumpedJob, *ranks: int) -> list[int]:
    return [rank for rank in range(job.workers) if rank not in ranks]


def _pipeline(only_active: bool = True) -> DumpedJob:
    """Four stages of two workers: tensor groups within a stage, pipelines across; everybody has worked before."""
    job = DumpedJob(8, only_active=only_active)
    for stage in range(4):
        job.add_group(str(10 + stage), [2 * stage, 2 * stage + 1], "TENSOR")
    for lane in range(2):
        job.add_group(str(20 + lane), range(lane, 8, 2), "PIPELINE")
    return job


@needs_dumps
@pytest.mark.parametrize(("name", "ranks"), [("gpu_error_1st", [12, 14]), ("lock_gil_1st", [9, 14])])
def test_real_dumps_name_the_injected_workers_and_no_other(name: str, ranks: list[int]) -> None:
    verdict = diagnose_dumps(sorted((_REAL / name).glob("_dump_*")), name, Settings())
    assert verdict.verdict == "blocked"
    assert verdict.exit_code == 3
    assert len(_causes(verdict)) == 1
    assert _named(verdict) == ranks
    symptoms = [rank for finding in verdict.findings if finding.role == "symptom" for rank in finding.workers]
    assert sorted(symptoms) == [rank for rank in range(16) if rank not in ranks]
    assert verdict.coverage.workers_expected == verdict.coverage.workers_reported == 16


@pytest.mark.parametrize("only_active", [True, False])
@pytest.mark.parametrize("late", [0, 3, 7])
def test_one_worker_that_does_not_enter_is_named(late: int, only_active: bool) -> None:
    job = DumpedJob(8, only_active=only_active)
    job.enter(range(8), completed=range(8))
    job.enter(_others(job, late))
    verdict = _verdict(job)
    assert verdict.verdict == "blocked"
    assert _named(verdict) == [late]
    cause = _causes(verdict)[0]
    assert cause.cause == "unknown"
    assert (cause.function.name, cause.function.kind) == ("nccl:all_reduce", "collective")
    assert 0.5 < cause.confidence < 0.9
    assert verdict.summary == (
        f"Blocked: worker {late} has not entered nccl:all_reduce number 13 of group default_pg; "
        "7 other workers wait for it."
    )


def test_two_workers_missing_in_groups_of_the_same_kind_are_one_cause() -> None:
    job = _pipeline()
    job.enter([1], "10")
    job.enter([4], "12")
    verdict = _verdict(job)
    assert [finding.workers for finding in _causes(verdict)] == [(0, 5)]


@pytest.mark.parametrize("only_active", [True, False])
def test_a_chain_of_sends_and_receives_is_followed_to_its_end(only_active: bool) -> None:
    job = _pipeline(only_active)
    job.enter([7], "13")  # worker 6 does not come
    job.receive(4, 6, "20")
    job.receive(5, 7, "21")
    job.enter([4, 5], "12")
    job.receive(2, 4, "20")
    job.receive(3, 5, "21")
    job.send(0, 2, "20")
    job.receive(1, 3, "21")
    verdict = _verdict(job)
    assert _named(verdict) == [6]
    assert _causes(verdict)[0].explains == tuple(finding.order for finding in verdict.findings[1:])


def test_a_send_that_nobody_receives_names_the_receiver() -> None:
    job = _pipeline()
    job.send(0, 2, "20")
    job.enter([0, 1], "10")
    verdict = _verdict(job)
    assert _named(verdict) == [2]
    assert "has not answered nccl:send" in verdict.summary
    assert any("Worker 0 waits in nccl:send 0->1 of group PIPELINE" in text for text in _causes(verdict)[0].evidence)


def test_a_send_and_its_receive_that_do_not_end_name_the_way_between_them() -> None:
    job = _pipeline()
    job.send(0, 2, "20")
    job.receive(2, 0, "20")
    job.receive(4, 2, "20")
    verdict = _verdict(job)
    cause = _causes(verdict)[0]
    assert (cause.cause, cause.workers) == ("slow-link", (0, 2))
    assert cause.confidence < 0.5


def test_a_worker_whose_device_lags_behind_its_peers_is_named() -> None:
    job = DumpedJob(4)
    job.enter(range(4), completed=[0, 1, 3])
    job.enter(range(4))
    verdict = _verdict(job)
    assert verdict.verdict == "blocked"
    assert _named(verdict) == [2]
    assert "never finished it, although the peers did" in verdict.summary
    assert any("entered numbers 12 to 13" in text for text in _causes(verdict)[0].evidence)


def test_if_most_members_have_not_finished_it_is_the_transport_and_nobody_is_blamed() -> None:
    job = DumpedJob(8)
    job.enter(range(8), completed=[3])
    verdict = _verdict(job)
    assert [finding.cause for finding in _causes(verdict)] == ["slow-link"]
    assert any("1 have left it" in text for text in _causes(verdict)[0].evidence)


@pytest.mark.parametrize("name", ["broadcast", "_broadcast_oop", "reduce", "_reduce_oop", "gather", "scatter"])
def test_a_root_that_is_through_is_no_peer_that_finished(name: str) -> None:
    for workers in (2, 4):
        job = DumpedJob(workers)
        job.enter(range(workers), operation=f"nccl:{name}", completed=range(workers - 1))
        assert [finding.cause for finding in _causes(_verdict(job))] == ["slow-link"]


def test_another_operation_under_the_same_number_is_a_desynchronized_collective() -> None:
    job = DumpedJob(4)
    job.enter([0, 1, 3])
    job.enter([2], operation="nccl:_all_gather_base")
    verdict = _verdict(job)
    cause = _causes(verdict)[0]
    assert (cause.cause, cause.workers) == ("desynchronized-collective", (2,))
    assert cause.function.name == "nccl:_all_gather_base"
    assert "worker 2 is in nccl:_all_gather_base as number 12 of group default_pg" in verdict.summary


def test_where_only_the_worker_of_a_missing_dump_can_be_missing_it_may_be_inside_as_well() -> None:
    job = DumpedJob(4)
    job.enter([0, 1, 2])
    job.lose(3)
    verdict = _verdict(job)
    assert _named(verdict) == [3]
    assert verdict.coverage.missing == (3,)
    assert verdict.summary == (
        "Too little to tell: the dump of worker 3 is missing, so whether it has entered nccl:all_reduce number 12 of "
        "group default_pg cannot be told; 3 other workers wait."
    )
    assert _causes(verdict)[0].confidence < 0.35
    assert verdict.verdict == "undetermined"


def test_dumps_without_open_collectives_are_undetermined() -> None:
    job = DumpedJob(4)
    job.enter(range(4), completed=range(4))
    verdict = _verdict(job)
    assert verdict.verdict == "undetermined"
    assert verdict.exit_code == 4
    assert verdict.summary == (
        "When the dumps were written, nobody waited for anybody in a collective, as far as they tell."
    )


def test_files_of_any_form_are_read(tmp_path: Path) -> None:
    job = DumpedJob(4)
    job.enter([0, 1, 3])
    for at, form in enumerate(("_dump_{rank}", "nccl_trace_rank_{rank}", "fr_trace_{rank}.json")):
        folder = tmp_path / str(at)
        folder.mkdir()
        assert _named(diagnose_dumps(job.write(folder, form), "demo", Settings())) == [2]


def test_a_broken_dump_is_an_error_that_names_it(tmp_path: Path) -> None:
    paths = DumpedJob(2).write(tmp_path)
    paths[1].write_bytes(b"\x80\x02cposix\nsystem\nX\x02\x00\x00\x00ls\x85R.")
    with pytest.raises(InputError, match="_dump_1"):
        diagnose_dumps(paths, "demo", Settings())


_RANKS = st.lists(st.integers(0, 5), max_size=6, unique=True)
_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["0", "4", "9"]), st.sampled_from(["enter", "send", "receive"]), _RANKS, _RANKS, st.booleans()
    ),
    max_size=12,
)
_MEMBERS = st.dictionaries(st.integers(0, 5), st.lists(st.integers(0, 9), max_size=6) | st.just("[5, 0]"), max_size=4)


@settings(max_examples=300, deadline=None)
@given(_STEPS, _MEMBERS, st.sets(st.integers(0, 5), max_size=4), st.booleans())
def test_whatever_dumps_say_there_is_a_verdict_on_workers_of_the_job(
    steps: list[tuple[str, str, list[int], list[int], bool]],
    lies: dict[int, list[int] | str],
    lost: set[int],
    only_active: bool,
) -> None:
    job = DumpedJob(6, only_active=only_active)
    job.add_group("4", [0, 1, 2], "FIRST")
    job.add_group("9", [1, 3, 5], "SECOND")
    for group, how, ranks, others, flag in steps:
        members = [rank for rank in ranks if rank in job.groups[group][1]]
        if how == "enter":
            job.enter(members, group, f"nccl:{'all_reduce' if flag else 'broadcast'}", completed=others)
        elif len(members) > 1:
            (job.send if how == "send" else job.receive)(members[0], members[1], group, completed=flag)
    dumps = []
    for rank in sorted(set(range(6)) - lost):
        content = job.content(rank)
        if rank in lies:  # worker and groups contradict each other
            content["pg_config"]["4"] = {"name": "4", "desc": "FIRST", "ranks": lies[rank]}
        dumps.append(parse_dump(json.dumps(content).encode(), rank))
    if not dumps:
        return
    verdict = diagnose_dumps(dumps, "demo", Settings())
    assert set(_named(verdict)) <= set(range(10))
    assert verdict.summary.endswith(".")
    assert Verdict.from_json(verdict.to_json()) == verdict
    assert diagnose_dumps(dumps[::-1], "demo", Settings()) == verdict
    assert _text(verdict)


_JUNK = st.one_of(st.just(["x"]), st.just({}), st.just(""), st.just(-7), st.just(10**30), st.just(True), st.none())
_FIELDS = ("state", "collective_seq_id", "process_group", "profiling_name", "retired", "is_p2p", "op_id", "pg_id")


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 3), st.integers(0, 19), st.sampled_from(_FIELDS), _JUNK, st.booleans())
@example(0, 19, "process_group", ["x"], False)
def test_one_damaged_field_accuses_no_worker_but_the_one_that_is_behind(
    rank: int, entry: int, key: str, junk: Any, counted: bool
) -> None:
    job = DumpedJob(4, entered=0)
    for _ in range(19):
        job.enter(range(4), completed=range(4))
    job.enter([0, 1, 3])
    dumps: list[FlightDump] = []
    for worker in range(4):
        content = json.loads(job.as_json(worker))
        if not counted:
            del content["pg_status"]
        if worker == rank and entry < len(content["entries"]):
            content["entries"][entry][key] = junk
        try:
            dumps.append(parse_dump(json.dumps(content).encode(), worker))
        except InputError:
            assert worker == rank
    verdict = diagnose_dumps(dumps, "demo", Settings())
    accused = {worker for finding in verdict.findings if finding.role == "cause" for worker in finding.workers}
    assert accused <= {2}


# --- dumps that lie in folders ---


def link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.symlink_to(source.resolve())


def dump(rank: int, job: str = "lock_gil_1st") -> Path:
    return _REAL / job / f"_dump_{rank}"


@needs_dumps
def test_dumps_of_one_job_in_a_folder_for_each_host_are_one_standstill(tmp_path: Path) -> None:
    for rank in range(16):
        link(dump(rank), tmp_path / f"node{rank // 8}" / f"_dump_{rank}")
    (verdict,) = diagnose_all(tmp_path)
    assert verdict.coverage.workers_reported == 16 and verdict.job == tmp_path.name
    assert verdict.cause is not None and verdict.cause.workers == (9, 14)


@needs_dumps
def test_a_second_and_a_damaged_dump_cost_only_themselves(tmp_path: Path) -> None:
    for rank in range(16):
        link(dump(rank), tmp_path / f"_dump_{rank}")
    shutil.copy(dump(3), tmp_path / "nccl_trace_rank_3")
    (tmp_path / "_dump_99").write_bytes(dump(3).read_bytes()[:2000])
    verdict = diagnose(tmp_path)
    assert verdict.cause is not None and verdict.cause.workers == (9, 14)
    assert any("is a second dump of worker 3" in note for note in verdict.coverage.notes)
    assert any("_dump_99" in note for note in verdict.coverage.notes)


@needs_dumps
def test_a_dump_alone_is_enough_for_a_verdict_and_its_groups_tell_whose_it_is(tmp_path: Path) -> None:
    shutil.copy(dump(9), tmp_path / "dump")
    for verdict in (diagnose(dump(9)), diagnose(tmp_path)):
        assert verdict.coverage.workers_reported == 1 and 9 not in verdict.coverage.missing


@needs_dumps
def test_a_standstill_comes_before_slowness_and_is_kept(tmp_path: Path) -> None:
    write(tmp_path / "traces" / "rank0.json", load_us=80_000.0)
    for rank in range(16):
        link(dump(rank), tmp_path / "dumps" / f"_dump_{rank}")
    out = tmp_path.with_name(tmp_path.name + "-kept")
    options = ["--quiet", "--set", "readers=1"]
    assert CliRunner().invoke(cli.group, ["diagnose", str(tmp_path), "--out", str(out), *options]).exit_code == 3
    again = diagnose_all(out)
    assert [verdict.verdict for verdict in again] == ["blocked", "slow"]
    assert again[0].cause is not None and again[0].cause.workers == (9, 14)
