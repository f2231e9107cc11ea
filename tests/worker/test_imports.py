"""What lives in the training process, or samples beside it, loads nothing beyond the standard library."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import eroica.worker

HEAVY = ("numpy", "msgspec", "torch", "httpx", "rich")
WORKER = sorted(path.stem for path in Path(eroica.worker.__path__[0]).glob("*.py") if path.stem != "__init__")


def loaded(*modules: str) -> list[str]:
    """Heavy packages that a fresh interpreter holds once it has imported these modules."""
    code = (
        "import importlib, sys\n"
        f"for name in {list(modules)!r}: importlib.import_module(name)\n"
        f"print(*[name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, timeout=120)
    return done.stdout.split()


@pytest.mark.parametrize("module", ["eroica.hardware.sampler"])
def test_the_sampler_loads_the_standard_library_only(module: str) -> None:
    assert loaded(module) == []


def test_the_modules_in_the_training_process_load_the_standard_library_only() -> None:
    assert "session" in WORKER
    assert loaded(*(f"eroica.worker.{name}" for name in WORKER)) == []
