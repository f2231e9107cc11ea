from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from made import pool_of, requests, requests_table
from servegen.compose import plan, stream
from servegen.errors import BadFile, BadRequest, ServeGenError
from servegen.export import FORMATS, read_requests, write_requests
from servegen.logs import LogOptions, read_log
from servegen.pool import Pool
from servegen.workload import Sessions, Workload, read_workload, write_workload

TEN = requests_table([(0.5 * i * i, f"c{i % 3}", 10 + i, 5 + i) for i in range(10)])


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_reads_back_with_the_same_span(form: str, tmp_path: Path) -> None:
    path = tmp_path / f"ten.{'parquet' if form == 'parquet' else 'jsonl'}"
    assert write_requests([TEN], path, form) == 10
    unit = {"vllm": "s", "guidellm": "s", "mooncake": "ms", "aiperf": "ms"}.get(form, "")
    log = read_log(path, LogOptions(time_unit=unit))
    assert log.time_ns[-1] == 40_500_000_000
    assert log.input_tokens.tolist() == [10 + i for i in range(10)]
    assert log.output_tokens.tolist() == [5 + i for i in range(10)]


def test_seconds_or_milliseconds_is_asked_where_a_file_does_not_say(tmp_path: Path) -> None:
    write_requests([TEN], tmp_path / "ten.jsonl", "mooncake")
    with pytest.raises(BadRequest, match="--time-unit"):
        read_log(tmp_path / "ten.jsonl")


@pytest.mark.parametrize(
    ("form", "expected"), [("mooncake", [1, 1, 1, 1, 2]), ("aiperf", [1, 1, 1, 1, 2]), ("vllm", [1, 1, 2, 32, 33])]
)
def test_block_ids_are_as_many_as_readers_expect(form: str, expected: list[int], tmp_path: Path) -> None:
    table = requests_table([(float(i), "a", n, 1) for i, n in enumerate((1, 16, 17, 512, 513))])
    write_requests([table], tmp_path / "x.jsonl", form)
    rows = [json.loads(line) for line in (tmp_path / "x.jsonl").read_text().splitlines()]
    assert [len(row["hash_ids"]) for row in rows] == expected
    ids = [i for row in rows for i in row["hash_ids"]]
    assert len(set(ids)) == len(ids)


