"""Put a run directory into the corpus, with the truth of its windows.

    python benchmarks/corpus_keep.py RUN --name NAME --fault KIND --truth TRUTH.json --layout ddp --origin "..."

TRUTH.json holds the fields of `corpus_entry.Truth` for windows with the fault. `--onset N` is the first iteration with
it: windows before are healthy, and one that spans it is left out, unless `--onset` lies within its first tenth, or
later windows are compared with it.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from corpus_entry import ENTRIES, HEALTHY, CorpusWindow, Entry, Truth, Use, pattern_map, write_entry
from eroica.archive.load import SavedRun, SavedWindow, open_saved, read_blockage
from eroica.errors import InputError
from eroica.model.pattern import WorkerPattern
from eroica.model.window import Window
from eroica.offline.saved import compared_with, usable_patterns
from machine import machine_facts, revision

#: A window in whose first so many a fault begins is one with the fault.
_BEGINS_WITHIN = 0.1
#: Iterations that tell how long one took before the fault: without those of the job's start.
_WARM = 20
NEVER = 10**9


def kept_run(  # noqa: PLR0913 - what an entry states
    run: Path,
    *,
    name: str,
    origin: str,
    fault: str,
    layout: str,
    truth: Truth,
    onset: int | None,
    settings: str = "default",
    use: Use = "tuned on",
    launch: str = "",
) -> Entry:
    """An entry made of a run directory.

    Args:
        run: Eroica's run directory.
        name: Name of the entry.
        origin: Where the job comes from.
        fault: Kind of the fault.
        layout: How the job is spread.
        truth: Of windows with the fault.
        onset: First iteration with it; None = never.
        settings: "default", or what was set.
        use: Whether rules may have been tuned to it.
        launch: What starts it, with the framework if there is one.

    Raises:
        InputError: There is no window in it that can be used.
    """
    saved = open_saved(run)
    if not isinstance(saved, SavedRun):
        raise InputError(f"{run} is no run directory")
    healthy_s = _healthy_s(saved, onset)
    windows, known = [], []
    for one in saved.windows:
        kept = _window(one, known, truth, onset, healthy_s)
        if kept is None:
            continue
        windows.append(kept)
        if kept.window.purpose == "baseline":
            known.append(kept.window.window_id)
    compared = {one.compared_with for one in windows}
    windows = [one for one in windows if one.truth is not None or one.window.window_id in compared]
    if not windows:
        raise InputError(f"{run} holds no window that can be kept")
    today = time.strftime("%Y-%m-%d")
    return Entry(
        name=name, origin=origin, fault=fault, layout=layout, launch=launch, settings=settings, use=use, recorded=today,
        since="" if use == "exam" else today, workers=max(one.workers_expected or 0 for one in windows),
        revision=revision(), machine={**machine_facts(), "load": round(os.getloadavg()[0], 2)}, onset=onset,
        windows=tuple(windows), history=saved.history,
    )  # fmt: skip


def _window(
    saved: SavedWindow, known: Sequence[int], truth: Truth, onset: int | None, healthy_s: float
) -> CorpusWindow | None:
    if saved.has_blockage and not saved.pattern_files:
        return _standstill(saved, truth)
    try:
        window, patterns, notes = usable_patterns(saved)
    except InputError:
        return None
    true = _true(window, patterns, truth, NEVER if onset is None else onset, healthy_s)
    if true is None and window.purpose != "baseline":
        return None
    return CorpusWindow(
        window=window,
        truth=true,
        compared_with=compared_with(saved, known)[0],
        workers_expected=max(pattern.worker.world_size for pattern in patterns),
        patterns=tuple(map(pattern_map, patterns)),
        notes=notes,
    )


def _standstill(saved: SavedWindow, truth: Truth) -> CorpusWindow | None:
    if truth.verdict != "blocked" or saved.window is None:
        return None
    blockage = read_blockage(saved)
    expected = saved.verdict.coverage.workers_expected if saved.verdict is not None else None
    return CorpusWindow(window=saved.window, truth=truth, blockage=blockage, workers_expected=expected)


def _true(
    window: Window, patterns: Sequence[WorkerPattern], truth: Truth, onset: int, healthy_s: float
) -> Truth | None:
    first = min(pattern.first_iteration for pattern in patterns)
    last = max(pattern.last_iteration for pattern in patterns)
    if last <= onset:
        return HEALTHY
    if first + _BEGINS_WITHIN * (last - first) < onset or truth.verdict == "blocked":
        return None
    mean_s = max(pattern.duration_s / max(1, pattern.last_iteration - pattern.first_iteration) for pattern in patterns)
    if truth.verdict != "slow" or not healthy_s:
        return truth
    return msgspec.structs.replace(truth, gain=round(max(0.0, 1.0 - healthy_s / mean_s), 4))


def _healthy_s(run: SavedRun, onset: int | None) -> float:
    """Median over stretches before the fault, s; 0 where there are none."""
    if run.history is None or onset is None:
        return 0.0
    times: list[float] = []
    before = 0
    for iteration, mean_ms in zip(run.history.iteration, run.history.mean_ms, strict=True):
        if before >= _WARM and iteration <= onset:
            times.append(mean_ms)
        before = iteration
    times.sort()
    return times[len(times) // 2] / 1e3 if times else 0.0


def read_options() -> Any:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="run directory of Eroica")
    parser.add_argument("--name", required=True)
    parser.add_argument("--fault", required=True, help='kind of the fault; "none" for a healthy job')
    parser.add_argument("--layout", required=True, help="how the job is spread: see corpus_entry.Entry")
    parser.add_argument("--launch", default="", help="what starts it, with the framework: torchrun, Lightning")
    parser.add_argument("--origin", required=True, help="where the job comes from: a public report, a framework")
    parser.add_argument("--truth", type=Path, help="fields of corpus_entry.Truth as JSON; left out for a healthy job")
    parser.add_argument("--onset", type=int, help="first iteration with the fault; left out for a healthy job")
    parser.add_argument("--settings", default="default")
    parser.add_argument("--exam", action="store_true", help="nothing has been tuned to it")
    parser.add_argument("--out", type=Path, default=ENTRIES)
    return parser.parse_args()


def main() -> int:
    options = read_options()
    try:
        truth = msgspec.json.decode(options.truth.read_bytes(), type=Truth) if options.truth else HEALTHY
        entry = kept_run(
            options.run, name=options.name, origin=options.origin, fault=options.fault, layout=options.layout,
            launch=options.launch,
            truth=truth, onset=options.onset, settings=options.settings, use="exam" if options.exam else "tuned on",
        )  # fmt: skip
    except (InputError, OSError, msgspec.DecodeError) as error:
        print(f"keep.py: {error}", file=sys.stderr)
        return 2
    path = write_entry(entry, options.out)
    print(f"{path.name}: {len(entry.windows)} windows, {path.stat().st_size / 1e3:.0f} KB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
