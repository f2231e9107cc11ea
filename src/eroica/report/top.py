"""A running job in one screen of text: header, iteration times, windows with verdicts, workers, notes."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import msgspec
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from eroica.model.history import IterationHistory
from eroica.model.words import clean, milliseconds, seconds, sentence
from eroica.report.footer import age, shorten
from eroica.wire.messages import JobStatus, WindowLine, WorkerStatus

_STYLES = {"slow": "bold red", "blocked": "bold red", "healthy": "bold green", "undetermined": "bold yellow"}
_BARS = "▁▂▃▄▅▆▇█"
#: Least spread of the times, as a share of the lowest, that is not drawn flat.
_LEAST_SPREAD = 0.2
_STALE_S = 10.0
_SENTENCE_ROWS = 3
_MOST_WINDOWS = 3
_MOST_NOTES = 2
#: Rows of workers on a screen without a height.
_MOST_WORKERS = 40
_NARROW = 60
#: Wrapping needs one; its width does not count.
_ANY_CONSOLE = Console(file=io.StringIO(), width=80)
_PURPOSES = {
    "baseline": " (baseline)",
    "early": " (early)",
    "manual": " (by hand)",
    "blocked": " (standstill)",
    "communication": " (communication)",
}
_PHASES = {
    "probe": "measuring one iteration",
    "window": "capturing",
    "patterns": "summarizing",
    "analysis": "comparing",
    "passed": "done, it went on by itself",
    "restarted": "done, the job was started again",
}
_ENDINGS = {"signed-off": "ended in order", "unknown": "GONE, nobody saw how"}


class View(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of one screen.

    Attributes:
        status: The job.
        history: Its iteration times, None if unknown.
        where: Run directory or address.
        link: The live page; empty without one.
        silence_s: Age of `status`.
        answer: Result of the last key.
        keys: Whether keys do anything.
    """

    status: JobStatus
    history: IterationHistory | None = None
    where: str = ""
    link: str = ""
    silence_s: float = 0.0
    answer: str = ""
    keys: bool = False