def test_blocks_are_shared_along_a_conversation_and_a_system_prompt(tmp_path: Path) -> None:
    settings = Sessions(share=0.8, turns=4.0, gap_s=5.0, system_tokens=64)
    table = requests(pool_of([[2.0], [2.0]]), hours=1 / 6, sessions=settings)
    write_requests([table], tmp_path / "x.jsonl", "vllm")
    ids = [json.loads(line)["hash_ids"] for line in (tmp_path / "x.jsonl").read_text().splitlines()]
    rows = table.to_pylist()
    by_client: dict[str, list[int]] = {}
    last: dict[int, tuple[int, list[int]]] = {}
    followed = 0
    for row, blocks in zip(rows, ids, strict=True):
        assert len(blocks) == -(-row["input_tokens"] // 16)
        head = by_client.setdefault(row["client"], blocks[:4])
        assert blocks[:4] == head
        if row["session"] in last:
            size, before = last[row["session"]]
            assert blocks[: size // 16] == before[: size // 16]
            followed += 1
        last[row["session"]] = row["input_tokens"], blocks
    assert followed > 100
    assert len({tuple(head) for head in by_client.values()}) == 2


def test_requests_read_back_as_written(tmp_path: Path, multimodal: Pool) -> None:
    table = requests(multimodal, hours=0.2, rate=5.0)
    for name in ("x.parquet", "x.jsonl"):
        write_requests([table], tmp_path / name, "parquet" if name.endswith("parquet") else "jsonl")
        again = read_requests(tmp_path / name)
        for column in ("time_us", "input_tokens", "output_tokens", "text_tokens"):
            assert again[column].to_pylist() == table[column].to_pylist()
        assert again["client"].to_pylist() == table["client"].to_pylist()


@pytest.mark.parametrize(
    ("line", "row", "field"),
    [
        ('{"time_us": 1, "client": "a", "input_tokens": 3', 2, None),
        ('{"time_us": 1, "client": "a", "input_tokens": "3", "output_tokens": 1}', 2, "input_tokens"),
        ('{"time_us": 1, "client": "a", "input_tokens": 3}', 2, None),
        ('{"time_us": -1, "client": "a", "input_tokens": 3, "output_tokens": 1}', 2, "time_us"),
        ('{"time_us": 1, "client": "a", "input_tokens": 99999999999, "output_tokens": 1}', 2, "input_tokens"),
        ("[" * 100_000, 2, None),
    ],
)
def test_a_bad_line_is_refused_with_row_and_field(line: str, row: int, field: str | None, tmp_path: Path) -> None:
    good = '{"time_us": 0, "client": "a", "input_tokens": 3, "output_tokens": 1}'
    (tmp_path / "x.jsonl").write_text(f"{good}\n{line}\n")
    with pytest.raises(BadFile) as caught:
        read_requests(tmp_path / "x.jsonl")
    assert (caught.value.row, caught.value.field) == (row, field)


def test_a_parquet_file_without_a_column_or_with_text_is_refused(tmp_path: Path) -> None:
    pq.write_table(TEN.drop_columns(["client"]), tmp_path / "x.parquet")
    with pytest.raises(BadFile, match="client"):
        read_requests(tmp_path / "x.parquet")
    pq.write_table(TEN.set_column(0, "time_us", pa.array(["now"] * 10)), tmp_path / "x.parquet")
    with pytest.raises(BadFile, match="'time_us'"):
        read_requests(tmp_path / "x.parquet")
    (tmp_path / "x.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(BadFile, match="not a readable"):
        read_requests(tmp_path / "x.parquet")


def test_a_failure_leaves_no_file(tmp_path: Path) -> None:
    def broken():  # type: ignore[no-untyped-def]
        yield TEN
        raise BadRequest("stopped")

    for form in FORMATS:
        with pytest.raises(BadRequest):
            write_requests(broken(), tmp_path / "x", form)
    with pytest.raises(BadRequest, match="no requests"):
        write_requests([], tmp_path / "x", "parquet")
    with pytest.raises(FileNotFoundError):
        write_requests([TEN], tmp_path / "missing" / "x", "parquet")
    assert list(tmp_path.iterdir()) == []


def test_a_workload_file_repeats_the_run(sample: Pool, tmp_path: Path) -> None:
    workload = Workload(
        hours=0.3, seed=9, rate=[(0.0, 4.0), (500.0, 8.0)], coupling="rank:0.3", sessions=Sessions(share=0.2)
    )
    write_workload(workload, tmp_path / "w.yaml")
    again = read_workload(tmp_path / "w.yaml")
    assert again == workload
    first = pa.concat_tables(stream(plan(workload, sample)))
    assert pa.concat_tables(stream(plan(again, again.read_pool()))).equals(first)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("seed: -1", "seed"),
        ("hours: many", "hours"),
        ("colour: red", None),
        ("slo: {ttft_s: 0}", "slo.ttft_s"),
        ("pool: !!python/object/apply:os.system ['touch evaluated']", None),
        ("pool: [", None),
        ("servegen: 7", "servegen"),
    ],
)
def test_a_bad_workload_file_is_refused(
    text: str, field: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("w.yaml").write_text(text)
    with pytest.raises(BadFile) as caught:
        read_workload(Path("w.yaml"))
    assert caught.value.field == field
    assert not Path("evaluated").exists()


def test_a_changed_pool_is_refused() -> None:
    with pytest.raises(ServeGenError, match="digest"):
        Workload(pool_digest="0" * 64).read_pool()
