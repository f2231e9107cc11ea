"""Captures that several tests share: real processes, seconds each."""

from __future__ import annotations

from pathlib import Path

import pytest

from prismllm import Rehearsal, examples
from prismllm.capture import CaptureOptions
from prismllm.graph import Job
from prismllm.rank_classes import capture_job

GPT = str(Path(examples.__file__).parent / "gpt.py")
#: Before a script: its own work is its sleep and nothing else, so the load of this machine is in no time.
CLOCKED = str(Path(__file__).parent / "clocked.py")


def options(out: Path, world: int, *arguments: str, script: tuple[str, ...] = (GPT,), **others) -> CaptureOptions:
    chosen = {"timed": 2, "slice_size": 4, "timeout_s": 60.0} | others
    return CaptureOptions((*script, *arguments), world, out, **chosen)


@pytest.fixture(scope="session")
def column(tmp_path_factory) -> tuple[Path, Job]:
    """64 ranks: 2 pipeline stages, 2 tensor-parallel ranks, FSDP2 over 16; found by running a few, times exact."""
    out = tmp_path_factory.mktemp("column")
    wanted = options(out / "c", 64, "--pp", "2", "--tp", "2", "--data", "fsdp", "--layers", "2", "--microbatches", "2",
                     "--batch", "2", "--width", "32", "--length", "16", "--pace", "0.006", check_s=0.0,
                     script=(CLOCKED, GPT))  # fmt: skip
    return out / "c", capture_job(wanted)


@pytest.fixture(scope="session")
def rehearsal(column) -> Rehearsal:
    return Rehearsal(column[1])
