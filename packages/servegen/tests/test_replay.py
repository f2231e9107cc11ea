from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from made import requests_table
from servegen.errors import BadFile, BadRequest, ServerError
from servegen.export import write_requests
from servegen.files import read_rows
from servegen.prompts import ALPHABETS, PromptMaker, learn_prompts
from servegen.replay import Record, ReplayOptions, replay_requests, summarize, write_records
from servegen.workload import Slo
from servers import Behaviour, server


def evenly(count: int, rate: float, inputs: int = 30, outputs: int = 4):  # type: ignore[no-untyped-def]
    return requests_table([(i / rate, f"c{i % 3}", inputs + i % 7, outputs) for i in range(count)])


def test_each_request_leaves_at_its_planned_moment() -> None:
    """3,000 requests at 300/s: delays do not add up, unless others hold the cores, which the result then says."""
    with server(Behaviour()) as url:
        replay = replay_requests(evenly(3000, 300.0, outputs=1), ReplayOptions((url,), "m"))
    late = np.array([r.sent_s - r.planned_s for r in replay.records])
    assert len(late) == 3000
    assert late.min() > -0.005
    sender = summarize(replay, Slo())["sender"]
    starved = sender["loop_lag_s"]["p99"] > 0.1
    # A sender that sleeps gap by gap would be a second late by now, with a loop that is on time.
    assert sender["was_the_limit"] if starved else late[-30:].mean() < 0.5
    assert sender["lateness_s"]["p99"] == pytest.approx(np.quantile(late, 0.99))


def test_a_frozen_server_shows_in_the_requests_that_were_planned_meanwhile() -> None:
    with server(Behaviour(freeze=(1.0, 4.0))) as url:
        replay = replay_requests(evenly(120, 20.0), ReplayOptions((url,), "m"))
    ttft = np.array([(r.first_s or 0) - r.planned_s for r in replay.records])
    planned = np.array([r.planned_s for r in replay.records])
    during = (planned > 1.2) & (planned < 3.5)
    assert (ttft[during] > 0.3).all()
    assert ttft.max() > 2.5
    assert summarize(replay, Slo(ttft_s=1.0))["all"]["within_slo"] < 0.75


def test_prompts_have_the_asked_length_by_the_servers_count() -> None:
    """The server counts bytes and adds 9 for its template."""
    with server(Behaviour(added=9)) as url:
        replay = replay_requests(evenly(30, 100.0), ReplayOptions((url,), "m"))
    prompts = summarize(replay, Slo())["prompts"]
    assert prompts == {
        "alphabet": "letters", "added_by_server": 9.0, "checked": True,
        "counted": 30, "of_other_length": 0, "largest_difference": 0,
    }  # fmt: skip
    assert all(r.input_counted == r.input_asked for r in replay.records)


def test_a_prompt_that_cannot_be_as_short_as_asked_is_told() -> None:
    with server(Behaviour(added=50)) as url:
        replay = replay_requests(evenly(5, 100.0), ReplayOptions((url,), "m"))
    assert summarize(replay, Slo())["prompts"]["of_other_length"] == 5


def test_time_per_token_uses_usage_where_chunks_hold_several_tokens() -> None:
    with server(Behaviour(per_chunk=4, gap_s=0.06)) as url:
        replay = replay_requests(evenly(5, 5.0, outputs=12), ReplayOptions((url,), "m"))
    summary = summarize(replay, Slo())
    assert all(r.chunks == 3 and r.output_counted == 12 for r in replay.records)
    assert summary["output_tokens_counted_by"] == "usage"
    for record in replay.records:
        assert record.per_token_s == pytest.approx(sum(record.gaps_s) / 11)
    assert summary["all"]["gap_between_chunks_s"]["p50"] > 4 * summary["all"]["time_per_output_token_s"]["p50"]


@pytest.mark.thorough
def test_a_sender_that_reads_tokens_late_says_so() -> None:
    """200 streams of 200 tokens, 5 ms apart: the time between tokens is the server's, or the sender was the limit."""
    rows = [(0.0, "c", 30, 200)] * 200
    with server(Behaviour(gap_s=0.005)) as url:
        replay = replay_requests(requests_table(rows), ReplayOptions((url,), "m", timeout_s=150))
    summary = summarize(replay, Slo())
    assert summary["all"]["sent"] == 200
    assert summary["sender"]["was_the_limit"] or abs(summary["all"]["gap_between_chunks_s"]["p50"] - 0.005) < 0.002


def test_without_usage_chunks_are_counted_and_that_is_told() -> None:
    with server(Behaviour(usage=False)) as url:
        replay = replay_requests(evenly(5, 50.0), ReplayOptions((url,), "m"))
    summary = summarize(replay, Slo())
    assert not summary["prompts"]["checked"]
    assert summary["output_tokens_counted_by"] == "chunks"
    assert all(r.output_counted == 4 for r in replay.records)


