"""How unevenly members leave one execution of a collective, by what carries it."""

from __future__ import annotations

from collections.abc import Sequence

from eroica.localize.matching import EXIT_US, HOST_EXIT_US
from eroica.model.pattern import WorkerPattern

#: Least exit skew: members of one host under NCCL leave within microseconds, gloo's threads within scheduling slices.
_SKEW_FLOOR_US = {"nccl": 20.0}
SKEW_FLOOR_OTHER_US = 500.0
#: The same where ends were written down: how unevenly members leave is then measured.
_RECORDED_SKEW_FLOOR_US = 5.0


def skew_floor(patterns: Sequence[WorkerPattern], group: str) -> float:
    """Least exit skew of a group's library, microseconds."""
    return _SKEW_FLOOR_US.get(_backend(patterns, group), SKEW_FLOOR_OTHER_US)


def recorded_skew_floor(patterns: Sequence[WorkerPattern], group: str) -> float:
    """The same where ends were written down: less if the library runs on the accelerator."""
    return _RECORDED_SKEW_FLOOR_US if _runs_on_device(patterns, group) else skew_floor(patterns, group)


def uneven_exit(patterns: Sequence[WorkerPattern], group: str) -> float:
    """How unevenly members may leave an execution and still have been in the same one, microseconds."""
    return EXIT_US if _runs_on_device(patterns, group) else HOST_EXIT_US


def _runs_on_device(patterns: Sequence[WorkerPattern], group: str) -> bool:
    """Recorded traces often do not name the library, but where there is an accelerator it runs on that."""
    backend = _backend(patterns, group)
    if backend:
        return "nccl" in backend or "rccl" in backend
    return any(pattern.has_accelerator for pattern in patterns)


def _backend(patterns: Sequence[WorkerPattern], group: str) -> str:
    found = (own for pattern in patterns for own in pattern.process_groups if own.name == group)
    return next((own.backend for own in found), "")
