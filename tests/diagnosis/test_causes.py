"""Kept windows of real jobs, one for each cause and scope: what is named, as facts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import corpus_judge  # noqa: E402
from corpus_entry import ENTRIES, marks, read_entry  # noqa: E402
from eroica.diagnosis.labels import LABELS  # noqa: E402
from eroica.model.causes import CATALOG  # noqa: E402
from eroica.model.verdict import Verdict  # noqa: E402

#: Window, cause, scope, and the function that is named ("" where any is right).
WINDOWS = (
    ("blocking-checkpoint-fsdp2-middle-0/3", "blocking-checkpoint", "some", "CheckpointWriter.save_state"),
    ("blocking-log-fsdp2-middle-0/3", "blocking-logging", "some", "MetricsLog.log_step"),
    ("device-collate-0/2", "slow-data-loading", "all", "Collator.word_by_word"),
    ("device-neighbor-2/2", "sibling-process", "all", ""),
    ("device-norms-0/2", "host-bound", "all", ""),
    ("device-pageable-0/2", "memory-operation-storm", "all", ""),
    ("exam_jobs-audit_turns-0/2", "python-on-critical-path", "rotating", "AuditFile.write_turn"),
    ("exam_paced-cnn_core_sharing-0/2", "cpu-contention", "some", ""),
    ("exam_paced-contrastive_bank-0/2", "slow-collective-everywhere", "all", ""),
    ("exam_programs-lightning_anomaly_watch-0/2", "misconfiguration", "some", ""),
    ("gc-pause-ddp-middle-0/2", "garbage-collection", "rotating", ""),
    ("hidden-collections-42/3", "garbage-collection", "some", ""),
    ("many-loader-workers-ddp-middle-0/2", "cpu-contention", "all", "TokenizedText._split_text"),
    ("memory-copies-fsdp2-middle-0/5", "memory-operation-storm", "some", ""),
    ("reports-metric_gathers-0/2", "fragmented-collectives", "all", ""),
    ("slow-backward-fsdp2-middle-0/5", "python-on-critical-path", "some", "GradientScale.scale_grad"),
    ("slow-compute-fsdp2-middle-0/5", "compute-slow", "some", ""),
    ("slow-storage-fsdp2-middle-0/5", "slow-storage-read", "some", "StoredTokens._fetch_block"),
    ("wandering-load-fsdp2-middle-0/5", "load-imbalance", "rotating", ""),
)


def verdict_on(key: str) -> tuple[Verdict, bool]:
    """The verdict on a kept window, and whether it is right in word, cause, workers and file."""
    name, _, number = key.rpartition("/")
    entry = read_entry(ENTRIES / f"{name}.msgpack.xz")
    one = next(window for window in entry.windows if window.window.window_id == int(number))
    assert one.truth is not None
    verdict = corpus_judge.verdict_of(entry, one, *corpus_judge.baselines(entry, one))
    assert verdict is not None
    return verdict, marks(verdict, one.truth).right


@pytest.mark.parametrize(("key", "cause", "scope", "function"), WINDOWS)
def test_the_cause_of_a_real_job_is_named(key: str, cause: str, scope: str, function: str) -> None:
    verdict, is_right = verdict_on(key)
    found = verdict.cause
    assert is_right and found is not None, verdict.summary
    assert (found.cause, found.scope) == (cause, scope), verdict.summary
    assert not function or found.function.name == function
    assert found.gain is not None and 0 < found.gain <= 1 and 0.25 <= found.confidence <= 0.99


@pytest.mark.parametrize("key", ["slow-compute-fsdp2-middle-0/1", "exam_paced-pipeline_wide_head-0/1"])
def test_a_healthy_window_of_a_real_job_has_no_cause(key: str) -> None:
    verdict, is_right = verdict_on(key)
    assert is_right and verdict.cause is None, verdict.summary


def test_every_label_has_an_entry_in_the_catalog() -> None:
    assert {cause for cause, _ in LABELS if cause} <= set(CATALOG)


# --- the catalog and its pages ---


PAGES = ROOT / "docs" / "causes"


@pytest.mark.parametrize("slug", sorted(CATALOG))
def test_every_cause_has_a_page_with_meaning_example_evidence_and_next_step(slug: str) -> None:
    text = (PAGES / f"{slug}.md").read_text(encoding="utf-8")
    assert text.startswith("# ")
    places = [text.index(f"\n## {heading}\n") for heading in ("Meaning", "Example", "Evidence", "What to do")]
    assert places == sorted(places)


def test_every_page_belongs_to_a_cause() -> None:
    assert {page.stem for page in PAGES.glob("*.md")} <= set(CATALOG)
