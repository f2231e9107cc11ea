"""Real traces of public repositories, as a person would sum them up."""

from pathlib import Path

import numpy as np
import pytest
from synthetic_window import is_conserved

from eroica.model.series import decode_series
from eroica.settings import Settings
from eroica.summarize.recorded import summarize_recording
from eroica.trace.kineto import read_trace
from eroica.wire.codec import encode_record

TRACES = Path(__file__).parents[2].parent / "shared" / "traces"
pytestmark = pytest.mark.skipif(not TRACES.is_dir(), reason="the real traces are not beside this checkout")
SCHEMAS = ("amd_trace", "cpu_only", "df_index_resolver", "nccl_parser_config", "ns_resolution_trace", "rank_non_gpu")


def read(pattern, number=0):
    path = sorted(TRACES.glob(pattern))[number]
    return summarize_recording(read_trace(path), path.name, -1, Settings())


@pytest.mark.parametrize("rank", range(8))
def test_each_rank_of_a_recommendation_model_runs_eight_collectives_of_one_group(rank):
    found = read("dlrm_8ranks/*", rank)
    assert (found.rank, found.world_size, found.steps) == (rank, 8, (10, 10))
    executions = {one.kind: one.executions for one in found.pattern.collectives}
    assert executions == {"all_to_all": 5, "all_reduce": 3}
    assert {(one.group, one.paired_by) for one in found.pattern.collectives} == {("0", "order")}
    assert all(len(decode_series(one.end_us, np.float64)) == one.executions for one in found.pattern.collectives)
    assert found.pattern.idle_s < 0.01 * found.pattern.duration_s


def test_a_trace_that_names_its_groups_pairs_in_them():
    found = read("schemas/nccl_parser_config/*")
    (group,) = found.pattern.process_groups
    assert (group.name, group.ranks) == ("0", (0, 1))
    assert {one.kind: one.executions for one in found.pattern.collectives} == {"all_reduce": 15, "broadcast": 6}


def test_gloo_on_a_host_without_an_accelerator_is_a_collective():
    found = read("schemas/cpu_only/*")
    assert (found.rank, found.world_size, found.steps) == (34, 300, (551, 551))
    assert found.pattern.functions[0].key.name == "gloo:all_reduce"
    assert not found.pattern.has_accelerator


def test_collectives_on_the_host_alone_only_enqueue():
    found = read("schemas/rank_non_gpu/*")
    assert found.pattern.collectives == ()
    assert any("no kernels of it" in note for note in found.pattern.notes)


@pytest.mark.parametrize("name", [*(f"schemas/{one}/*" for one in SCHEMAS), "schemas/trace_filter/*"])
def test_every_schema_becomes_a_small_pattern_that_adds_up(name):
    found = read(name)
    assert is_conserved(found.pattern)
    assert found.pattern.idle_s < 0.05 * found.pattern.duration_s
    assert len(encode_record(found.pattern)) < Settings().pattern_bytes * 1.3
