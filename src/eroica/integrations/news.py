"""News of this job as flat dicts, read from its run directory by a thread that lives no longer than the reading.

The training thread looks at a clock and at a finished result, and never at a file: file systems may hang.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from eroica.wire.places import places
from eroica.worker.guard import Guard, log_of_this_process

#: Seconds between two looks.
EVERY_S = 10.0
#: A reading is waited for so long, once, seconds.
_PATIENCE_S = 0.2
#: Larger files are left alone: decoding holds the interpreter lock. A status of some 2,000 workers is so large.
_MOST_BYTES = 1_000_000
_LONGEST_TEXT = 2_000
_WORDS = {"healthy": 0.0, "undetermined": 1.0, "slow": 2.0, "blocked": 3.0}


class News(NamedTuple):
    """What is known of a job.

    Attributes:
        numbers: Name -> value, as loggers of numbers take them; see `docs/tools.md`.
        verdict: Sentence of the latest window's verdict, "" if there is none or it was handed out before.
    """

    numbers: Mapping[str, float]
    verdict: str


def metrics() -> dict[str, float]:
    """What is known of this job now, as a flat dict for any tracker; empty where it is not watched. Never raises.

    A thread reads two small files: call it where you log, not in each step. Where they cannot be read at once, as on a
    file system that hangs, the last that was read is returned.
    """
    try:
        run = places(os.environ).run
        reader = _readers.setdefault(run, Reader(run))
        reader.look(_PATIENCE_S)
        return dict(reader.found.numbers)
    except Exception:
        if os.environ.get("EROICA_WORKER_FAILURES_RAISE") == "1":
            raise
        return {}


def read_news(run: Path) -> News:
    """Read the state of a run directory; what is missing, damaged or of another version is left out."""
    numbers: dict[str, float] = {}
    verdict = ""
    with contextlib.suppress(Exception):
        status = _read(run / "status.json")
        times = {"iteration_ms": status["mean_ms"], "best_iteration_ms": status["best_ms"]}
        numbers |= {f"eroica/{name}": float(ms) for name, ms in times.items() if ms is not None}
        judged = [one for one in status["windows"] if one["verdict"] in _WORDS]
        if judged:
            latest = judged[-1]
            word, number = str(latest["verdict"]), int(latest["window_id"])
            numbers |= {"eroica/window": float(number), "eroica/verdict": _WORDS[word]}
            verdict = f"{word.upper()}: {_one_line(latest['summary'])}"
            numbers |= _of_cause(_read(run / "windows" / str(number) / "verdict.json"))
    return News(numbers, verdict)


def _of_cause(record: Mapping[str, Any]) -> dict[str, float]:
    """Return gain, confidence and worker of the first cause."""
    causes = [one for one in record["findings"] if one["role"] == "cause"]
    if not causes:
        return {}
    known = {name: causes[0][name] for name in ("gain", "confidence")}
    if causes[0]["scope"] == "some" and len(causes[0]["workers"]) == 1:
        known["worker"] = causes[0]["workers"][0]
    return {f"eroica/{name}": float(value) for name, value in known.items() if value is not None}


def _read(path: Path) -> Any:
    with path.open("rb") as file:
        return json.loads(file.read(_MOST_BYTES + 1)[:_MOST_BYTES])


def _one_line(value: object) -> str:
    text = str(value)[:_LONGEST_TEXT]
    return " ".join("".join(one if one.isprintable() else " " for one in text).split())


class Reader:
    """Reads news in a thread that lives no longer than the reading.

    Args:
        run: The run directory.
        every_s: Seconds between two looks of `poll`.

    Attributes:
        found: What was read last.
    """

    def __init__(self, run: Path, every_s: float = EVERY_S) -> None:
        self.found = News({}, "")
        self._run, self._every_s = run, every_s
        self._next_s = time.monotonic() + every_s
        self._thread: threading.Thread | None = None
        self._told = ""

    def look(self, patience_s: float) -> bool:
        """Read in a thread, wait at most `patience_s`, return whether it is read. A hanging read is waited for once."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._read, name="eroica-news", daemon=True)
            self._thread.start()
            self._thread.join(patience_s)
        return not self._thread.is_alive()

    def poll(self) -> News | None:
        """Return news since the last call, each once; None if there is nothing new. Costs a clock reading."""
        now = time.monotonic()
        if now < self._next_s or (self._thread is not None and self._thread.is_alive()):
            return None
        if self._thread is None:
            self.look(0.0)
            return None
        self._thread, self._next_s = None, now + self._every_s
        return self._hand_out()

    def last(self, patience_s: float = 1.0) -> News | None:
        """Return news at the end of a training, after waiting at most `patience_s`."""
        if not self.look(patience_s / 2) and self._thread is not None:
            self._thread.join(patience_s / 2)
        return None if self._thread is not None and self._thread.is_alive() else self._hand_out()

    def _hand_out(self) -> News | None:
        verdict = "" if self.found.verdict == self._told else self.found.verdict
        self._told = self.found.verdict
        return News(self.found.numbers, verdict) if self.found.numbers else None

    def _read(self) -> None:
        self.found = read_news(self._run)


_readers: dict[Path, Reader] = {}


class Companion:
    """What all callbacks share: watching, news, and the border that keeps both out of the training.

    Args:
        settings: Of `eroica.watch`.

    Raises:
        UsageError: A setting is unknown or has an impossible value.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        from eroica.settings import load_settings

        load_settings({name: value for name, value in settings.items() if value is not None})
        self._settings = dict(settings)
        self._reader: Reader | None = None
        raises = os.environ.get("EROICA_WORKER_FAILURES_RAISE") == "1"
        self._guard = Guard(log_of_this_process, lambda _text: None, raises)

    def begin(self, *, speaks: bool) -> None:
        """Watch this process; where it `speaks` for the job, also read its news. Never raises."""
        self._guard.run(self._begin, speaks)

    def _begin(self, speaks: bool) -> None:
        from eroica.worker.attach import watch

        watch(**self._settings)
        if speaks and self._reader is None:
            self._reader = Reader(places(os.environ).run, EVERY_S)

    def tell(self, log: Callable[[News], object], *, at_the_end: bool = False) -> None:
        """Give news to `log` if there is any. Never raises, whatever `log` does."""
        if self._reader is not None:
            self._guard.run(self._tell, log, at_the_end)

    def _tell(self, log: Callable[[News], object], at_the_end: bool) -> None:
        assert self._reader is not None
        news = self._reader.last() if at_the_end else self._reader.poll()
        if news is not None:
            log(news)

    def __getstate__(self) -> dict[str, Any]:
        """Callbacks are pickled with their trainer: settings go along, threads and files do not."""
        return {"settings": self._settings}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """In another process, perhaps of another version: what it does not know is left out, and nothing raised."""
        from eroica.errors import UsageError

        try:
            self.__init__(state["settings"])  # type: ignore[misc]
        except UsageError:
            self.__init__({})  # type: ignore[misc]
