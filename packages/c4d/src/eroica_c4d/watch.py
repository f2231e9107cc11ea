"""Watch the ways between hosts: records and time in, verdicts out; a state machine, and the collector's part around it.

    as usual ──two readings agree on the place──▶ slow ──iterations as usual again──▶ as usual

One verdict for each place. The healthy past is kept in chunks. Hangs are left to Eroica's looks, and workers that are
late by their own work to its windows.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eroica.archive.store import write_json
from eroica.collector.participants import counting
from eroica.collector.windows import Windows
from eroica.errors import EroicaError
from eroica.model.verdict import Coverage, Verdict
from eroica.model.window import Window
from eroica.views.metrics import label
from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily

from eroica_c4d.conclusion import place_in_words, slow_verdict
from eroica_c4d.matrix import build_matrix
from eroica_c4d.records import DelayMatrix, HostRecord, Place, read_record
from eroica_c4d.slow import Slow, Usual, find_slow, is_slow, usual_of
from eroica_c4d.stretch import Ledger, Second, Stretch, stretch_of

if TYPE_CHECKING:
    from eroica.collector.service import Collector

#: A place counts from this share of an iteration on, and a job as slow from so much longer iterations on.
_SLOW = 0.15
#: Lengths of the stretches that are read, seconds; the shortest that shows something sure counts.
_STRETCHES_S = (6.0, 12.0, 24.0, 48.0)
_CHUNK_S, _CHUNKS, _LEAST_CHUNKS = 8.0, 40, 2
#: Pause between two readings, seconds; each reads all records, so it grows from so many hosts on.
_READ_S, _FEW_HOSTS = 1.0, 32
#: From when iterations are longer until it is told: readings must come together.
_SETTLE_S, _BEFORE_S = 6.0, 1.0
#: Iterations of so many seconds tell that the job is slow, and in the middle of them it became so.
_PACE_S = 2.0
#: If so many usual iterations fit into them and none has ended, the job pauses.
_PAUSE_ITERATIONS = 3.0
#: What is not seen for so long is gone.
_UNSEEN_S = 3.0
#: Slowness is not read from a job in which nothing has moved for so long, or of which a host was not heard for so long.
_MOVING_S, _UNHEARD_S = 0.9, 2.2
#: A job is as usual again if its iterations take at most so many times as long as usual, for so long.
_USUAL, _USUAL_S = 1.08, 10.0
#: Bytes from one host to another in a record that are data, not a sign of life.
_DATA_BYTES = 4096
#: A host that has told nothing for so long, seconds, is watched no more.
_GONE_S = 10.0
#: Verdicts in a job.
_MOST_VERDICTS = 50
#: Pause between two matrices in the run directory, seconds; its file; ways with a series of their own, by delay.
_KEEP_S, MATRIX_FILE, _MOST_SERIES = 5.0, "ways.json", 32


@dataclass(frozen=True)
class Found:
    """Keep and tell this verdict; it began at `since`."""

    window: Window
    verdict: Verdict
    since: float


class Watch:
    """The ways of one job.

    Args:
        windows: For workers, ids and lines.
    """

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._told = 0
        self._read_at = self._fresh_from = float("-inf")
        self._begin()

    def _begin(self) -> None:
        """Nothing is known."""
        self.ledger = Ledger()
        self._moved_at = float("-inf")
        self._began: float | None = None
        self._iterated: dict[int, int] = {}
        self._pids: dict[int, int] = {}
        self._chunks: deque[Stretch] = deque(maxlen=_CHUNKS)
        self._chunk_from: float | None = None
        self._seen: Place | None = None
        self._onset: float | None = None
        self._slower_since: float | None = None
        self._unseen: float | None = None
        self._usual_since: float | None = None
        self._accused: set[Place] = set()

    def reported(self, now: float, host: str, record: HostRecord) -> None:
        """An agent told what its workers' connections did; after its report was taken."""
        here = [status for status in self._windows.roll.workers_of(host) if not status.ended]
        if any(self._pids.get(one.worker.global_rank, one.worker.pid) != one.worker.pid for one in here):
            self._begin()  # nothing of before says anything of other processes
        self._pids.update({one.worker.global_rank: one.worker.pid for one in here})
        second = self.ledger.take(now, host, record, {one.worker.global_rank: one.iteration for one in here})
        if self._moved(second):
            self._moved_at = now

    def _moved(self, second: Second) -> bool:
        """A worker iterated, or sent another host data."""
        iterated = any(self._iterated.get(worker, -1) < iteration for worker, iteration in second.iterations.items())
        self._iterated.update(second.iterations)
        return iterated or any(one.sent_bytes >= _DATA_BYTES for one in second.cells.values())

    def tick(self, now: float) -> list[Found]:
        """Time passed; call about twice a second."""
        for host, second in list(self.ledger.latest.items()):
            if now - second.at > _GONE_S:
                del self.ledger.latest[host]
        moves = now - self._moved_at < _MOVING_S
        if self._began is None and moves and self._trains:
            self._began = now
        if self._windows.ended or self._told >= _MOST_VERDICTS or self._began is None or not moves:
            return []
        heard = all(now - second.at < _UNHEARD_S for second in self.ledger.latest.values())
        pause_s = _READ_S * max(1.0, len(self.ledger.latest) / _FEW_HOSTS)
        if not heard or now - self._read_at < pause_s:
            return []
        self._read_at = now
        return self._read(now)

    @property
    def _trains(self) -> bool:
        living = counting(self._windows.roll.living)
        return len(living) > 1 and all(status.state not in ("learning", "failed") for status in living)

    def matrix(self, now: float) -> DelayMatrix | None:
        """Return the delays of the last seconds, with what was usual; None where no two hosts talk."""
        usual = self._usual()
        stretch = stretch_of(self.ledger.between(now - _STRETCHES_S[1], now))
        return build_matrix(stretch, usual.cells if usual is not None else {})

    @property
    def _coverage(self) -> Coverage:
        heard, world = len(self._iterated), self._windows.roll.world_size
        return Coverage(workers_expected=world, workers_reported=min(heard, world or heard))

    def _read(self, now: float) -> list[Found]:
        """Tell what all moments show that came since iterations became longer, or since something was seen."""
        usual = self._usual()
        if usual is not None:
            self._pace(now, usual)
        self._chunk(now, usual)
        if usual is None:
            return []
        length_s, slow, stretch = self._first_sight(now, usual)
        if slow is None:
            self._calm(now, stretch, usual)
            return []
        self._usual_since = self._unseen = None
        since = self._slower_lately(now)
        if self._onset is None:
            self._onset = now if since is None else since
        since_s = now - self._onset
        if since_s < _SETTLE_S:
            return []
        began = self._onset - _BEFORE_S if since is None else since
        stretch, slow = self._look(min(began, now - length_s), now, usual)
        if slow is None or slow.key in self._accused:
            return []
        if self._seen != slow.key:
            self._seen = slow.key
            return []
        return [self._accuse(slow, stretch, usual)]

    def _pace(self, now: float, usual: Usual) -> None:
        """Since when iterations take longer than usual: they are counted, so seconds tell what moments cannot yet."""
        stretch = stretch_of(self.ledger.between(now - _PACE_S, now))
        if stretch.iteration_s is None:
            is_pause = usual.iteration_s * _PAUSE_ITERATIONS < _PACE_S
            self._slower_since = None if is_pause else self._slower_since
        elif stretch.iteration_s < usual.iteration_s * (1 + _SLOW):
            self._slower_since = None
        elif self._slower_since is None and is_slow(stretch, usual, _SLOW):
            self._slower_since = max(now - _PACE_S / 2, self._fresh_from)

    def _slower_lately(self, now: float) -> float | None:
        """Since when; None if it is not slow, or has been for so long that something else may have changed."""
        since = self._slower_since
        return since if since is not None and now - since <= _STRETCHES_S[2] else None

    def _first_sight(self, now: float, usual: Usual) -> tuple[float, Slow | None, Stretch]:
        """The shortest stretch that shows something, and what; the longest one there is where none does."""
        length_s, slow, stretch = 0.0, None, self._look(now, now, usual)[0]
        since = self._slower_lately(now)
        if since is not None:
            stretch, slow = self._look(since, now, usual)
        for length_s in _STRETCHES_S if slow is None else ():
            began = max(self._fresh_from, self._began or now, now - length_s)
            stretch, slow = self._look(began, now, usual)
            if slow is not None or began > now - length_s or self._is_usual(stretch, usual):
                break
        return length_s, slow, stretch

    @staticmethod
    def _is_usual(stretch: Stretch, usual: Usual) -> bool:
        """Iterations take what they used to: longer stretches would only show what is over."""
        return stretch.iteration_s is not None and stretch.iteration_s < usual.iteration_s * _USUAL

    def _look(self, began: float, now: float, usual: Usual) -> tuple[Stretch, Slow | None]:
        stretch = stretch_of(self.ledger.between(began, now))
        return stretch, find_slow(stretch, usual, _SLOW)

    def _accuse(self, slow: Slow, stretch: Stretch, usual: Usual) -> Found:
        since, self._seen = self._onset or 0.0, None
        # what else is found must show in what comes now
        self._onset = self._slower_since = self._fresh_from = self._moved_at
        self._accused.add(slow.key)
        window = self._window(f"communication shows {place_in_words(slow.places[0])}")
        self._told += 1
        return Found(window, slow_verdict(self._windows.job, window, slow, stretch, usual, self._coverage), since)

    def _calm(self, now: float, stretch: Stretch, usual: Usual) -> None:
        """Nothing is slow; after a while, what was found may be found again."""
        if self._unseen is None:
            self._unseen = now
        if now - self._unseen < _UNSEEN_S:
            return
        self._seen = self._onset = None
        if not self._accused or not stretch.iteration_s:
            return
        if stretch.iteration_s > usual.iteration_s * _USUAL:
            self._usual_since = None
        elif self._usual_since is None:
            self._usual_since = now
        elif now - self._usual_since >= _USUAL_S:
            self._usual_since = None
            self._accused.clear()
            self._fresh_from = now - _USUAL_S

    def _chunk(self, now: float, usual: Usual | None) -> None:
        """Keep what was healthy."""
        if self._chunk_from is None:
            self._chunk_from = now
        if now - self._chunk_from < _CHUNK_S:
            return
        chunk, self._chunk_from = stretch_of(self.ledger.between(self._chunk_from, now)), now
        slower = usual is not None and chunk.iteration_s and chunk.iteration_s > usual.iteration_s * _USUAL
        window = self._windows.window
        is_calm = window is None or window.purpose == "baseline"  # which opens while the job is healthy
        is_calm = is_calm and self._onset is None and self._slower_since is None and not self._accused
        if chunk.iteration_s and not slower and is_calm:
            self._chunks.append(chunk)

    def _usual(self) -> Usual | None:
        return usual_of(tuple(self._chunks)) if len(self._chunks) >= _LEAST_CHUNKS else None

    def _window(self, reason: str) -> Window:
        iteration = max((status.iteration for status in self._windows.roll), default=0)
        return Window(
            window_id=self._windows.ledger.new_id(),
            purpose="communication",
            reason=reason,
            first_iteration=iteration,
            last_iteration=iteration,
        )


