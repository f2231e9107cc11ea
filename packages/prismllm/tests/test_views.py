"""Files and pictures made from a replay, read by those who are to read them."""

from __future__ import annotations

import importlib.util
import itertools
import json
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from google.protobuf import proto
from msgspec.structs import replace

from made_jobs import call, group, pipeline, step
from made_jobs import rank_class as made
from prismllm import Rehearsal
from prismllm.cli import main
from prismllm.costs import Costs, Link
from prismllm.graph import Job
from prismllm.views.chakra import COMM_COLL_NODE, COMM_RECV_NODE, COMM_SEND_NODE, messages, write_chakra
from prismllm.views.flight import write_dumps
from prismllm.views.kineto import write_traces
from prismllm.views.path import critical_path, shares
from prismllm.views.timeline import bars, draw_svg

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
EROICA = Path(sys.executable).parent / "eroica"


def diagnose(folder: Path, out: Path) -> dict:
    if not EROICA.exists():
        pytest.skip("eroica is not installed beside this package")
    command = [str(EROICA), "diagnose", str(folder), "--json", str(out)]
    subprocess.run(command, capture_output=True, timeout=90, check=False)
    return json.loads(out.read_text())


def varied(job: Job, share: float, samples: int = 20) -> Job:
    """The job as if its own work had been timed so many times, each segment up to that share shorter or longer."""
    random = np.random.default_rng(1)
    kinds = []
    for rank_class in job.classes:
        exact = np.array(rank_class.step.segments_ns)
        times = exact * (1 + share * random.uniform(-1, 1, (samples, len(exact))))
        kinds.append(replace(rank_class, samples_ns=times.astype(int).tolist()))
    return replace(job, classes=kinds)


@pytest.mark.jobs
def test_eroica_names_a_slow_rank_of_a_rehearsed_job(column, tmp_path):
    """Ranks vary by a tenth, iteration by iteration; how much is planned, not what else this machine did meanwhile."""
    rehearsal = Rehearsal(varied(column[1], 0.1))
    kept = rehearsal.run(["slow rank=37 by=2"], iterations=7, noise=3, keep=6)
    assert len(set(np.diff([iteration.end_s(64).max() for iteration in kept]).round(6))) == 5
    assert write_traces(rehearsal.graph, kept, tmp_path / "traces") == 64
    verdict = diagnose(tmp_path / "traces", tmp_path / "verdict.json")
    assert verdict["verdict"] == "slow"
    assert next(one["workers"] for one in verdict["findings"] if one["role"] == "cause") == [37]


@pytest.mark.jobs
def test_eroica_names_a_rank_that_hangs_in_a_rehearsed_job(rehearsal, tmp_path):
    kept = rehearsal.run(["hang rank=42 op=5"], iterations=1)
    assert write_dumps(rehearsal.graph, kept[-1], tmp_path / "dumps") == 64
    verdict = diagnose(tmp_path / "dumps", tmp_path / "verdict.json")
    assert verdict["verdict"] == "blocked"
    assert next(one["workers"] for one in verdict["findings"] if one["role"] == "cause") == [42]


@pytest.mark.parametrize(
    ("change", "hosts"),
    [("", ()), ("slow rank=13 by=1.6", ()), ("hang rank=13 op=0", ()), ("cut host=2 by=0.05", ("host2",))],
)
def test_c4d_names_a_slow_link_of_a_rehearsed_job_and_nothing_else(change, hosts):
    """Four hosts of eight; the watch is fed with records made from the replay."""
    pytest.importorskip("eroica_c4d")
    spec = importlib.util.spec_from_file_location("eroica_c4d", BENCHMARKS / "eroica_c4d.py")
    assert spec is not None
    assert spec.loader is not None
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    what = step(60, call("all_reduce", 0, nbytes=200_000), 0, ("wait", 0), 20)
    job = Job(32, [group(*range(32))], [made(0, what)], [0] * 32, 8, ["train.py"])
    rehearsal = Rehearsal(job, Costs(host=Link(1e-6, 1e9), net=Link(1e-5, 2e7)))
    row = benchmark.try_fault(rehearsal, change, hosts, seed=1)
    assert row["is_right"], row