def test_failures_stand_beside_the_percentiles_and_count_against_goodput() -> None:
    with server(Behaviour(refuse_every=10, break_every=7)) as url:
        replay = replay_requests(evenly(70, 100.0), ReplayOptions((url,), "m"))
    overall = summarize(replay, Slo(ttft_s=60, tbt_s=60))["all"]
    broken = sum(n % 10 == 0 or n % 7 == 0 for n in range(1, 71))
    assert overall["failed"] == broken
    assert overall["ttft_s"]["failure_rate"] == pytest.approx(broken / 70)
    assert overall["ttft_s"]["of"] == 70 - broken
    assert overall["within_slo"] == pytest.approx(1 - broken / 70)
    assert any("worker died" in reason for reason in overall["errors"])
    assert any("503" in reason for reason in overall["errors"])


def test_when_all_fail_nothing_is_nan() -> None:
    with server(Behaviour(refuse_every=1)) as url:
        replay = replay_requests(evenly(5, 50.0), ReplayOptions((url,), "m"))
    summary = summarize(replay, Slo())
    assert summary["all"]["failure_rate"] == 1
    assert "NaN" not in json.dumps(summary)


def test_a_request_that_never_ends_fails_after_its_timeout() -> None:
    with server(Behaviour(first_s=60)) as url:
        replay = replay_requests(evenly(2, 50.0), ReplayOptions((url,), "m", timeout_s=1.0))
    assert all("no end after 1 s" in r.error for r in replay.records)


def test_requests_go_to_several_servers_in_turn() -> None:
    with server(Behaviour()) as one, server(Behaviour()) as two:
        replay = replay_requests(evenly(10, 50.0), ReplayOptions((one, two), "m"))
    assert [r.url for r in replay.records] == [one, two] * 5


def test_a_server_that_is_not_there_is_one_error() -> None:
    with pytest.raises(ServerError, match="cannot be used"):
        replay_requests(evenly(2, 50.0), ReplayOptions(("http://127.0.0.1:9",), "m"))
    with pytest.raises(BadRequest, match="positive speed"):
        replay_requests(evenly(2, 50.0), ReplayOptions(("http://127.0.0.1:9",), "m", speed=0))


def test_ctrl_c_ends_with_the_results_so_far_and_metrics_are_served(tmp_path: Path) -> None:
    write_requests([evenly(4000, 20.0)], tmp_path / "w.parquet", "parquet")
    with server(Behaviour(first_s=0.05)) as url:
        command = [sys.executable, "-m", "servegen.cli", "replay", "w.parquet", "--url", url, "--model", "m"]
        command += ["--json", "r.json", "--records", "r.parquet", "--metrics-port", "0"]
        command[-1] = str(free_port())
        process = subprocess.Popen(
            command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
        )
        try:
            metrics = scrape(int(command[-1]), at_least=20)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0, err
    assert "servegen_time_to_first_token_seconds_bucket" in metrics
    assert "servegen_requests_failed_total 0.0" in metrics
    summary = json.loads((tmp_path / "r.json").read_text())
    assert summary["interrupted"]
    assert 20 <= summary["all"]["sent"] < 4000
    assert summary["all"]["failed"] == 0
    assert "stopped before its end" in out
    assert len(read_rows(tmp_path / "r.parquet", Record)) == summary["all"]["sent"]


def free_port() -> int:
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def scrape(port: int, at_least: int) -> str:
    """Return the metrics once so many requests were sent."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as response:
                text = response.read().decode()
            sent = re.search(r"^servegen_requests_sent_total (\S+)", text, re.MULTILINE)
            if sent and float(sent[1]) >= at_least:
                return text
        except OSError:
            pass
        time.sleep(0.1)
    raise AssertionError("no metrics after two minutes")


def test_records_read_back_and_others_are_refused(tmp_path: Path) -> None:
    with server(Behaviour()) as url:
        replay = replay_requests(evenly(5, 50.0), ReplayOptions((url,), "m"))
    write_records(replay.records, tmp_path / "r.parquet")
    assert tuple(read_rows(tmp_path / "r.parquet", Record)) == replay.records
    write_requests([evenly(3, 1.0)], tmp_path / "w.parquet", "parquet")
    with pytest.raises(BadFile, match="missing required field"):
        read_rows(tmp_path / "w.parquet", Record)


def test_a_word_tokeniser_gets_words() -> None:
    async def count(prompt: str) -> int:
        return len(prompt.split()) + 4

    maker = asyncio.run(learn_prompts(count))
    assert (maker.alphabet, maker.added, maker.per_word, maker.checked) == ("words", 4, 1, True)
    assert len(maker.prompt(100, 5).split()) == 96


def test_prompts_differ_from_their_first_words_and_share_what_they_should() -> None:
    maker = PromptMaker("letters")
    one, two = maker.prompt(500, 1), maker.prompt(500, 2)
    assert len(one) == len(two) == 500
    assert one[:8] != two[:8]
    assert maker.prompt(300, 1) == one[:300]  # a later turn begins with the earlier one
    shared = [maker.prompt(100, key, "client", shared=60) for key in (3, 4)]
    assert shared[0][:60] == shared[1][:60]
    assert shared[0][60:68] != shared[1][60:68]
    assert len(maker.prompt(300_000, 1)) == 300_000
    assert len(set(ALPHABETS["words"])) == len(ALPHABETS["words"])
