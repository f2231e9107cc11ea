"""NCCL's Inspector is read as its README shows it."""

import json

import pytest

from eroica.errors import InputError
from eroica.model.communication import KernelTime
from eroica.trace.inspector import last_to_arrive, read_inspector

#: As in ext-profiler/inspector/README.md of NVIDIA/nccl, "Output Example".
EXAMPLE = """{
  "header": {"id": "0x7f8c496ae9f661", "rank": 2, "n_ranks": 8, "nnodes": 1},
  "metadata": {
    "inspector_output_format_version": "v4.0", "git_rev": "", "rec_mechanism": "profiler_plugin",
    "dump_timestamp_us": 1748030377748202, "hostname": "example-hostname", "pid": 1639453
  },
  "coll_perf": {
    "coll": "AllReduce", "coll_sn": 1407, "coll_msg_size_bytes": 17179869184, "coll_exec_time_us": 61974,
    "coll_algobw_gbs": 277.210914, "coll_busbw_gbs": 485.119099
  }
}"""


def test_the_example_of_the_readme_is_a_collective() -> None:
    (one,), unread = read_inspector(EXAMPLE)
    assert unread == 0
    assert (one.communicator, one.name, one.sequence) == ("0x7f8c496ae9f661", "AllReduce", 1407)
    assert (one.pid, one.exec_s) == (1639453, pytest.approx(0.061974))


def test_objects_stand_one_after_the_other_and_the_last_may_be_cut_short() -> None:
    found, unread = read_inspector(f'{EXAMPLE}\n{EXAMPLE}{{"header": {{"id": "a}}\\""}}}}{EXAMPLE[:100]}')
    assert (len(found), unread) == (2, 1)


def test_what_is_none_is_refused_and_nothing_is_nothing() -> None:
    with pytest.raises(InputError, match="NCCL_INSPECTOR_PROM_DUMP"):
        read_inspector("nccl_bus_bandwidth_gbs 3\n")
    assert read_inspector("") == ([], 0)


def records(late: int | None) -> str:
    pieces = []
    for rank in range(4):
        for number in range(20):
            record = json.loads(EXAMPLE)
            record["header"] |= {"rank": rank, "n_ranks": 4}
            waits = 0 if rank == late or late is None else 5000
            record["coll_perf"] |= {"coll_sn": number, "coll_exec_time_us": 1000 + 10 * rank + waits}
            pieces.append(json.dumps(record))
    return "\n".join(pieces)


def test_who_comes_last_has_the_shortest_execution() -> None:
    found = last_to_arrive(kernels(records(2)))
    assert found == {"0x7f8c496ae9f661": (12, pytest.approx(0.005, rel=0.1))}
    assert last_to_arrive(kernels(records(None))) == {}


def kernels(text: str) -> list[KernelTime]:
    """As agents tell them; worker 10 is rank 0 of the communicator."""
    return [
        KernelTime(
            worker=10 + at // 20, communicator=one.communicator, name=one.name, sequence=one.sequence, exec_s=one.exec_s
        )
        for at, one in enumerate(read_inspector(text)[0])
    ]
