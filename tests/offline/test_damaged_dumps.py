"""A damaged entry accuses nobody."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from eroica.errors import InputError
from eroica.offline import diagnose
from eroica.settings import Settings
from eroica.trace.flight import FlightDump, parse_dump
from support.dumps import DumpedJob, diagnose_dumps

_SHARED = Path(__file__).parents[2] / "../shared/cases/traces"
_JUNK = st.one_of(st.just(["x"]), st.just({}), st.just(""), st.just(-7), st.just(10**30), st.just(True), st.none())
_FIELDS = ("state", "collective_seq_id", "process_group", "profiling_name", "retired", "is_p2p", "op_id", "pg_id")


def test_who_is_behind_is_read_from_the_other_entries() -> None:
    if not _SHARED.is_dir():
        pytest.skip("the shared cases are not here")
    verdict = diagnose(str(_SHARED / "dump_bad_state_*"))
    assert verdict.verdict == "blocked" and [finding.workers for finding in verdict.findings][:1] == [(2,)]
    assert any("make no sense" in note for note in verdict.coverage.notes)


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
