"""`eroica report DIR --perfetto FILE`: chosen workers as one trace for ui.perfetto.dev."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from eroica.archive.load import SavedRun, SavedWindow
from eroica.cli.output import check_target
from eroica.errors import InputError, UsageError
from eroica.localize.axis import TimeAxis, fit_axis
from eroica.model.pattern import WorkerPattern
from eroica.model.verdict import Verdict
from eroica.settings import Settings
from eroica.views.chrome_trace import OnAxis
from eroica.views.lanes import Drawn, draw_kept, read_sources
from eroica.views.material import Material, gather_saved
from eroica.views.perfetto import Alignment, choose_workers, write_perfetto

#: All workers of a window are asked how clocks run where the chosen ones share no collective; of more it takes seconds.
_MOST_FOR_AXIS = 2_000
#: So few are all asked at once, as for the verdict.
_FEW = 128


def check_trace_target(path: Path | None, ranks: Sequence[int]) -> None:
    """Fail before the work.

    Raises:
        UsageError: Workers were named without a trace, or nothing can be written there.
    """
    if ranks and path is None:
        raise UsageError("--worker chooses workers for --perfetto; give that a file")
    if str(path) == "-":
        raise UsageError("--perfetto needs a file: a trace is not to be read on a terminal")
    check_target(path, "--perfetto")


def write_chosen(
    path: Path, saved: SavedRun | SavedWindow | Verdict, number: int | None, ranks: Sequence[int], settings: Settings
) -> tuple[str, ...]:
    """Write the trace; returns what to tell about it.

    Raises:
        UsageError: There are no patterns at this place, or not of these workers.
        InputError: Nothing can be drawn, or the file cannot be written.
    """
    if isinstance(saved, Verdict):
        raise UsageError("a verdict alone holds no traces; give --perfetto its run directory")
    material = gather_saved(saved, number)
    window = saved if isinstance(saved, SavedWindow) else saved.origin() if number is None else saved.window(number)
    chosen = choose_workers(material, ranks)
    job, sources = material.verdict.job, read_sources(window.directory) if window is not None else {}

    def whole(pattern: WorkerPattern) -> Drawn | None:
        return draw_kept(pattern, job, os.environ, sources, settings)

    try:
        notes = write_perfetto(path, material, chosen, align(material, chosen), whole)
    except OSError as error:
        raise InputError(f"--perfetto {path} cannot be written: {error.strerror or error}") from error
    return f"{path}: open it in https://ui.perfetto.dev or chrome://tracing", *notes


def align(material: Material, ranks: Sequence[int]) -> Alignment:
    """The chosen workers' clocks: through all workers where these are few, else by what the chosen ones share."""
    chosen = [material.patterns[material.places[rank]] for rank in ranks]
    few = len(material.patterns) <= _FEW
    axis = _fitted(material.patterns if few else chosen)
    if not few and _placed(axis, ranks) < len(ranks) and len(material.patterns) <= _MOST_FOR_AXIS:
        further = _fitted(material.patterns)
        axis = further if _placed(further, ranks) > _placed(axis, ranks) else axis
    if axis is None:
        return Alignment()
    places = {rank: OnAxis(place.offset_ns, 1 + place.drift) for rank, place in axis.places.items() if rank in ranks}
    worst = max((axis.places[rank].uncertainty_ns for rank in places), default=0.0)
    return Alignment(places, worst / 1e3, axis.executions, axis.unplaced)


def _placed(axis: TimeAxis | None, ranks: Sequence[int]) -> int:
    return sum(rank in axis.places for rank in ranks) if axis is not None else 0


def _fitted(patterns: Sequence[WorkerPattern]) -> TimeAxis | None:
    """None where a damaged pattern spoils it."""
    try:
        return fit_axis(patterns)
    except InputError:
        return None
