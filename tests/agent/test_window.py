"""What a window may cost the host."""

from __future__ import annotations

from pathlib import Path

from eroica.agent.window import event_budget


def test_the_scratch_cap_is_shared_by_the_workers_of_a_host(tmp_path: Path) -> None:
    alone = event_budget(tmp_path, 1, 1_000_000)
    assert 1000 < alone < 10_000
    assert event_budget(tmp_path, 4, 1_000_000) == alone // 4
    assert event_budget(tmp_path, 0, 1_000_000) == alone


def test_a_full_disk_leaves_the_least_budget_and_a_missing_directory_none(tmp_path: Path) -> None:
    assert event_budget(tmp_path, 1, 0) == 1
    assert event_budget(tmp_path / "gone", 1, 1_000_000) == 0
