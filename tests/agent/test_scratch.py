"""What raw traces take on a host's disk, and what is left of them."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from eroica.agent.window import Scratch
from eroica.settings import Settings
from eroica.wire.places import SAVING_PREFIX


def scratch_of(tmp_path: Path, job: str = "job", **settings: object) -> Scratch:
    scratch = Scratch(tmp_path / f"eroica-{os.getuid()}" / f"{job}@h", Settings(**settings))  # type: ignore[arg-type]
    scratch.prepare()
    return scratch


def fill(scratch: Scratch, window_id: int, size: int = 100) -> Path:
    directory = scratch.window(window_id) / "4"
    directory.mkdir(parents=True)
    (directory / "trace.json").write_bytes(bytes(size))
    return scratch.window(window_id)


def test_the_scratch_cap_is_shared_by_the_workers_of_a_host(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path, Settings(scratch_bytes=1_000_000))
    alone = scratch.event_budget(1)
    assert 1000 < alone < 10_000
    assert scratch.event_budget(4) == alone // 4
    assert scratch.event_budget(0) == alone


def test_windows_go_and_with_them_those_that_nobody_follows_and_at_last_everything(tmp_path: Path) -> None:
    scratch = scratch_of(tmp_path)
    former, followed, over = fill(scratch, 1), fill(scratch, 2), fill(scratch, 3)
    assert scratch.release(3) == "" and not over.exists()
    scratch.sweep({2})
    assert followed.exists() and not former.exists()
    scratch.remove()
    assert list(followed.parent.parent.iterdir()) == []


def test_what_a_killed_worker_was_saving_goes_and_what_a_living_one_saves_stays(tmp_path: Path) -> None:
    scratch = scratch_of(tmp_path, keep_traces=True)
    root = fill(scratch, 1).parent
    living, dead = root / f"{SAVING_PREFIX}{os.getpid()}", root / f"{SAVING_PREFIX}999999999"
    for place in (living, dead):
        place.mkdir()
        (place / "trace.json.tmp").touch()
    scratch.sweep({1})
    assert living.exists() and not dead.exists()


def test_kept_windows_count_against_half_of_the_cap_and_the_rest_is_not_kept(tmp_path: Path) -> None:
    scratch = scratch_of(tmp_path, keep_traces=True, scratch_bytes=1_000_000)
    before = scratch.event_budget(1)
    first, second = fill(scratch, 1, 400_000), fill(scratch, 2, 200_000)
    assert scratch.release(1) == ""
    assert scratch.event_budget(1) == pytest.approx(0.6 * before, rel=0.01)
    assert "window 2 were not kept" in scratch.release(2)
    scratch.sweep(set())
    scratch.remove()
    assert first.exists() and not second.exists()
    again = scratch_of(tmp_path, keep_traces=True, scratch_bytes=1_000_000)  # an agent that was started again
    assert again.event_budget(1) == pytest.approx(0.6 * before, rel=0.01)


def test_what_killed_agents_left_goes_after_a_day_but_nothing_that_was_kept_or_is_in_use(tmp_path: Path) -> None:
    old, kept, used = (scratch_of(tmp_path, name, keep_traces=name == "kept") for name in ("old", "kept", "used"))
    stranger = tmp_path / "somebody" / "x@h"
    stranger.mkdir(parents=True)
    long_ago = time.time() - 100_000
    for scratch in (old, kept, used):
        window = fill(scratch, 1)
        for place in (window, window.parent, *window.parent.iterdir()):
            os.utime(place, (long_ago, long_ago))
    fill(used, 2)
    os.utime(stranger, (long_ago, long_ago))
    scratch_of(tmp_path, "new")
    assert not old.window(1).parent.exists()
    assert kept.window(1).exists() and used.window(1).exists() and stranger.exists()
