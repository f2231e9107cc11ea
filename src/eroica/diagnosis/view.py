"""View of a window: the quantities that the rules look at, computed once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.block import Growth
from eroica.diagnosis.operators import SOURCES, Source, Speed, larger_tensors, speed_against
from eroica.localize import Suspects, of_workers
from eroica.localize.fleet import Fleet, with_all_iterations
from eroica.localize.roles import stages_of
from eroica.model.lost import LEAST, Lost, lost
from eroica.model.pattern import Workload
from eroica.model.verdict import Cost, IterationTimes
from eroica.model.window import FAR_SLOWER, SLOWER, SLOWER_INSIDE, Window
from eroica.model.words import milliseconds
from eroica.settings import Settings

Floats = NDArray[np.float64]
#: Share of the baseline window by which healthy windows differ in own work, and in pauses.
_LEAST_OWN, _LEAST_PAUSES = 0.2, 0.1


class View(msgspec.Struct, eq=False, dict=True):
    """A window with its context and the quantities that several rules share.

    Attributes:
        suspects: Result of localization.
        context: The window asked for.
        settings: All tunables.
        strictness: Share of the standard errors that rules ask for otherwise; below 1 to see what may be there.
        has_no_cause: No cause was found, so no sentence tells times inside the window.
    """

    suspects: Suspects
    context: WindowContext
    settings: Settings
    strictness: float = 1.0
    has_no_cause: bool = False

    @property
    def fleet(self) -> Fleet:
        """The window's workers."""
        return self.suspects.fleet

    @cached_property
    def whole(self) -> Fleet:
        """The window with its slowest iterations, which are left out everywhere else."""
        return with_all_iterations(self.fleet)

    @property
    def workers(self) -> int:
        """Number of workers that reported."""
        return len(self.fleet.ranks)

    @property
    def is_trace(self) -> bool:
        """True if the window is read from files that another profiler wrote: nobody can ask for more of it."""
        return self.context.window.kind == "trace"

    @property
    def iterations(self) -> int:
        """Iterations that count."""
        return int(self.fleet.columns.shape[1])

    @property
    def fewest_iterations(self) -> int:
        """Iterations that a verdict needs; a recording may hold one, and then claims less."""
        return 1 if self.is_trace else 2

    @property
    def iteration_us(self) -> float:
        """Mean iteration of the window."""
        return self.fleet.mean_iteration_us

    @property
    def times(self) -> IterationTimes:
        """Mean iteration at best, before and now, as every sentence and every page tells it.

        A window without a cause that is compared with the job's best pace tells the job's own pace, without recording.
        """
        is_outside = self.has_no_cause and self.suspects.baseline is None and self.stated_baseline_us
        now_us = self.iteration_us * (self._shorter if is_outside else 1.0)
        best, before, now = (round((us or 0.0) / 1e3, 3) for us in (self.stated_baseline_us, self.baseline_us, now_us))
        return IterationTimes(best_ms=best or None, baseline_ms=before or None, current_ms=now)

    @property
    def _shorter(self) -> float:
        """Ratio of iterations before the window to those in it, at most 1; 1 if the job got slow as it opened."""
        told_us = (self.context.window.current_iteration_s or np.inf) * 1e6
        is_slower = not self.fleet.has_accelerator and self.iteration_us >= SLOWER_INSIDE * told_us
        return 1.0 if is_slower else min(told_us / self.iteration_us, 1.0)

    @property
    def now_text(self) -> str:
        """Mean iteration now, for sentences."""
        return milliseconds(self.times.current_ms or 0.0)

    @property
    def now_and_before(self) -> str:
        """Mean iteration now, and before if that is known, for sentences."""
        before_ms = self.times.baseline_ms
        return f"{self.now_text} instead of {milliseconds(before_ms)}" if before_ms else self.now_text

    @cached_property
    def speeds(self) -> dict[Source, Speed]:
        """Operators against the peers', and against the baseline window's."""
        return {source: speed_against(self.suspects, source) for source in SOURCES}

    @cached_property
    def larger(self) -> dict[Source, NDArray[np.bool_]]:
        """Workers whose operators take longer than the reference's as with larger tensors. bool [W] each."""
        return {source: larger_tensors(self.suspects, speed, source) for source, speed in self.speeds.items()}

    @cached_property
    def growths(self) -> tuple[Growth, ...]:
        """Quantities that the training sets itself and most workers told, then and now, grown or not."""
        found = []
        for name in Workload.__struct_fields__:

            def measure(fleet: Fleet, name: str = name) -> Floats:
                return np.asarray([getattr(pattern.workload, name) for pattern in fleet.patterns], dtype=np.float64)

            now, before = np.median(measure(self.fleet)), np.median(np.nan_to_num(self.suspects.then(measure)))
            if now > 0 and before > 0:
                found.append(Growth(what=name, before=float(before), now=float(now)))
        return tuple(found)

    @cached_property
    def homes(self) -> dict[str, list[int]]:
        """Workers (indices) of each host."""
        homes: dict[str, list[int]] = defaultdict(list)
        for at, pattern in enumerate(self.fleet.patterns):
            homes[pattern.worker.host].append(at)
        return dict(homes)

    @cached_property
    def wait_us(self) -> Floats:
        """Mean critical collective time per iteration. float64 [W]."""
        return np.asarray(self.fleet.wait_us.mean(axis=1))

    @cached_property
    def deficit_us(self) -> Floats:
        """Time by which each worker waits less than the median of its role's others; 0 without any. float64 [W].

        In a job that got slower, it also counts by how much less a worker's waiting has risen: a server that waits as
        long for its clients as these wait for it is late, too.
        """
        waits_W = self.wait_us, *([np.nan_to_num(self.wait_rise_us)] if self.is_slow else [])
        return np.asarray(np.max([np.nan_to_num(self.fleet.usual(one_W) - one_W) for one_W in waits_W], axis=0))

    @cached_property
    def wait_rise_us(self) -> Floats:
        """Time by which each worker waits longer than in the baseline window; NaN without one. float64 [W]."""
        return self.wait_us - self.suspects.then(lambda past: np.asarray(past.wait_us.mean(axis=1)))

    @cached_property
    def stages(self) -> tuple[int | None, ...]:
        """Each worker's place in its pipeline, 0 = first; None where nothing tells."""
        return tuple(stages_of(self.fleet.patterns))

    @property
    def baseline_us(self) -> float | None:
        """Mean iteration of the baseline window, else of the job's best stretch; None if nobody knows.

        On a device, recording makes iterations longer that wait for launches. If this window shows all of the slowdown
        that the trigger saw, and yet is as long as the baseline window, the best stretch counts.
        """
        past, told_us = self.suspects.baseline, (self.context.window.current_iteration_s or np.inf) * 1e6
        is_told = self.fleet.has_accelerator and self.shows_slowdown and self.iteration_us >= told_us
        if past is None or (is_told and self.iteration_us < past.mean_iteration_us * (1 + self.settings.min_gain)):
            return self.stated_baseline_us
        return past.mean_iteration_us

    @property
    def past_window(self) -> str:
        """Name of the baseline window in sentences: healthy, unless that is not sure."""
        return "baseline window" if self.context.is_past_doubted else "healthy window"

    @property
    def stated_baseline_us(self) -> float | None:
        """Mean iteration of the job's best stretch, as the trigger saw it."""
        stated = self.context.window.baseline_iteration_s
        return stated * 1e6 if stated else None

    @property
    def slowdown_us(self) -> float:
        """Time by which iterations got longer as the trigger saw it, 0 if it did not say."""
        current, best = self.context.window.current_iteration_s, self.context.window.baseline_iteration_s
        return max(current - best, 0.0) * 1e6 if current and best else 0.0

    @property
    def recording_us(self) -> float:
        """Time by which recording makes a device's iterations longer, in a job that nobody finds slow; else 0.

        Recording slows the host, and the device waits for it. A stated limit does not allow for that.
        """
        told_us = (self.context.window.current_iteration_s or np.inf) * 1e6
        is_steady = self.fleet.has_accelerator and not (self.is_trace or self.shows_slowdown)
        return max(self.iteration_us - told_us, 0.0) if is_steady else 0.0

    @property
    def shows_slowdown(self) -> bool:
        """True if the window was opened for a slowdown, and lies nearer to the slow mean than to the best one."""
        best_us = self.stated_baseline_us
        if self.context.window.purpose not in SLOWER or best_us is None:
            return False
        return self.iteration_us >= best_us + max(self.slowdown_us / 2, self.settings.slowdown * best_us)

    @cached_property
    def _losses(self) -> tuple[Lost, ...]:
        return () if self.is_trace or self.iteration_us <= 0 else tuple(self._compare_with_past())

    @property
    def loss(self) -> Lost | None:
        """Time lost against the reference that iterations are furthest beyond, us; None without any."""
        return max(self._losses, key=lambda one: one.beyond, default=None)

    def _compare_with_past(self) -> Iterator[Lost]:
        """Yield what is lost against the job's best pace, and against the baseline window.

        The best pace is compared with iterations made shorter by what capturing adds (`_shorter`). The baseline window
        is compared in whole iterations, in own work, and in pauses; the largest loss counts.
        """
        past, best_us, kept_I = self.suspects.baseline, self.stated_baseline_us, self.fleet.iteration_us.mean(axis=0)
        if best_us:
            least = LEAST if past is None and not self.fleet.has_accelerator else FAR_SLOWER - 1
            yield lost((kept_I * self._shorter).tolist(), [best_us], least, FAR_SLOWER - 1)
        if past is not None:
            then, now_I = with_all_iterations(past), self.whole.busy_us.max(axis=0)
            before_J = then.busy_us.max(axis=0)
            pauses_I = now_I - max(float(np.median(now_I) - np.median(before_J)), 0.0)
            found = (
                lost(kept_I.tolist(), past.iteration_us.mean(axis=0).tolist(), LEAST, FAR_SLOWER - 1),
                lost(now_I.tolist(), before_J.tolist(), _LEAST_OWN),
                lost(pauses_I.tolist(), before_J.tolist(), max(_LEAST_PAUSES, self.settings.min_gain)),
            )
            now, before = self.whole.mean_iteration_us, then.mean_iteration_us
            noise = now - before - max(one.beyond for one in found)
            yield Lost(now=now, before=before, noise=noise, is_inside=True)

    @property
    def is_slow(self) -> bool:
        """True if somebody finds this job slow, and the window's own iterations are.

        By trigger: the window shows the slowdown. By expectation: it was asked for so. Whoever asked: it is far slower
        than the job's own past.
        """
        if self.context.window.purpose == "expected":
            return self.iteration_us > self.settings.expected_iteration_s * 1e6
        if self.shows_slowdown or self.context.window.purpose == "baseline":
            return self.shows_slowdown
        return any(one.is_sure and min(one.now, self.iteration_us) >= FAR_SLOWER * one.before for one in self._losses)

    def before(self, functions: list[int]) -> Floats:
        """Return the time of some functions in the baseline window, by iteration; NaN without one. float64 [W, J]."""
        past = self.suspects.baseline
        if past is None:
            return np.full((self.workers, 2), np.nan)
        rows = [past.places[key] for key in (self.fleet.keys[index] for index in functions) if key in past.places]
        found_WJ = of_workers(self.fleet, past, past.series(rows).T).T
        for one in self.suspects.moved:
            mine = sorted(set(one.now).intersection(functions))
            if mine:
                all_W, own_W = (self.fleet.critical_us[list(rows)].sum(axis=0) for rows in (one.now, mine))
                share_W = np.divide(own_W, all_W, out=np.zeros(all_W.shape), where=all_W > 0)
                found_WJ = found_WJ + share_W[:, None] * of_workers(self.fleet, past, past.series(list(one.then)).T).T
        return found_WJ


class WindowContext(msgspec.Struct, frozen=True, kw_only=True):
    """The window, and the workers that answered.

    Attributes:
        job: Name of the job.
        window: The window that was ordered.
        expected_workers: Workers of the whole job.
        missing: Global ranks that did not answer.
        left_out: Ranks among them that answered with patterns that cannot be compared.
        notes: Notes of the collector and the workers.
        is_past_doubted: The job may not have been healthy in the baseline window: no sentence says that it was.
        cost: Cost of the window to the job.
    """

    job: str
    window: Window
    expected_workers: int
    missing: tuple[int, ...] = ()
    left_out: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    is_past_doubted: bool = False
    cost: Cost = Cost()
