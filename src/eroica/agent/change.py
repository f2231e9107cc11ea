"""Changes of a worker's pace, found soon: Page's cumulative sum over seconds lost, a pure state machine over durations.

Time that is lost against the best stretch is added up, less an allowance; the sum never falls below zero, and it asks
for a window once it is large enough. A jump by half needs about nine seconds for that, one by a fifth twenty, one by a
tenth a minute, wherever in the job it comes, and however slowly.

Source: E. S. Page, "Continuous inspection schemes", Biometrika 41 (1954). Deviations, since iterations are neither
independent nor normal:

- Durations are looked at in blocks of a second, the slowest of each block left out: a checkpoint is no change. One in
  each of five blocks in a row is: what is certainly no scatter of the shortest of the five counts.
- They are also looked at in long blocks, by their mean over their median: so much do long iterations far apart cost,
  however fast the others are.
- The sum counts only while the middle block since it began is beyond the allowance, and the last one is.
- A block adds a bounded part, so that none can ask alone.
- Scatter is measured between neighboring blocks: a slow growth is none of it.
- Levels that the job has come back from without harm are no change when they come again.
"""

from __future__ import annotations

import math
from collections import deque
from itertools import islice, pairwise
from statistics import median
from typing import NamedTuple

from eroica.settings import Settings

#: Seconds of iterations in a block, and iterations of it at least.
_BLOCK_S = 1.0
_LEAST_IN_BLOCK = 2
#: The same for long blocks.
_LONG_S, _LEAST_IN_LONG = 15.0, 50
#: Iterations that are several times as long as known end a block of so many of them, of the least if it is that long.
_ENOUGH_IN_BLOCK = 3
_LONG_BLOCK_S = 3.0
#: The allowance is so many times the setting `slowdown`, which is taken for this at least, and so many times what
#: neighboring stretches scatter.
_ALLOWED, _LEAST_SLOWDOWN = 1.3, 0.01
_ALLOWED_SCATTER = 3.0
#: Seconds lost that make a change; more where blocks scatter, so that chance reaches them once in e^7 times.
_LOST_S = 2.0
_CHANCE = 7.0
#: Of those, the share that one block may add.
_LARGEST_PART = 1 / 2
#: A change lasts so long, or so many iterations, if those take longer than that.
_LASTING_S = 9.0
_LASTING_ITERATIONS = 4
#: The slowest of a block is no scatter where it is longer than so many of the others.
_SCATTERED = 1.5
#: Iterations in which a window is captured or summarized on a crowded host are at most so many times as long for it.
_WINDOWS_COST = 2.0
#: Blocks of a stretch, whose lowest mean is the best; iterations that the first one holds at least, and blocks.
_STRETCH = 10
_FIRST_ITERATIONS = 15
_FIRST_BLOCKS = 3
#: Blocks whose middle one is a level; levels that the job has lived through in so many seconds count but for the
#: highest few.
_LEVEL = 5
_LIVED_THROUGH, _HORIZON_S = 0.95, 1800.0
#: Beyond what was lived through, a rise must be this large a part of the allowance.
_BEYOND = 0.5
_MOST_BLOCKS = 2048
#: Neighboring blocks whose differences tell the scatter.
_DIFFERENCES = 200
_MAD_TO_SIGMA = 1.4826


class Rise(NamedTuple):
    """A change for the worse.

    Attributes:
        best_s: Mean iteration of the job's best stretch, seconds; in long blocks, what it would be at the present pace.
        current_s: Median of the blocks since the change began, seconds.
        since_s: For how long, seconds.
    """

    best_s: float
    current_s: float
    since_s: float


class _Block(NamedTuple):
    """Some iterations in a row, times in seconds.

    Attributes:
        mean_s: Mean of them, of the slowest only what all blocks lately have.
        iterations: Their number.
        total_s: What all took.
        level_s: Median of `mean_s` at its end.
        slowest_s: Mean of its slowest.
    """

    mean_s: float
    iterations: int
    total_s: float
    level_s: float
    slowest_s: float


