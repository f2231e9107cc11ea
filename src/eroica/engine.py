"""Where an analysis runs its steps of many parts: in this process, or on Ray.

A step takes one part (the patterns of some workers, the groups of one shape) and knows nothing of the others, so it
gives the same bits wherever it runs. What needs all workers at once stays with whoever asked.
On Ray a step is tried again where its worker dies, and done here where Ray itself is gone.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from eroica import __version__
from eroica.errors import UnavailableError
from eroica.settings import check_engine

log = logging.getLogger("eroica.engine")
Part = TypeVar("Part")
Result = TypeVar("Result")
#: What one process was measured to carry (docs/scale.md): 100,032 workers in a minute and 4.2 GB.
ONE_PROCESS_WORKERS = 100_032
#: Parts under way for each core of the cluster: enough that none waits, few enough that memory is bounded.
_AHEAD = 2
#: How often a part whose worker died is given to another one.
_TRIES = 20


class Engine:
    """Runs steps, in this process.

    Args:
        why: Why here, in one clause.

    Attributes:
        name: "local" or "ray": where steps ran so far.
    """

    def __init__(self, why: str) -> None:
        self.name, self.why = "local", why

    def map(self, step: Callable[[Part], Result], parts: Iterable[Part]) -> Iterator[Result]:
        """Return the step's results in order of the parts.

        Args:
            step: A function of a module; it and its parts can be pickled.
            parts: Read as far as there is somebody to work on them.

        Raises:
            Exception: What the step raises.
        """
        return map(step, parts)


#: For steps of which no verdict tells where they ran.
HERE = Engine("asked for")


def choose_engine(asked: str, workers: int) -> Engine:
    """Choose the engine for a window.

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
        return Engine("asked for")
    fits = workers <= ONE_PROCESS_WORKERS
    if asked == "auto" and fits:
        return Engine(f"one process carries {ONE_PROCESS_WORKERS:,} workers")
    if not is_installed():
        too_many = "" if fits else f"more than {ONE_PROCESS_WORKERS:,} workers, but "
        return Engine(f"{too_many}ray is not installed")
    address = asked if asked.startswith("ray://") else ""
    return OnRay(address, "asked for" if asked != "auto" else f"more than {ONE_PROCESS_WORKERS:,} workers")


def is_installed() -> bool:
    """Whether Ray can be imported here."""
    return importlib.util.find_spec("ray") is not None


def run_step(version: str, step: Callable[[Any], Any], part: Any) -> tuple[bool, Any]:
    """Run a step on one part, on a worker of Ray.

    Returns:
        Whether it went well, and the result; else what the step raised.

    Raises:
        UnavailableError: This worker has another Eroica than who asks.
    """
    if version != __version__:
        raise UnavailableError(f"Ray's workers have Eroica {__version__}, and this is {version}; install the same")
    try:
        return True, step(part)
    except Exception as error:  # noqa: BLE001 - it is raised where the result is asked for
        return False, error


class OnRay(Engine):
    """A cluster of Ray, started in this host where no address is given and `RAY_ADDRESS` names none.

    Args:
        address: "ray://HOST:PORT", or "" for the one that Ray finds or starts itself.
        why: Why Ray was chosen.

    Attributes:
        name: "ray"; "local" from when on Ray failed.
    """

    def __init__(self, address: str, why: str) -> None:
        super().__init__(why)
        self.name = "ray"
        self._address = address
        self._remote: Any = None
        self._most = 0

    def map(self, step: Callable[[Part], Result], parts: Iterable[Part]) -> Iterator[Result]:
        """Yield the results in order; a part whose worker died is done again, and all are done here if Ray fails."""
        under_way: deque[tuple[Part, Any]] = deque()
        for part in parts:
            under_way.append((part, self._submit(step, part)))
            if len(under_way) >= self._most:
                yield self._result(step, *under_way.popleft())
        while under_way:
            yield self._result(step, *under_way.popleft())

    def _submit(self, step: Callable[[Part], Result], part: Part) -> Any:
        """Submit a part; return what to ask for its result, None if the step is to run here."""
        return self._guarded(lambda: self._connected().remote(__version__, step, part)) if self.name == "ray" else None

    def _result(self, step: Callable[[Part], Result], part: Part, reference: Any) -> Result:
        told = None
        if reference is not None and self.name == "ray":
            told = self._guarded(lambda: sys.modules["ray"].get(reference))
        if told is None:
            return step(part)
        went_well, result = told
        if not went_well:
            raise result
        return result  # type: ignore[no-any-return]

    def _guarded(self, ask: Callable[[], Any]) -> Any:
        """Return an answer of Ray; None if Ray fails, and from then on everything is done here."""
        try:
            return ask()
        except Exception as error:  # noqa: BLE001 - whatever Ray, its network or its cluster raises costs time only
            told = " ".join(str(error).split())[:200]
            log.warning("ray failed: %s: %s", type(error).__name__, told)
            self.name, self.why, self._most = "local", f"ray failed ({type(error).__name__}: {told})", 0
            return None

    def _connected(self) -> Any:
        """Return what runs a step on a worker."""
        if self._remote is not None:
            return self._remote
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nobody is told that we use it
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # devices are none of our business
        import ray

        if not ray.is_initialized():
            quiet = {} if self._address else {"include_dashboard": False}
            try:
                ray.init(self._address or None, log_to_driver=False, logging_level=logging.ERROR, **quiet)
            except Exception:
                ray.shutdown()  # else this process stays a client of a cluster that is not there, or keeps half a Ray
                raise
        self._remote = ray.remote(max_retries=_TRIES)(run_step)
        self._most = max(_AHEAD * int(ray.cluster_resources().get("CPU", 1)), 2)
        return self._remote
