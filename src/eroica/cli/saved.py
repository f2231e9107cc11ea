"""What `report` and `diff` share: windows chosen from what lies on disk, and their patterns, damaged ones left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from eroica.archive.load import Saved, SavedRun, SavedWindow, open_saved
from eroica.errors import InputError, UsageError
from eroica.model.pattern import WorkerPattern
from eroica.model.verdict import Verdict
from eroica.offline.saved import baseline_number, doubted_number, examine_window, job_of, usable_patterns
from eroica.settings import Settings


def split_window(text: str) -> tuple[Path, str]:
    """`RUN@3` or `RUN@baseline` -> path and window; a path that exists is taken as it is.

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
    """What lies at a path that the user gave.

    Raises:
        UsageError: Nothing does.
        InputError: It is nothing of ours.
    """
    try:
        if not path.exists():
            raise UsageError(f"there is nothing at {path}")
        return open_saved(path)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error


def choose_window(saved: Saved, which: str, notes: list[str]) -> SavedWindow:
    """The window meant by a number, by "baseline", or by nothing: the one that the final verdict came from.

    Args:
        saved: What was opened.
        which: As after the "@".
        notes: Gets a line where another window than that had to be taken.

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
    baselines = [window for window in saved.windows if window.purpose == "baseline" and window.pattern_files]
    if which == "baseline":
        if not baselines:
            raise UsageError(f"{saved.directory} has no baseline window")
        return baselines[-1]
    origin = saved.origin()
    if origin is not None and origin.pattern_files:
        return origin
    others = [window for window in saved.windows if window.pattern_files and window.purpose != "baseline"]
    if others and origin is not None:
        notes.append(f"the window of the final verdict has no patterns; window {others[-1].window_id} was taken")
    elif baselines and not others:
        notes.append(f"only the baseline window {baselines[-1].window_id} has patterns")
    if not (others or baselines):
        raise InputError(f"{saved.directory} has no window with patterns")
    return (others or baselines)[-1]


def diagnose_again(run: SavedRun | None, window: SavedWindow, settings: Settings) -> Verdict:
    """The verdict on a saved window by the present rules.

    Args:
        run: Where it belongs; its baseline window is compared with. None: the patterns are all there is.
        window: The window.
        settings: All tunables.

    Raises:
        InputError: It has neither patterns nor what was seen of a standstill.
    """
    job = run.job if run is not None else job_of(window)
    baseline, doubted = (baseline_of(run, window, which) for which in (baseline_number, doubted_number))
    return examine_window(job, window, baseline, settings, doubted).verdict


def baseline_of(
    run: SavedRun | None,
    window: SavedWindow,
    which: Callable[[SavedWindow, Iterable[int]], int] = baseline_number,
) -> Sequence[WorkerPattern]:
    """Patterns of the healthy window that a window is compared with; none for those that are judged alone.

    Args:
        run: The run directory.
        window: To be judged again.
        which: Chooses among the numbers of the baseline windows before it.
    """
    windows = run.windows if run is not None else ()
    earlier = {one.window_id: one for one in windows if one.purpose == "baseline" and one.pattern_files}
    known = sorted(number for number in earlier if number < window.window_id)
    while known:
        number = which(window, known)
        if number not in known:
            return ()
        try:
            return usable_patterns(earlier[number])[1]
        except InputError:
            known.remove(number)
    return ()
