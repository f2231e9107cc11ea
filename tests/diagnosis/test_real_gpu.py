"""Windows of real jobs on one GPU, as they were captured: what is true about each is what its code was made to do.

One H100 (driver 580, PyTorch 2.11.0+cu130), one worker: a language model under DDP over NCCL, bfloat16, batches from
two loader processes. The faults begin after the first window, which the second one is compared with. In `other_process`
and `copies_to_host` the host's launching is not told apart from Python. Those of `head_by_head` are of an H200.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from eroica.model.pattern import LAUNCHING, WorkerPattern
from eroica.model.verdict import Verdict
from eroica.model.window import Window
from eroica.pipeline import analyze
from eroica.wire.codec import decode_record

HERE = Path(__file__).parent


def kept(job: str, number: int, kind: str) -> bytes:
    return next(path for path in HERE.glob(f"h?00/{job}-{number}.{kind}")).read_bytes()


def pattern(job: str, number: int) -> WorkerPattern:
    return decode_record(kept(job, number, "pattern"), WorkerPattern)


def verdict_on(job: str, number: int = 2, **window: object) -> Verdict:
    asked = msgspec.json.decode(kept(job, number, "json"), type=Window)
    past = (pattern(job, 1),) if number > 1 else ()
    return analyze(job, msgspec.structs.replace(asked, **window), (pattern(job, number),), past)


@pytest.mark.parametrize("job", ["small_kernels", "reads_each_norm", "attention_written_out"])
def test_eager_code_that_is_bound_by_launching_is_healthy(job: str) -> None:
    """The device works for 4 of 42 ms in the first, 33 of 50 in the others."""
    verdict = verdict_on(job, 1, purpose="manual")
    assert verdict.verdict == "healthy", verdict.summary
    rows = [row for row in pattern(job, 1).functions if row.key.name == LAUNCHING]
    assert {row.key.phase for row in rows} >= {"forward", "backward"}


def test_another_process_on_the_device_is_named() -> None:
    verdict = verdict_on("other_process")
    found = verdict.cause
    assert found is not None and found.cause == "sibling-process", verdict.summary
    assert "python3 (burn.py)" in verdict.summary and "cuda:0" in verdict.summary
    assert found.gain is not None and 0.5 <= found.gain <= 0.65  # 30 ms before, 75 beside it


def test_copies_to_the_host_name_who_makes_them() -> None:
    verdict = verdict_on("copies_to_host")
    found = verdict.cause
    assert found is not None and found.cause == "memory-operation-storm", verdict.summary
    assert "Memcpy DtoH (Device -> Pageable), which offload (train.py" in verdict.summary


def test_reading_each_gradients_norm_is_named() -> None:
    verdict = verdict_on("reads_each_norm")
    found = verdict.cause
    assert found is not None and found.cause == "host-bound", verdict.summary
    assert found.function.name == "grad_norms"