class Part:
    """The collector's part: verdicts, the matrix in the run directory, metrics."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._watch = Watch(collector.windows)
        self._kept_at = float("-inf")
        self._matrix: DelayMatrix | None = None

    def reported(self, host: str, record: bytes) -> None:
        """Take what an agent told."""
        if (told := read_record(record)) is not None:
            self._watch.reported(self._collector.clock(), host, told)

    def tick(self) -> None:
        """Tell what was found, and keep the matrix."""
        now = self._collector.clock()
        for found in self._watch.tick(now):
            self._collector.found(found.window, found.verdict, found.since)
        if now - self._kept_at >= _KEEP_S:
            self._kept_at, self._matrix = now, self._watch.matrix(now)
            if self._matrix is not None:
                with contextlib.suppress(OSError, EroicaError):  # a full disk costs the file
                    write_json(self._collector.run_directory / MATRIX_FILE, self._matrix)

    def metrics(self) -> Iterator[Metric]:
        """Yield the longest ways."""
        if self._matrix is None:
            return
        run, hosts = label(self._collector.windows.job), [label(host) for host in self._matrix.hosts]
        cells = {
            (here, there): delay
            for here, row in zip(hosts, self._matrix.delay_s, strict=True)
            for there, delay in zip(hosts, row, strict=True)
            if delay is not None
        }
        text = f"How long a byte waits from host to host until it is acknowledged; the longest {_MOST_SERIES} only."
        delays = GaugeMetricFamily("eroica_way_delay", text, labels=["run", "from", "to"], unit="seconds")
        for ends, delay in sorted(cells.items(), key=lambda cell: -cell[1])[:_MOST_SERIES]:
            delays.add_metric([run, *ends], delay)
        text = "The longest of all of them."
        longest = GaugeMetricFamily("eroica_way_delay_max", text, labels=["run"], unit="seconds")
        longest.add_metric([run], max(cells.values(), default=0.0))
        text = "Pairs of hosts of which one sends the other data."
        ways = GaugeMetricFamily("eroica_ways", text, labels=["run"])
        ways.add_metric([run], len(cells))
        yield from (delays, longest, ways)

    async def close(self, patience_s: float) -> None:
        """Nothing is left to do."""
