"""Least differences between the moments at which members leave one execution, by the library that carries it."""

from __future__ import annotations

from collections.abc import Sequence

from eroica.localize.matching import EXIT_US, HOST_EXIT_US
from eroica.model.pattern import WorkerPattern

#: Least exit skew: members of one host under NCCL leave within microseconds, gloo's threads within scheduling slices.
_SKEW_FLOOR_US = {"nccl": 20.0}
SKEW_FLOOR_OTHER_US = 500.0
#: The same where ends were written down: how unevenly members leave is then measured.
_RECORDED_SKEW_FLOOR_US = 5.0


class Carriers:
    """Library of each process group, read once from all workers.

    Attributes:
        backends: Library by name of the group, as the first worker that knows the group names it.
        on_accelerator: Any worker saw device kernels.
    """

    def __init__(self, patterns: Sequence[WorkerPattern]) -> None:
        self.backends: dict[str, str] = {}
        for pattern in patterns:
            for group in pattern.process_groups:
                self.backends.setdefault(group.name, group.backend)
        self.on_accelerator = any(pattern.has_accelerator for pattern in patterns)

    def runs_on_device(self, group: str) -> bool:
        """Recorded traces often do not name the library, but where there is an accelerator it runs on that."""
        backend = self.backends.get(group, "")
        return "nccl" in backend or "rccl" in backend if backend else self.on_accelerator


def skew_floor(carriers: Carriers, group: str) -> float:
    """Least exit skew of a group's library, microseconds."""
    return _SKEW_FLOOR_US.get(carriers.backends.get(group, ""), SKEW_FLOOR_OTHER_US)


def recorded_skew_floor(carriers: Carriers, group: str) -> float:
    """Least exit skew where ends were recorded: less if the library runs on the accelerator."""
    return _RECORDED_SKEW_FLOOR_US if carriers.runs_on_device(group) else skew_floor(carriers, group)


def uneven_exit(carriers: Carriers, group: str) -> float:
    """Return how unevenly members may leave an execution and still have been in the same one, microseconds."""
    return EXIT_US if carriers.runs_on_device(group) else HOST_EXIT_US
