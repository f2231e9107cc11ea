"""What Eroica itself has kept of a job, diagnosed again from its patterns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from eroica.archive.load import Saved, SavedRun, SavedWindow, count_patterns, open_saved, read_blockage, read_patterns
from eroica.diagnosis.blocked import diagnose_blockage
from eroica.engine import HERE, Engine, choose_engine
from eroica.errors import EroicaError, InputError, UsageError
from eroica.localize.fleet import leave_out_damaged
from eroica.model.pattern import WorkerPattern
from eroica.model.verdict import Verdict
from eroica.model.window import ALONE, REFUSED, Window
from eroica.offline.jobs import Part
from eroica.offline.standstills import standstill_window
from eroica.pipeline import analyze
from eroica.settings import Settings


def parts_of_saved(path: Path, settings: Settings, problems: list[EroicaError]) -> list[Part]:
    """Judge again every window of a run directory, one window, or a directory of patterns.

    A window belongs to the job that its verdict names. Baseline windows are judged only if there are no others.

    Args:
        path: As `eroica.archive.load` understands it.
        settings: All tunables.
        problems: Gets what could not be used.
    """
    try:
        saved = open_saved(path)
    except InputError as error:
        problems.append(error)
        return []
    if isinstance(saved, Verdict):
        return []
    run, windows = (saved, saved.windows) if isinstance(saved, SavedRun) else (None, (saved,))
    if not windows:
        problems.append(InputError(f"{path} holds no window of Eroica that can be diagnosed"))
    parts = []
    for window in [one for one in windows if one.purpose != "baseline"] or windows:
        try:
            parts.append(examine_again(run, window, settings))
        except InputError as error:
            problems.append(error)
    return parts


def compared_with(window: SavedWindow, known: Iterable[int]) -> tuple[int, int]:
    """Return the numbers of the trusted and of the untrusted baseline window to compare with; 0 for none.

    They are those of the first verdict, because the job may have refused a later baseline window. Without such a note,
    the last baseline window before this one is trusted.

    Args:
        window: To be judged again.
        known: Numbers of the job's baseline windows.
    """
    if window.purpose in ALONE:
        return 0, 0
    latest = max((number for number in known if number < window.window_id or not window.window_id), default=0)
    judged = window.verdict.window if window.verdict is not None else None
    if judged is None or judged.compared_with is None:
        return latest, 0
    return judged.compared_with, 0 if judged.compared_with else judged.doubted or latest


def usable_patterns(
    window: SavedWindow, engine: Engine = HERE
) -> tuple[Window, tuple[WorkerPattern, ...], tuple[str, ...]]:
    """Return the request for a window, its usable patterns, and notes.

    Args:
        window: The window.
        engine: Where they are decoded and looked through.

    Raises:
        InputError: There is none.
    """
    asked, patterns, notes = read_patterns(window, engine)
    kept, damaged = leave_out_damaged(patterns, engine)
    if not kept:
        raise InputError(f"no usable pattern in {window.directory}: {damaged[0]}")
    return asked, kept, (*window.notes, *notes, *damaged)


# --- chosen by the user ---


def split_window(text: str) -> tuple[Path, str]:
    """Split `RUN@3` or `RUN@baseline` into path and window; a path that exists is not split.

    Raises:
        UsageError: There is nothing at this path.
    """
    path = Path(text)
    if path.exists():
        return path, ""
    head, _, window = text.rpartition("@")
    if head and (window.isdecimal() or window == "baseline") and Path(head).exists():
        return Path(head), window
    raise UsageError(f"there is nothing at {text}")


def open_place(path: Path) -> Saved:
    """Open a path that the user gave.

    Raises:
        UsageError: There is nothing at this path.
        InputError: Eroica did not write it, or it cannot be read.
    """
    try:
        if not path.exists():
            raise UsageError(f"there is nothing at {path}")
        return open_saved(path)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error


def choose_window(saved: Saved, which: str) -> SavedWindow:
    """Return the window of a number, the baseline window, or that of the final verdict; where it is gone, the last one.

    Args:
        saved: What was opened.
        which: As after the "@".

    Raises:
        UsageError: There is no such window.
        InputError: No window has patterns.
    """
    if isinstance(saved, Verdict):
        raise UsageError("a verdict alone holds no patterns to compare; give its run directory")
    if isinstance(saved, SavedWindow):
        if which:
            raise UsageError(f"{saved.directory} is a single window; it has no window {which}")
        return saved
    if which.isdecimal():
        return saved.window(int(which))
    kept = [window for window in saved.windows if window.pattern_files]
    baselines = [window for window in kept if window.purpose == "baseline"]
    if which == "baseline" and not baselines:
        raise UsageError(f"{saved.directory} has no baseline window")
    others = [window for window in kept if window.purpose != "baseline"]
    origin = [window for window in kept if window == saved.origin()]
    chosen = baselines if which == "baseline" else origin or others or baselines
    if not chosen:
        raise InputError(f"{saved.directory} has no window with patterns")
    return chosen[-1]


def examine_again(run: SavedRun | None, saved: SavedWindow, settings: Settings) -> Part:
    """Diagnose a saved window by the present rules.

    Args:
        run: Where it belongs; its baseline window is compared with. None: the patterns are all there is.
        saved: The window.
        settings: All tunables.

    Raises:
        InputError: It holds neither usable patterns nor what was seen of a standstill.
    """
    job = run.job if run is not None else saved.directory.resolve().name
    job = saved.verdict.job if saved.verdict is not None else job
    label = f"window {saved.window_id}" if saved.window_id else ""
    if saved.has_blockage and not saved.pattern_files:
        blockage = read_blockage(saved)
        verdict = diagnose_blockage(blockage, job, settings)
        if verdict is None:
            raise InputError(f"{saved.directory}: workers moved between the two looks, so nothing stood still")
        return Part(job, label, saved.window or standstill_window(blockage), verdict, blockage=blockage)
    baseline, doubted = baselines_of(run, saved)
    window, patterns, notes = usable_patterns(saved, choose_engine(settings.engine, count_patterns(saved)))
    expected = saved.verdict.coverage.workers_expected if saved.verdict is not None else None
    if doubted and saved.verdict is not None:
        notes = (*notes, *(note for note in saved.verdict.coverage.notes if note.startswith(REFUSED)))
    verdict = analyze(job, window, patterns, baseline, expected, notes, settings, doubted=doubted)
    return Part(job, label, window, verdict, patterns)


def baselines_of(run: SavedRun | None, window: SavedWindow) -> tuple[Sequence[WorkerPattern], Sequence[WorkerPattern]]:
    """Return the patterns of the trusted baseline window, or of the untrusted one; at least one of the two is empty."""
    windows = run.windows if run is not None else ()
    earlier = {
        one.window_id: one
        for one in windows
        if one.purpose == "baseline" and one.pattern_files and one.window_id < window.window_id
    }
    trusted, doubted = compared_with(window, earlier)
    chosen = earlier.get(trusted or doubted)
    try:
        patterns = usable_patterns(chosen)[1] if chosen is not None else ()
    except InputError:
        patterns = ()
    return (patterns, ()) if trusted else ((), patterns)
