from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servegen.errors import BadFile, BadRequest, ServeGenError
from servegen.logs import LogOptions, read_log


def log_file(folder: Path, text: str, name: str = "log.csv") -> Path:
    (folder / name).write_text(text)
    return folder / name


def test_burstgpt_columns_are_known(tmp_path: Path) -> None:
    rows = ["Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"]
    rows += [
        f"{5 + i},{'ChatGPT' if i % 2 else 'GPT-4'},{100 + i},{i % 25},{100 + i + i % 25},Conversation log"
        for i in range(100)
    ]
    log = read_log(log_file(tmp_path, "\n".join(rows)))
    assert log.clients == ("ChatGPT / Conversation log", "GPT-4 / Conversation log")
    assert len(log.client) == 96
    assert any("4 of 100 requests have no output tokens or failed: left out" in note for note in log.notes)
    assert log.clock_ns == 10**9
    assert any("steps of 1 s" in note for note in log.notes)
    kept = read_log(tmp_path / "log.csv", LogOptions(keep_failed=True))
    assert len(kept.client) == 100


@pytest.mark.parametrize("zone", ["", "+00:00"])
def test_azure_times_keep_all_their_digits(zone: str, tmp_path: Path) -> None:
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    text += "".join(
        f"2023-11-16 18:15:46.{digits}{zone},10,5\n" for digits in ("0010000", "0020000", "0090000", "0110000")
    )
    log = read_log(log_file(tmp_path, text))
    assert np.diff(log.time_ns).tolist() == [1_000_000, 7_000_000, 2_000_000]
    assert log.origin.startswith("2023-11-16T18:15:46.001")
    assert log.clients == ("all",)
    assert any("--client" in note for note in log.notes)


def test_openai_style_access_logs_are_read(tmp_path: Path) -> None:
    lines = [
        {"created": 1_700_000_000.25 + i, "user": f"u{i % 2}", "model": "m", "status": 500 if i == 3 else 200,
         "usage": {"prompt_tokens": 10 + i, "completion_tokens": 20,
                   "completion_tokens_details": {"reasoning_tokens": 15}}}
        for i in range(6)
    ]  # fmt: skip
    log = read_log(log_file(tmp_path, "\n".join(map(json.dumps, lines)), "access.jsonl"))
    assert log.clients == ("u0", "u1")
    assert log.input_tokens.tolist() == [10, 11, 12, 14, 15]
    assert log.reasoning_tokens is not None and (log.reasoning_tokens == 15).all()
    assert log.origin.startswith("2023-11-14T22:13:20.25")


def test_parquet_with_timestamps_is_read_and_sorted(tmp_path: Path) -> None:
    times = pa.array([3_000_000_001, 1_000_000_000, 2_000_000_000], pa.timestamp("ns"))
    table = pa.table(
        {"timestamp": times, "tenant": ["b", "a", "a"], "prompt_tokens": [3, 1, 2], "completion_tokens": [1, 1, 1]}
    )
    pq.write_table(table, tmp_path / "log.parquet")
    log = read_log(tmp_path / "log.parquet")
    assert log.time_ns.tolist() == [0, 1_000_000_000, 2_000_000_001]
    assert log.input_tokens.tolist() == [1, 2, 3]
    assert any("sorted" in note for note in log.notes)


def test_epoch_times_tell_their_unit_by_their_size(tmp_path: Path) -> None:
    for factor in (1, 1000, 1_000_000, 1_000_000_000):
        rows = "".join(f"{(1_700_000_000 + i) * factor},c,1,1\n" for i in range(3))
        log = read_log(log_file(tmp_path, "time,client,input_tokens,output_tokens\n" + rows))
        assert log.time_ns.tolist() == [0, 10**9, 2 * 10**9]
        assert log.first_ns == 1_700_000_000 * 10**9


def test_a_ramp_is_cut_and_columns_can_be_named(tmp_path: Path) -> None:
    path = log_file(
        tmp_path, "when,who,input_tokens,output_tokens\n" + "".join(f"{i},c{i % 2},1,1\n" for i in range(10))
    )
    log = read_log(path, LogOptions(time="when", client="who", start_s=3, end_s=8))
    assert len(log.client) == 5
    with pytest.raises(BadRequest, match="no column of time is known; it has when"):
        read_log(path)
    with pytest.raises(BadRequest, match="no column 'whom'"):
        read_log(path, LogOptions(time="when", client="whom"))
    with pytest.raises(BadRequest, match="no request is left"):
        read_log(path, LogOptions(time="when", client="who", start_s=30))


@pytest.mark.parametrize(
    ("text", "row", "field"),
    [
        ("time,input_tokens,output_tokens\n1,2,3\nsoon,2,3\n", 3, "time"),
        ("time,input_tokens,output_tokens\n1,2,3\n2,-2,3\n", 3, "input_tokens"),
        ("time,input_tokens,output_tokens\n1,2,3\n2,2,2.5\n", 3, "output_tokens"),
        ("time,input_tokens,output_tokens\n1,2,3\n2,2\n", 3, None),
        ("time,time,output_tokens\n1,2,3\n", 1, "time"),
        ("time,input_tokens,output_tokens\n1,2,__import__('os').getpid()\n", 2, "output_tokens"),
        ("time,input_tokens,output_tokens\n1e999,2,3\n", 2, "time"),
        ("time,input_tokens,output_tokens\n2023-02-31 00:00:00,2,3\n", 2, "time"),
    ],
)
def test_a_bad_row_is_refused_with_row_and_field(text: str, row: int, field: str | None, tmp_path: Path) -> None:
    with pytest.raises(BadFile) as caught:
        read_log(log_file(tmp_path, text))
    assert (caught.value.row, caught.value.field) == (row, field)
    assert len(str(caught.value).splitlines()) == 1


@given(st.binary(max_size=300), st.sampled_from([".csv", ".jsonl", ".parquet", ".tsv"]))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_read_or_refused_but_never_crash(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, suffix: str
) -> None:
    path = tmp_path_factory.getbasetemp() / f"fuzzed{suffix}"
    path.write_bytes(b"time,input_tokens,output_tokens\n" * (suffix == ".csv") + data)
    with pytest.raises(ServeGenError):
        read_log(path)
        raise ServeGenError("it was readable")
