"""The exposition: what it says, that it is well-formed, and that no job makes it grow."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families as plain_text

from eroica.model.verdict import Cost, Finding, Verdict, VerdictWord, Waits
from eroica.model.worker import Worker
from eroica.views.metrics import LONGEST_LABEL, MOST_BLAMED, MOST_HOSTS, Scrape, exposition
from eroica.wire.messages import JobStatus, WindowLine, WorkerStatus
from support.verdicts import cause, plain

OPEN = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
NASTY = 'a"b\\c\n{evil="1"} 7\n# HELP \x00\x1b[31m\u202e' + "é" * 5_000
WORDS = ("slow", "blocked", "healthy", "undetermined")
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def worker(rank: int, **more: Any) -> WorkerStatus:
    who = Worker(global_rank=rank, world_size=4, host="h", pid=rank + 1)
    return WorkerStatus(worker=who, state="steady", iteration=7, **more)


def job(*workers: WorkerStatus, name: str = "train", phase: str = "watching", **more: Any) -> JobStatus:
    return JobStatus(job=name, phase=phase, message="", workers=workers, **more)


CAUSE = cause("slow-data-loading", 2, function="load", hosts=("node-1",), gain=0.38, confidence=0.97)


def verdict(word: VerdictWord = "slow", found: Finding = CAUSE, **more: Any) -> Verdict:
    return plain(word, "", found, job="train", **more)


def read(scrape: Scrape, accept: str = OPEN) -> Samples:
    """Sample name and labels, without `run`, -> value; the library's parsers are strict."""
    body, content_type = exposition(scrape, accept)
    parse = open_metrics if content_type.startswith("application/openmetrics") else plain_text
    samples = [sample for family in parse(body.decode()) for sample in family.samples]
    keys = [(s.name, frozenset((k, v) for k, v in s.labels.items() if k != "run")) for s in samples]
    assert len(set(keys)) == len(keys), "a series occurs twice"
    return {key: sample.value for key, sample in zip(keys, samples, strict=True)}


def at(samples: Samples, name: str, **labels: str) -> float | None:
    return samples.get((name, frozenset(labels.items())))


def of(samples: Samples, name: str) -> dict[frozenset[tuple[str, str]], float]:
    return {labels: value for (each, labels), value in samples.items() if each == name}


def test_a_job_is_told_in_base_units() -> None:
    workers = (worker(0), worker(1, silent=True), worker(2, ended=True, silent=True))
    status = job(*workers, mean_ms=24.0, best_ms=18.0)
    seen = read(Scrape(status=status, workers_expected=4, report_ages_s={"a": 0.2, "b": 11.0}))
    assert at(seen, "eroica_iteration_mean_seconds") == 0.024 and at(seen, "eroica_iteration_best_seconds") == 0.018
    assert at(seen, "eroica_iterations_total") == 7
    assert [at(seen, f"eroica_workers_{what}") for what in ("expected", "alive", "silent")] == [4, 2, 1]
    assert [at(seen, "eroica_agents_expected"), at(seen, "eroica_agents_alive")] == [2, 1]
    assert at(seen, "eroica_agent_report_age_seconds", host="b") == 11.0
    assert at(seen, "eroica_agent_report_age_max_seconds") == 11.0
    assert at(seen, "process_resident_memory_bytes")


def test_before_the_first_verdict_no_word_is_on_and_nothing_is_made_up() -> None:
    seen = read(Scrape(status=job()))
    assert [at(seen, "eroica_verdict_state", verdict=word) for word in WORDS] == [0.0] * 4
    absent = ("eroica_verdict_gain_ratio", "eroica_iteration_mean_seconds", "eroica_agent_report_age_max_seconds")
    assert [name for name in absent if at(seen, name) is not None] == []


