"""Files of NCCL's Inspector are read as they grow, and what they say goes with the verdict."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eroica.agent.inspector import InspectorFiles, inspector_folder
from eroica.collector.intake import clean_communication
from eroica.communication.conclusion import last_in_words
from eroica.communication.stretch import Ledger, stretch_of
from eroica.model.communication import HostCommunication, KernelTime


def line(pid: int, number: int, micros: float, rank: int = 0) -> str:
    """As in ext-profiler/inspector/README.md of NVIDIA/nccl, on one line."""
    record = {
        "header": {"id": "0x7f8c496ae9f661", "rank": rank, "n_ranks": 3, "nnodes": 1},
        "metadata": {
            "inspector_output_format_version": "v4.0", "git_rev": "", "rec_mechanism": "profiler_plugin",
            "dump_timestamp_us": 1748030377748202, "hostname": "example-hostname", "pid": pid,
        },
        "coll_perf": {
            "coll": "AllReduce", "coll_sn": number, "coll_msg_size_bytes": 17179869184, "coll_exec_time_us": micros,
            "coll_algobw_gbs": 277.210914, "coll_busbw_gbs": 485.119099,
        },
    }  # fmt: skip
    return json.dumps(record) + "\n"


def add(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_only_what_is_added_is_read_whole_lines_and_each_process_its_own(tmp_path: Path) -> None:
    ours, others = tmp_path / "example-hostname-pid71.log", tmp_path / "example-hostname-pid711.log"
    add(ours, line(71, 1, 500))
    add(others, line(711, 1, 500))
    files = InspectorFiles(lambda pid: tmp_path)
    assert files.take({71: 4}) == (), "it is from before the first look"
    whole = line(71, 3, 700)
    add(ours, line(71, 2, 600) + whole[:40])
    add(others, line(711, 2, 600))
    (one,) = files.take({71: 4})
    assert (one.worker, one.sequence, one.name) == (4, 2, "AllReduce") and one.exec_s == pytest.approx(600e-6)
    add(ours, whole[40:])
    assert [one.sequence for one in files.take({71: 4})] == [3]
    assert files.take({71: 4}) == ()


def test_a_file_that_grows_too_fast_or_is_none_costs_only_itself(tmp_path: Path) -> None:
    ours = tmp_path / "h-pid71.log"
    ours.touch()
    (tmp_path / "h-pid71-b.log").symlink_to("/etc/passwd")
    files = InspectorFiles(lambda pid: tmp_path)
    assert files.take({71: 4}) == ()
    add(ours, "".join(line(71, number, 500) for number in range(5000)))
    told = files.take({71: 4})
    assert len(told) == 128 and told[-1].sequence == 4999
    assert InspectorFiles(lambda pid: tmp_path / "none").take({71: 4}) == ()


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"NCCL_INSPECTOR_ENABLE": "1", "NCCL_INSPECTOR_DUMP_DIR": "/logs/7"}, Path("/logs/7")),
        ({"NCCL_INSPECTOR_ENABLE": "1", "SLURM_JOBID": "12"}, Path("/job/nccl-inspector-12")),
        ({"NCCL_INSPECTOR_ENABLE": "1"}, Path("/job/nccl-inspector-unknown-jobid")),
        ({"NCCL_INSPECTOR_ENABLE": "1", "NCCL_INSPECTOR_PROM_DUMP": "1"}, None),
        ({"NCCL_INSPECTOR_DUMP_DIR": "/logs/7"}, None),
    ],
)
def test_a_workers_environment_says_where_its_files_are(
    variables: dict[str, str], folder: Path | None, tmp_path: Path
) -> None:
    (tmp_path / "71").mkdir()
    (tmp_path / "71" / "cwd").symlink_to("/job")
    text = "\0".join(f"{name}={value}" for name, value in variables.items())
    (tmp_path / "71" / "environ").write_bytes(text.encode())
    assert inspector_folder(71, tmp_path) == folder
    assert inspector_folder(72, tmp_path) is None


def test_who_comes_last_is_told_in_words() -> None:
    ledger = Ledger()
    for host in range(3):
        kernels = tuple(
            KernelTime(
                worker=host, communicator="0x7f", name="AllReduce", sequence=number,
                exec_s=0.001 if host == 2 else 0.006,
            )
            for number in range(20)
        )  # fmt: skip
        record = clean_communication(HostCommunication(interval_s=1.0, kernels=kernels))
        assert record is not None
        ledger.take(1.0, f"node{host}", record, {})
    (said,) = last_in_words(stretch_of(ledger.between(0.0, 2.0)))
    assert "worker 2 mostly comes last" in said and "5.0 ms longer" in said