def build_screen(view: View, width: int, height: int | None = None) -> list[Text]:
    """Return at most `height` lines (None: no limit) of at most `width` cells."""
    head = [*_header(view, width), *_pace(view, width)]
    tail = [_keys(view)] if view.keys else []
    notes = list(_notes(view.status.notes, width))
    if height is None:
        middle = [*_windows(view.status, width, 1_000), *_workers(view.status, width, _MOST_WORKERS + 3), *notes]
    else:
        room = max(0, height - len(head) - len(tail))
        windows = list(_windows(view.status, width, max(2, room // 2)))
        notes = notes if len(windows) + len(notes) + 6 <= room else []
        middle = [*windows, *_workers(view.status, width, room - len(windows) - len(notes)), *notes][:room]
        middle += [Text()] * (room - len(middle)) if tail else []
    return [_cut(line, width) for line in [*head, *middle, *tail]]


def _cut(line: Text, width: int) -> Text:
    cut = line.copy()
    if cell_len(cut.plain) > width:
        cut.truncate(width, overflow="ellipsis")
    return cut


def _header(view: View, width: int) -> Iterator[Text]:
    status = view.status
    stale = f"no news for {age(view.silence_s)}" if view.silence_s >= _STALE_S else ""
    phase = stale or clean(status.phase, 20)
    style = _STYLES.get(status.phase, "bold yellow" if stale or status.phase == "silent" else "bold")
    yield Text.assemble(
        (" eroica ", "reverse"), " ", (clean(status.job, max(8, width - len(phase) - 12)), "bold"), "  ", (phase, style)
    )
    facts = [f"iteration {status.iteration}"] if status.iteration else []
    if status.mean_ms is not None:
        facts.append(f"{milliseconds(status.mean_ms)} now")
    if status.best_ms is not None:
        facts.append(f"{milliseconds(status.best_ms)} at best")
    yield from _wrapped(Text(" · ".join([*facts, _counts(status)])), width, 3)
    if status.message and not stale:
        yield from _wrapped(Text(sentence(status.message), style="dim"), width, 2)
    if status.communication and not stale:
        yield Text(clean(status.communication, width), style="dim")
    if view.link and cell_len(view.link) <= width:
        yield Text(view.link, style="dim")


def _counts(status: JobStatus) -> str:
    """Return how many workers there are, and how many in each state."""
    states = Counter(_state(worker)[::-1] for worker in status.workers)
    number, hosts = len(status.workers), len(status.hosts)
    on = f" on {hosts} hosts" if hosts > 1 else ""
    which = ", ".join(f"{count} {state}" for (_, state), count in sorted(states.items()))
    return f"{number} worker{'s' if number != 1 else ''}{on}{f' ({which})' if which else ''}"


def _pace(view: View, width: int) -> Iterator[Text]:
    """Yield the iteration times since the job's start, and their bounds."""
    history = view.history
    if history is None or len(history.mean_ms) < 2:
        return
    low, high = min(history.mean_ms), max(history.mean_ms)
    bounds = f"  {milliseconds(low)} to {milliseconds(high)}, {_duration(history.at_s[-1])}"
    bars = max(10, width - cell_len(bounds))
    yield Text()
    yield Text.assemble((sparkline(history.at_s, history.mean_ms, bars), "cyan"), (bounds, "dim"))


def sparkline(at_s: Sequence[float], values: Sequence[float], width: int) -> str:
    """Return `width` bars of equal time with the mean of their values; empty ones repeat the one before."""
    begin, span = at_s[0], max(at_s[-1] - at_s[0], 1e-9)
    sums, counts = [0.0] * width, [0] * width
    for moment, value in zip(at_s, values, strict=True):
        place = min(width - 1, int(width * (moment - begin) / span))
        sums[place] += value
        counts[place] += 1
    low = min(values)
    high = max(*values, low * (1 + _LEAST_SPREAD), 1e-9)
    drawn, last = [], values[0]
    for total, count in zip(sums, counts, strict=True):
        last = total / count if count else last
        drawn.append(_BARS[min(len(_BARS) - 1, int(len(_BARS) * (last - low) / max(high - low, 1e-9)))])
    return "".join(drawn)


def _duration(value_s: float) -> str:
    minutes = int(value_s) // 60
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes} min {int(value_s) % 60:02d} s"


def _windows(status: JobStatus, width: int, rows: int) -> Iterator[Text]:
    """Yield the newest windows that fit."""
    left = rows - 2
    windows = status.windows[::-1][:_MOST_WINDOWS] if rows < 1_000 else status.windows[::-1]
    for at, window in enumerate(windows):
        lines = list(_window(window, width))
        left -= len(lines)
        if at and left < 0:
            return
        if not at:
            yield from (Text(), Text("Windows", style="dim"))
        yield from lines


def _window(window: WindowLine, width: int) -> Iterator[Text]:
    said, colon, rest = window.summary.partition(": ")
    words = sentence(rest if colon and said.lower() == window.verdict else window.summary)
    word = window.verdict or _PHASES.get(window.phase, clean(window.phase, 20))
    why = _PURPOSES.get(window.purpose, "")
    head = f"{window.window_id:>3}  iteration {window.first_iteration}{why}, "
    text = Text.assemble((head, "dim"), (word, _STYLES.get(window.verdict, "")), f": {words}" if words else "")
    yield from _wrapped(text, width, _SENTENCE_ROWS, indent=5)


def _notes(notes: Sequence[str], width: int) -> Iterator[Text]:
    if notes:
        yield from (Text(), Text("Notes", style="dim"))
        for note in notes[-_MOST_NOTES:]:
            yield from _wrapped(Text(sentence(note)), width, 2)
        if len(notes) > _MOST_NOTES:
            yield Text(f"and {len(notes) - _MOST_NOTES} earlier", style="dim")


def _wrapped(text: Text, width: int, rows: int, indent: int = 0) -> Iterator[Text]:
    """Yield at most `rows` lines, with "…" where there were more."""
    lines = list(text.wrap(_ANY_CONSOLE, max(8, width - indent)))
    if len(lines) > rows:
        lines = lines[:rows]
        lines[-1].truncate(max(1, width - indent - 1))
        lines[-1].append("…")
    for at, line in enumerate(lines):
        yield Text(" " * indent).append_text(line) if at else line


def _workers(status: JobStatus, width: int, rows: int) -> Iterator[Text]:
    """Yield the workers that need attention, then the slowest."""
    ordered = sorted(status.workers, key=_order)
    if not ordered or rows < 4:
        return
    shown = ordered if len(ordered) <= rows - 2 else ordered[: rows - 3]
    columns = _columns(width, shown)
    yield Text()
    yield Text("  ".join(set_cell_size(head, cells) for head, cells in columns).rstrip(), style="dim")
    for worker in shown:
        yield _row(worker, columns)
    if len(shown) < len(ordered):
        yield Text(f"and {len(ordered) - len(shown)} more workers", style="dim")


def _order(worker: WorkerStatus) -> tuple[int, float, int]:
    return _state(worker)[1], -(worker.current_s or 0.0), worker.worker.global_rank


def _state(worker: WorkerStatus) -> tuple[str, int]:
    """Return the state, and its place in the order."""
    if worker.ended:
        ending = worker.ending
        in_order = ending is None or ending.kind == "signed-off"
        return ("ended", 4) if in_order and worker.state != "gone" else ("gone", 0)
    if worker.silent:
        return "silent", 1
    if worker.state == "failed":
        return "unwatched", 2
    return worker.state, 3


def _columns(width: int, workers: Iterable[WorkerStatus]) -> list[tuple[str, int]]:
    """Return heads and cells; the last column takes the rest."""
    columns = [("worker", 6), ("state", 9), ("now", 8)]
    if width >= _NARROW:
        columns += [
            ("iteration", 9),
            ("host", min(16, max((4, *(cell_len(worker.worker.host) for worker in workers))))),
        ]
    used = sum(cells + 2 for _, cells in columns)
    return [*columns, ("", max(0, width - used))]


def _row(worker: WorkerStatus, columns: Sequence[tuple[str, int]]) -> Text:
    state, rank = _state(worker)
    now = milliseconds(1e3 * worker.current_s) if worker.current_s is not None else "-"
    values = {
        "worker": str(worker.worker.global_rank),
        "state": state,
        "now": now,
        "iteration": str(worker.iteration),
        "host": clean(worker.worker.host),
        "": _remark(worker),
    }
    line = Text()
    for head, cells in columns:
        style = "bold red" if head == "state" and rank <= 1 else ""
        line.append(set_cell_size(shorten(values[head], cells), cells) + "  ", style=style)
    line.rstrip()
    return line


def _remark(worker: WorkerStatus) -> str:
    ending = worker.ending
    if worker.ended and ending is not None:
        if ending.out_of_memory:
            return "KILLED for want of memory"
        known = {"signal": f"by signal {ending.number}", "exit": f"with status {ending.number}", **_ENDINGS}
        return known.get(ending.kind, "")
    if worker.silent:
        return clean(worker.silence) or f"no event for {seconds(worker.silent_s)}"
    return clean(worker.result.note)


def _keys(view: View) -> Text:
    if view.answer:
        return Text(sentence(view.answer), style="bold")
    return Text.assemble((" q ", "reverse"), " quit   ", (" w ", "reverse"), " open a window now")