def test_a_verdict_is_one_word_and_its_cause() -> None:
    seen = read(Scrape(status=job(), verdict=verdict(), verdict_at=1e9, verdicts=(verdict(), verdict("healthy"))))
    assert [at(seen, "eroica_verdict_state", verdict=word) for word in WORDS] == [1.0, 0.0, 0.0, 0.0]
    found = {"cause": "slow-data-loading", "function": "load", "workers": "worker 2", "hosts": "node-1"}
    assert at(seen, "eroica_verdict_info", verdict="slow", **found) == 1.0
    assert at(seen, "eroica_verdict_gain_ratio") == 0.38 and at(seen, "eroica_verdict_confidence_ratio") == 0.97
    assert at(seen, "eroica_verdict_timestamp_seconds") == 1e9
    assert at(seen, "eroica_verdicts_total", verdict="healthy") == 1.0


def test_blame_is_conserved_whoever_gets_a_series() -> None:
    blamed = {rank: float(1000 - rank) for rank in range(100)}
    total = sum(blamed.values()) + 50_000.0 + 300.0  # of workers that are not listed, and withheld
    waits = Waits(total_ms=total, withheld_ms=300.0, blamed_ms=blamed, workers=1000)
    seen = read(Scrape(status=job(), verdict=verdict(waits=waits)))
    series = of(seen, "eroica_blame_seconds")
    assert len(series) == MOST_BLAMED + 1 and at(seen, "eroica_blame_seconds", worker="0") == 1.0
    withheld = at(seen, "eroica_blame_withheld_seconds")
    assert withheld == 0.3 and sum(series.values()) + withheld == pytest.approx(total / 1e3)


def test_windows_and_what_they_cost_are_counted() -> None:
    lines = tuple(
        WindowLine(window_id=n, purpose=p, phase="done") for n, p in enumerate(("slow", "slow", "baseline"), 1)
    )
    cost = Cost(window_stall_s=0.5, summarize_s=2.0, raw_bytes=300, pattern_bytes=20)
    seen = read(Scrape(status=job(windows=lines), verdicts=[verdict(cost=cost)] * 2, messages={"sent": 1}))
    assert at(seen, "eroica_windows_total", purpose="slow") == 2
    assert at(seen, "eroica_windows_total", purpose="manual") == 0
    names = ("window_stall_seconds", "summarize_seconds", "raw_bytes", "pattern_bytes")
    assert [at(seen, f"eroica_{name}_total") for name in names] == [1.0, 4.0, 600, 40]
    assert at(seen, "eroica_webhook_messages_total", result="failed") == 0


def monster() -> Scrape:
    """Ten thousand workers on as many hosts, all of them silent, with names that are an attack."""
    hosts = tuple(f"{n}{NASTY}" for n in range(10_000))
    found = cause(NASTY, *range(0, 10_000, 2), function=NASTY, hosts=hosts)
    waits = Waits(total_ms=1e9, withheld_ms=0.0, blamed_ms=dict.fromkeys(range(10_000), 1.0))
    workers = tuple(worker(rank, silent=True) for rank in range(10_000))
    ages = {f"{n}{NASTY}": 99.0 + n for n in range(10_000)} | {f"{NASTY}{n}": 1e6 + n for n in range(100)}
    return Scrape(
        status=job(*workers, name=NASTY, phase=NASTY), report_ages_s=ages, verdict=verdict(found=found, waits=waits)
    )


@pytest.mark.parametrize("accept", [OPEN, "text/html"])
def test_names_and_series_are_bounded_whatever_the_job_does(accept: str) -> None:
    seen = read(monster(), accept)
    assert len(seen) <= 75 + MOST_BLAMED + MOST_HOSTS
    assert {name.split("_")[0] for name, _ in seen} == {"eroica", "process"}
    assert at(seen, "eroica_workers_silent") == 10_000
    values = [value for _, labels in seen for _, value in labels]
    assert max(map(len, values)) <= LONGEST_LABEL and all(value.isprintable() for value in values)
    [info] = of(seen, "eroica_verdict_info")
    assert dict(info)["function"].startswith('a"b\\c {evil="1"} 7 # HELP')