class Change:
    """The changes of one worker.

    Args:
        settings: `slowdown`, `one_off_fraction`.
        is_long: Blocks are long, and only what single long iterations cost counts.

    Attributes:
        best_s: Mean iteration of the best stretch so far, seconds; infinite before there is one.
        level_s: Median of some blocks in a row that have just been completed, seconds; else None.
    """

    def __init__(self, settings: Settings, is_long: bool = False) -> None:
        self._is_long = is_long
        self._usual_s = self._now_s = 0.0  # median iteration of the first long block, and of the last
        self._block_s, self._least = (_LONG_S, _LEAST_IN_LONG) if is_long else (_BLOCK_S, _LEAST_IN_BLOCK)
        self.best_s = math.inf
        self.level_s: float | None = None
        self._seen = 0
        self._one_off, self._allowance = settings.one_off_fraction, _ALLOWED * max(settings.slowdown, _LEAST_SLOWDOWN)
        self._row: list[float] = []
        self._row_s = 0.0
        self._beside = False  # a window was open during the row
        self._blocks: deque[_Block] = deque(maxlen=_MOST_BLOCKS)
        self._lost_s = 0.0
        self._needed_s = math.inf  # for a window
        self._since = 0  # blocks since the sum left zero
        self._lived = math.inf
        self._wander = self._noise = 0.0
        self._life_s = self._descent_s = 0.0
        self._harmful = 0  # blocks at the end of the past that a window was asked for

    def observe(self, duration_s: float, margin: float = 1.0, beside_window: bool = False) -> Rise | None:
        """Take in one iteration.

        Args:
            duration_s: How long it took.
            margin: Factor on the allowance and on what must be lost, >= 1.
            beside_window: A window was captured or summarized meanwhile. That may cost an iteration as much as it takes
                by itself, so only what is longer still counts, and only towards a rise.

        Returns:
            The rise once it is certain, and again each time that as much more was lost.
        """
        self.level_s = None
        if beside_window:
            if self.best_s == math.inf:
                return None
            self._beside = True
        self._row_s += duration_s
        self._row.append(max(duration_s / _WINDOWS_COST, self.best_s) if beside_window else duration_s)
        total_s = self._row_s
        if len(self._row) < self._least or total_s < self._block_s:
            return None
        if len(self._row) < _ENOUGH_IN_BLOCK and self.best_s < _BLOCK_S / 2 and total_s < _LONG_BLOCK_S:
            return None
        block = self._block(total_s)
        beside = self._beside
        self._row, self._row_s, self._beside = [], 0.0, False
        rise = self._judge(block, margin)
        if beside and not self._lost_s:
            return None
        self._life_s += total_s
        self._blocks.append(block)
        self._find_best()
        self._seen += 1
        if self._seen % _LEVEL == 0:
            self.level_s = block.level_s
        return rise

    def _block(self, total_s: float) -> _Block:
        """Make the block of the row, whose iterations took so long in all."""
        recent = list(islice(reversed(self._blocks), _LEVEL - 1))
        count, ordered = len(self._row), sorted(self._row)
        if self._is_long:
            self._now_s = median(ordered)
            self._usual_s = self._usual_s or self._now_s
            mean_s = self._usual_s * math.fsum(ordered) / count / self._now_s
            return _Block(mean_s, count, total_s, median([*(block.mean_s for block in recent), mean_s]), 0.0)
        slow = min(max(1, math.ceil(self._one_off * count)), count - 1)
        kept_s, slowest_s = math.fsum(ordered[:-slow]) / (count - slow), math.fsum(ordered[-slow:]) / slow
        pause_s = min([slowest_s, *(block.slowest_s for block in recent)]) - _SCATTERED * kept_s
        mean_s = kept_s + max(pause_s, 0.0) * slow / count
        return _Block(mean_s, count, total_s, median([*(block.mean_s for block in recent), mean_s]), slowest_s)

    @property
    def lasted(self) -> int:
        """Iterations since what may be a change began; 0 where none has."""
        return sum(block.iterations for block in islice(reversed(self._blocks), self._since))

    @property
    def is_likely(self) -> bool:
        """A window was asked for, or half of what asks for one is lost."""
        return bool(self._harmful) or self._lost_s >= self._needed_s / 2

    def absolve(self) -> None:
        """A window found nothing wrong: what the job does now is lived through."""
        self._lost_s, self._since, self._harmful = 0.0, 0, 0
        self._lived = self._live_through()

    def _judge(self, block: _Block, margin: float) -> Rise | None:
        if self.best_s == math.inf:
            return None
        if not self._since:  # what comes after a change says nothing of how the job scattered before
            self._lived = self._live_through()
            self._wander, self._noise = self._scatter(_STRETCH), self._scatter(1)
        allowance = margin * max(self._allowance, _ALLOWED_SCATTER * self._wander)
        limit_s = self.best_s * (1.0 + allowance)
        needed_s = margin * max(_LOST_S, _CHANCE * self._noise**2 / allowance * self.best_s * block.iterations)
        self._needed_s = needed_s
        part_s = (block.mean_s - limit_s) * block.iterations
        self._lost_s = max(0.0, self._lost_s + min(part_s, _LARGEST_PART * needed_s * (1.0 + 1e-9)))
        self._since = self._since + 1 if self._lost_s else 0
        if not self._since:
            self._harmful = 0
        if self._lost_s < needed_s or block.mean_s <= limit_s:
            return None
        since = [*islice(reversed(self._blocks), self._since - 1), block]
        current_s, since_s = median(one.mean_s for one in since), sum(one.total_s for one in since)
        lasting_s = max(_LASTING_S, _LASTING_ITERATIONS * current_s)
        if since_s < lasting_s or current_s <= max(limit_s, self._lived * (1.0 + _BEYOND * allowance)):
            return None
        self._lost_s = 1e-9  # asks again after as much more, and the sum still counts as begun
        self._harmful = self._since
        pace = self._now_s / self._usual_s if self._is_long else 1.0
        return Rise(pace * self.best_s, pace * current_s, since_s)

    def _scatter(self, stride: int) -> float:
        """Scatter of means of so many blocks, a fraction, from differences of neighbors: growth is none of it."""
        values = [block.mean_s for block in islice(reversed(self._blocks), _DIFFERENCES)]
        if stride > 1:
            values = [math.fsum(values[at : at + stride]) / stride for at in range(0, len(values) - stride + 1, stride)]
        differences = [abs(math.log(one / other)) for one, other in pairwise(values)]
        return _MAD_TO_SIGMA * median(differences) / math.sqrt(2.0) if differences else 0.0

    def _live_through(self) -> float:
        """The highest level, but for a few, of the horizon; none of the first descent, unless that was most of life."""
        levels, spent_s, past_s = [], 0.0, self._life_s
        skip = self._descent_s if self._descent_s < self._life_s / 2 else 0.0
        for block in islice(reversed(self._blocks), self._harmful, None):
            past_s -= block.total_s
            spent_s += block.total_s
            if spent_s > _HORIZON_S or past_s < skip:
                break
            levels.append(block.level_s)
        levels.sort()
        return levels[math.ceil(_LIVED_THROUGH * len(levels)) - 1] if levels else 0.0

    def _find_best(self) -> None:
        """Let the last stretch be the best one, if it is, and was made while nothing was lost."""
        stretch = list(islice(reversed(self._blocks), _STRETCH))
        count = sum(block.iterations for block in stretch)
        if len(stretch) < (_FIRST_BLOCKS if self.best_s == math.inf else _STRETCH) or count < _FIRST_ITERATIONS:
            return
        mean_s = sum(block.mean_s * block.iterations for block in stretch) / count
        if mean_s < self.best_s:
            if mean_s < self.best_s / (1.0 + self._allowance):
                self._descent_s = self._life_s
            self.best_s = mean_s
