"""Where an analysis runs its steps of many parts: in this process, or on Ray.

A step takes one part (the patterns of some workers, the groups of one shape) and knows nothing of the others, so it
gives the same bits wherever it runs. What needs all workers at once stays with whoever asked. Standard library only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

from eroica.errors import UsageError

Part = TypeVar("Part")
Result = TypeVar("Result")
#: What one process was measured to carry (docs/scale.md): 100,032 workers in a minute and 4.2 GB.
ONE_PROCESS_WORKERS = 100_032


class Engine(Protocol):
    """Runs steps.

    Attributes:
        name: "local" or "ray": where steps ran so far.
        why: Why there, in one clause.
    """

    name: str
    why: str

    def map(self, step: Callable[[Part], Result], parts: Iterable[Part]) -> Iterator[Result]:
        """The step's results in order of the parts.

        Args:
            step: A function of a module; it and its parts can be pickled.
            parts: Read as far as there is somebody to work on them.

        Raises:
            Exception: What the step raises.
        """
        ...


class Local:
    """This process."""

    name = "local"

    def __init__(self, why: str) -> None:
        self.why = why

    def map(self, step: Callable[[Part], Result], parts: Iterable[Part]) -> Iterator[Result]:
        """The step's results, one after another."""
        return map(step, parts)


#: For steps of which no verdict tells where they ran.
HERE = Local("asked for")


def check_engine(text: str) -> None:
    """Look whether a setting names an engine.

    Raises:
        UsageError: It does not.
    """
    if text not in ("auto", "local", "ray") and not (text.startswith("ray://") and len(text) > len("ray://")):
        raise UsageError(f"setting engine cannot be {text!r}; it wants auto, local, ray or ray://HOST:PORT")


def choose_engine(asked: str, workers: int) -> Engine:
    """The engine for a window.

    Args:
        asked: The setting: "auto", "local", "ray", or "ray://HOST:PORT" of a cluster.
        workers: How many patterns there are.

    Returns:
        Ray where it is asked for, or where there are more workers than one process was measured to carry and Ray is
        installed; else this process. Ray that is missing or does not start is no error: `why` says it.

    Raises:
        UsageError: `asked` names no engine.
    """
    check_engine(asked)
    if asked == "local":
        return Local("asked for")
    fits = workers <= ONE_PROCESS_WORKERS
    if asked == "auto" and fits:
        return Local(f"one process carries {ONE_PROCESS_WORKERS:,} workers")
    from eroica.engine.on_ray import OnRay, is_installed

    if not is_installed():
        too_many = "" if fits else f"more than {ONE_PROCESS_WORKERS:,} workers, but "
        return Local(f"{too_many}ray is not installed")
    address = asked if asked.startswith("ray://") else ""
    return OnRay(address, "asked for" if asked != "auto" else f"more than {ONE_PROCESS_WORKERS:,} workers")
