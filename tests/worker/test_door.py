"""Other profilers in the training: seen, let pass, and left as they are."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest

from eroica.worker.tracer import _NAMES, ProfilerDoor


@pytest.fixture
def profiler(monkeypatch: pytest.MonkeyPatch) -> Any:
    """As much of torch as its profilers start and stop by."""
    torch, autograd, module = (
        types.ModuleType(name) for name in ("torch", "torch.autograd", "torch.autograd.profiler")
    )
    for name in _NAMES:
        setattr(module, name, lambda: None)
    setattr(module, "_is_profiler_enabled", False)  # noqa: B010 - a module declares no attributes
    setattr(autograd, "_profiler_enabled", lambda: False)  # noqa: B010
    setattr(autograd, "profiler", module)  # noqa: B010
    setattr(torch, "autograd", autograd)  # noqa: B010
    for one in (torch, autograd, module):
        monkeypatch.setitem(sys.modules, one.__name__, one)
    return module


def refuse() -> None:
    raise RuntimeError("Profiler is already enabled on this thread")


def test_a_profiler_of_the_user_is_seen_from_its_preparation_to_its_end(profiler: Any) -> None:
    ways: list[None] = []
    door = ProfilerDoor(lambda: ways.append(None))
    door.open()
    assert not door.taken
    profiler._prepare_profiler()
    profiler._enable_profiler()
    assert (door.taken, len(ways)) == (True, 2)
    profiler._disable_profiler()
    assert (door.taken, len(ways)) == (False, 2)


def test_a_profiler_that_was_there_before_the_door_is_seen(profiler: Any) -> None:
    profiler._is_profiler_enabled = True
    door = ProfilerDoor(lambda: None)
    door.open()
    assert door.taken
    profiler._disable_profiler()
    assert not door.taken


def test_a_profiler_that_torch_refuses_is_not_taken_for_a_running_one(profiler: Any) -> None:
    profiler._enable_profiler = refuse
    door = ProfilerDoor(lambda: None)
    door.open()
    profiler._prepare_profiler()
    profiler._is_profiler_enabled = True  # torch says so before it tries
    with pytest.raises(RuntimeError, match="already enabled"):
        profiler._enable_profiler()
    assert not door.taken


def test_leaving_takes_nothing_away_that_somebody_has_put_there_since(profiler: Any) -> None:
    original, theirs = profiler._prepare_profiler, refuse
    door = ProfilerDoor(lambda: None)
    door.open()
    profiler._enable_profiler = theirs
    door.close()
    assert profiler._prepare_profiler is original
    assert profiler._enable_profiler is theirs
