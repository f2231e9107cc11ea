"""Files that people point at: read within bounds, and patterns that no worker can have measured are refused."""

from __future__ import annotations

import math
import stat
from itertools import pairwise
from pathlib import Path

from eroica.errors import InputError
from eroica.model.history import IterationHistory
from eroica.model.pattern import WorkerPattern
from eroica.model.rows import COUNTS, RowTable

MOST_JSON_BYTES = 64_000_000
MOST_PATTERN_BYTES = 4_000_000
_MOST_WORKERS = 200_000
_MOST_ITERATIONS = 1_000_000_000
_MOST_FUNCTIONS = 20_000
_MOST_SECONDS = 1e9
_MOST_EXECUTIONS = 10**15


def read_regular(path: Path, most_bytes: int) -> bytes:
    """Bytes of a regular file; a pipe or device is not waited for.

    Raises:
        OSError: It is not there or cannot be read.
        InputError: It is no regular file, or longer than `most_bytes`.
    """
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise InputError(f"{path} is no regular file")
    if found.st_size > most_bytes:
        raise InputError(f"{path} has {found.st_size} bytes; more than {most_bytes} are no file of ours")
    return path.read_bytes()


def check_pattern(pattern: WorkerPattern) -> WorkerPattern:
    """The pattern, if its numbers are possible.

    Raises:
        InputError: A rank, a number of iterations or a duration is not.
    """
    worker = pattern.worker
    if not (0 <= worker.global_rank < _MOST_WORKERS and 0 <= worker.world_size <= _MOST_WORKERS):
        raise InputError(f"worker {worker.global_rank} of {worker.world_size} is impossible")
    if not 0 <= pattern.first_iteration <= pattern.last_iteration <= _MOST_ITERATIONS:
        raise InputError(f"iterations {pattern.first_iteration} to {pattern.last_iteration} are impossible")
    if len(pattern.functions) > _MOST_FUNCTIONS:
        raise InputError(f"{len(pattern.functions)} functions are too many")
    measured = (pattern.duration_s, pattern.idle_s, pattern.dropped_critical_s, pattern.stall_s, pattern.summarize_s)
    others = tuple(pattern.host_facts.values())
    if not (
        _are_possible(RowTable.of(pattern.functions))
        and all(map(_is_amount, measured))
        and all(map(math.isfinite, others))
    ):
        raise InputError("a number in it is negative, absurdly large or none at all")
    return pattern


def check_history(history: IterationHistory) -> IterationHistory:
    """The iteration times of a job, if each column has a possible value for each stretch.

    Raises:
        InputError: They have not.
    """
    columns = (history.at_s, history.iteration, history.mean_ms, history.slowest_ms, history.slowest_worker)
    if len({len(column) for column in columns}) > 1:
        raise InputError("its columns are not equally long")
    if any(later < earlier for earlier, later in pairwise(history.at_s)):
        raise InputError("its stretches are not in order of time")
    if not all(0 <= value < math.inf for column in columns for value in column):
        raise InputError("a number in it is negative or none at all")
    return history


def _are_possible(rows: RowTable) -> bool:
    if not len(rows):
        return True
    times, counts = rows.numbers[: -len(COUNTS)], rows.column("count")
    amounts = times.min() >= 0 and times.max() <= _MOST_SECONDS  # not a number is neither
    return bool(amounts and counts.min() >= 0 and counts.max() <= _MOST_EXECUTIONS)


def _is_amount(value: float) -> bool:
    return 0 <= value <= _MOST_SECONDS  # not a number is not