def test_chakra_traces_hold_the_graph(tmp_path):
    rehearsal = Rehearsal(pipeline(4, 2))
    assert write_chakra(rehearsal.graph, tmp_path) == 8
    with (tmp_path / "job.5.et").open("rb") as file:
        metadata = proto.parse_length_prefixed(messages()["GlobalMetadata"], file)
        nodes = list(iter(lambda: proto.parse_length_prefixed(messages()["Node"], file), None))
    assert metadata.attr[0].uint64_val == 8
    kinds = [node.type for node in nodes if node.type in (COMM_SEND_NODE, COMM_RECV_NODE, COMM_COLL_NODE)]
    assert kinds == [COMM_RECV_NODE, COMM_SEND_NODE, COMM_COLL_NODE]
    ids = {node.id for node in nodes}
    assert all(set(node.data_deps) <= ids and node.id not in node.data_deps for node in nodes)
    said = {one.name: one for node in nodes for one in node.attr}
    assert said["comm_size"].int64_val == 1000
    assert (said["comm_src"].int32_val, said["comm_dst"].int32_val) == (5, 6)


@pytest.mark.parametrize("changes", [[], ["slow rank=6 by=3"]])
def test_the_critical_path_is_as_long_as_the_iteration_and_shares_add_up(changes):
    rehearsal = Rehearsal(pipeline(4, 3))
    iteration = rehearsal.run(changes, iterations=1)[-1]
    path = critical_path(rehearsal.graph, iteration)
    ends = iteration.end_s(12)
    assert sum(piece.seconds for piece in path) == pytest.approx(ends.max(), rel=1e-9)
    assert all(abs(a.begin_s + a.seconds - b.begin_s) < 1e-9 for a, b in itertools.pairwise(path))
    parts = shares(rehearsal.graph, iteration)
    assert np.allclose(parts.own_s + parts.exposed_s + parts.bubble_s, ends)
    if changes:
        assert 6 in {piece.rank for piece in path}


def test_the_timeline_is_a_picture_without_overlaps():
    rehearsal = Rehearsal(pipeline(4, 3))
    iteration = rehearsal.run(iterations=1)[-1]
    found = bars(rehearsal.graph, iteration, range(4))
    assert {bar.rank for bar in found} == {0, 1, 2, 3}
    for one, other in itertools.pairwise(found):
        assert one.rank != other.rank or one.end_s <= other.begin_s + 1e-12
    picture = ET.fromstring(draw_svg(found, critical_path(rehearsal.graph, iteration), "4 < 5 & 6"))
    assert picture.tag.endswith("svg")


@pytest.mark.jobs
def test_the_command_line_predicts_shows_and_exports(column, tmp_path):
    out, _ = column
    run = CliRunner().invoke
    said = run(main, ["predict", str(out), "--what-if", "slow rank=3 by=2"]).output
    assert "as captured:" in said
    assert "slow rank=3 by=2:" in said
    shown = run(main, ["show", str(out), "--svg", str(tmp_path / "a.svg")])
    assert "critical path" in shown.output
    assert (tmp_path / "a.svg").read_text().startswith("<svg")
    assert (
        run(main, ["export", str(out), "--as", "chakra", "--to", str(tmp_path / "c"), "--ranks", "0-3"]).exit_code == 0
    )
    assert len(list((tmp_path / "c").iterdir())) == 4
    wrong = run(main, ["predict", str(out), "--what-if", "slow rank=64 by=2"])
    assert wrong.exit_code == 2
    assert "the job has ranks 0 to 63" in wrong.stderr
    shutil.rmtree(tmp_path / "c")
