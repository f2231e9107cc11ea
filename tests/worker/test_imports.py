"""What lives in the training process, or samples beside it, loads nothing beyond the standard library."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import eroica.worker

HEAVY = ("numpy", "msgspec", "torch", "httpx", "rich")


def test_the_modules_in_the_training_process_and_the_sampler_load_the_standard_library_only() -> None:
    worker = [f"eroica.worker.{path.stem}" for path in Path(eroica.worker.__path__[0]).glob("[!_]*.py")]
    assert "eroica.worker.session" in worker
    code = (
        "import importlib, sys\n"
        f"for name in {[*worker, 'eroica.hardware.sampler']!r}: importlib.import_module(name)\n"
        f"print(*[name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split() == []
