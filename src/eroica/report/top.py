"""A running job in one screen of text: header, iteration times, windows with verdicts, workers, notes."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from eroica.model.history import IterationHistory
from eroica.model.words import clean, ending_words, milliseconds, plural, seconds, sentence
from eroica.report.footer import STALE_S, age, shorten, worker_state
from eroica.report.phrases import PHASES, without_word
from eroica.report.text import STYLES
from eroica.wire.messages import JobStatus, WindowLine, WorkerStatus

_BARS = "▁▂▃▄▅▆▇█"
#: Least spread of the times, as a share of the lowest, that is not drawn flat.
_LEAST_SPREAD = 0.2
_SENTENCE_ROWS = 3
_MOST_WINDOWS = 3
_MOST_NOTES = 2
#: Rows of workers on a screen without a height.
_MOST_WORKERS = 40
_NARROW = 60
#: Wrapping needs one; its width does not count.
_ANY_CONSOLE = Console(file=io.StringIO(), width=80)
_PURPOSES = {"manual": "by hand", "blocked": "standstill"}
#: States of workers in the order of the table.
_STATES = ("gone", "silent", "unwatched", "", "ended")


class View(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of one screen.

    Attributes:
        status: The job.
        history: Its iteration times, None if unknown.
        link: The live page; empty without one.
        silence_s: Age of `status`.
        answer: Result of the last key.
        keys: Whether keys do anything.
    """

    status: JobStatus
    history: IterationHistory | None = None
    link: str = ""
    silence_s: float = 0.0
    answer: str = ""
    keys: bool = False


def build_screen(view: View, width: int, height: int | None = None) -> list[Text]:
    """Return at most `height` lines (None: no limit) of at most `width` cells."""
    status, tail = view.status, [_keys(view)] if view.keys else []
    lines = [*_header(view, width), *_pace(view.history, width)]
    room = 100_000 if height is None else max(0, height - len(lines) - len(tail))
    windows = status.windows[::-1] if height is None else status.windows[::-1][: min(_MOST_WINDOWS, room // 6)]
    middle = list(_windows(windows, width))
    notes = list(_notes(status.notes, width))
    notes = notes if len(middle) + len(notes) + 6 <= room else []
    rows = _MOST_WORKERS + 3 if height is None else room - len(middle) - len(notes)
    middle += [*_workers(status.workers, width, rows), *notes]
    if tail:
        middle = middle[:room] + [Text()] * (room - len(middle))
    for line in (lines := [*lines, *middle[:room], *tail]):
        line.truncate(width, overflow="ellipsis")
    return lines


def _header(view: View, width: int) -> Iterator[Text]:
    status = view.status
    stale = f"no news for {age(view.silence_s)}" if view.silence_s >= STALE_S else ""
    phase = stale or clean(status.phase, 20)
    style = STYLES.get(status.phase, "bold yellow" if stale or status.phase == "silent" else "bold")
    job = clean(status.job, max(8, width - len(phase) - 12))
    yield Text.assemble((" eroica ", "reverse"), " ", (job, "bold"), "  ", (phase, style))
    facts = [f"iteration {status.iteration}"] if status.iteration else []
    if status.mean_ms is not None:
        facts.append(f"{milliseconds(status.mean_ms)} now")
    if status.best_ms is not None:
        facts.append(f"{milliseconds(status.best_ms)} at best")
    states = Counter(map(worker_state, status.workers))
    which = ", ".join(f"{states[state]} {state}" for state in sorted(states, key=_place))
    on = f" on {len(status.hosts)} hosts" if len(status.hosts) > 1 else ""
    facts.append(f"{plural(len(status.workers), 'worker')}{on}{f' ({which})' if which else ''}")
    yield from _wrapped(Text(" · ".join(facts)), width, 3)
    if status.message and not stale:
        yield from _wrapped(Text(sentence(status.message), style="dim"), width, 2)
    if view.link and cell_len(view.link) <= width:
        yield Text(view.link, style="dim")


def _pace(history: IterationHistory | None, width: int) -> Iterator[Text]:
    """Yield the iteration times since the job's start, and their bounds."""
    if history is None or len(history.mean_ms) < 2:
        return
    low, high = min(history.mean_ms), max(history.mean_ms)
    minutes, second = divmod(int(history.at_s[-1]), 60)
    lasted = f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes} min {second:02d} s"
    bounds = f"  {milliseconds(low)} to {milliseconds(high)}, {lasted}"
    bars = sparkline(history.at_s, history.mean_ms, max(10, width - cell_len(bounds)))
    yield from (Text(), Text.assemble((bars, "cyan"), (bounds, "dim")))


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


def _windows(windows: Sequence[WindowLine], width: int) -> Iterator[Text]:
    if windows:
        yield from (Text(), Text("Windows", style="dim"))
    for window in windows:
        words = without_word(window.verdict, window.summary)
        word = window.verdict or PHASES.get(window.phase, clean(window.phase, 20))
        purpose = "" if window.purpose == "slow" else f" ({_PURPOSES.get(window.purpose, window.purpose)})"
        head = f"{window.window_id:>3}  iteration {window.first_iteration}{purpose}, "
        text = Text.assemble((head, "dim"), (word, STYLES.get(window.verdict, "")), f": {words}" if words else "")
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


def _workers(workers: Sequence[WorkerStatus], width: int, rows: int) -> Iterator[Text]:
    """Yield the workers that need attention, then the slowest."""
    if not workers or rows < 4:
        return
    ordered = sorted(
        workers, key=lambda one: (_place(worker_state(one)), -(one.current_s or 0.0), one.worker.global_rank)
    )
    shown = ordered if len(ordered) <= rows - 2 else ordered[: rows - 3]
    columns = {"worker": 6, "state": 9, "now": 8}
    if width >= _NARROW:
        columns |= {"iteration": 9, "host": min(16, max((4, *(cell_len(one.worker.host) for one in shown))))}
    columns[""] = max(0, width - sum(cells + 2 for cells in columns.values()))
    yield Text()
    yield Text("  ".join(set_cell_size(head, cells) for head, cells in columns.items()).rstrip(), style="dim")
    for worker in shown:
        state = worker_state(worker)
        values = {
            "worker": str(worker.worker.global_rank),
            "state": state,
            "now": milliseconds(1e3 * worker.current_s) if worker.current_s is not None else "-",
            "iteration": str(worker.iteration),
            "host": clean(worker.worker.host),
            "": _remark(worker),
        }
        line = Text()
        for head, cells in columns.items():
            style = "bold red" if head == "state" and state in ("gone", "silent") else ""
            line.append(set_cell_size(shorten(values[head], cells), cells) + "  ", style=style)
        line.rstrip()
        yield line
    if len(shown) < len(ordered):
        yield Text(f"and {len(ordered) - len(shown)} more workers", style="dim")


def _place(state: str) -> int:
    return _STATES.index(state if state in _STATES else "")


def _remark(worker: WorkerStatus) -> str:
    if worker.ended and worker.ending is not None:
        return ending_words(worker.ending)
    if worker.silent:
        return clean(worker.silence) or f"no event for {seconds(worker.silent_s)}"
    return clean(worker.result.note)


def _keys(view: View) -> Text:
    if view.answer:
        return Text(sentence(view.answer), style="bold")
    return Text.assemble((" q ", "reverse"), " quit   ", (" w ", "reverse"), " open a window now")
