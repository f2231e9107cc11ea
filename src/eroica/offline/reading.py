"""One trace file -> its summary; runs in a process of its own."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from eroica.errors import InputError
from eroica.model.trace import TraceSummary
from eroica.settings import Settings
from eroica.summarize.recorded import summarize_recording
from eroica.trace.kineto import read_trace


def read_one(path: Path, rank_hint: int, settings: Settings) -> TraceSummary:
    """Read and summarize one file; what is wrong with it stands in the summary.

    Args:
        path: .json or .json.gz.
        rank_hint: Global rank that its name states, -1 if it does not.
        settings: All tunables.
    """
    began = time.perf_counter()
    try:
        summary = summarize_recording(read_trace(path), str(path), rank_hint, settings)
    except InputError as error:
        summary = TraceSummary(path=str(path), error=str(error))
    return msgspec.structs.replace(summary, seconds=time.perf_counter() - began)
