"""Parts that installed packages add to the agent (`eroica.agent`) and to the collector (`eroica.collector`).

An entry point of these groups is called with the `Agent` or the `Collector`, and returns a part, or None if it has
nothing to do in this job. A part that raises is dropped with one note; the job and the others go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from prometheus_client import Metric

#: Bytes of one record of an agent's part; a larger one is left out.
MOST_BYTES = 200_000


class AgentPart(Protocol):
    """Watches a host's workers (`run`, until cancelled); `take` is told to its like in the collector with a report."""

    async def run(self) -> None: ...  # noqa: D102
    def take(self) -> bytes: ...  # noqa: D102


class CollectorPart(Protocol):
    """Is told what agents' parts of its name take (a stranger's bytes), and the time twice a second.

    `Collector.found` takes its verdicts, `Collector.listeners` hear all. `close` takes so long at most.
    """

    def reported(self, host: str, record: bytes) -> None: ...  # noqa: D102
    def tick(self) -> None: ...  # noqa: D102
    def metrics(self) -> Iterable[Metric]: ...  # noqa: D102
    async def close(self, patience_s: float) -> None: ...  # noqa: D102


class Parts:
    """The parts of one process: of an entry point group, made with its `host`; `note` takes a sentence for the user."""

    def __init__(self, group: str, host: object, note: Callable[[str], object]) -> None:
        self._note = note
        self._parts: dict[str, Any] = {}
        for entry in entry_points(group=group):
            if (part := self._tried(entry.name, lambda one: one.load()(host), entry)) is not None:
                self._parts[entry.name] = part

    def call(self, method: str, *given: object, name: str = "") -> dict[str, Any]:
        """Call a method of all parts, or of the one of this name; return what each said, None where it failed."""
        chosen = {one: part for one, part in self._parts.items() if name in ("", one)}

        def answer(part: Any) -> Any:
            said = getattr(part, method)(*given)
            return list(said) if isinstance(said, Iterator) else said

        return {one: self._tried(one, answer, part) for one, part in chosen.items()}

    async def call_async(self, method: str, *given: object) -> None:
        """Call a method of all parts that takes time, at once."""

        async def call(name: str, part: Any) -> None:
            try:
                await getattr(part, method)(*given)
            except Exception as error:  # noqa: BLE001 - as below
                self._drop(name, error)

        await asyncio.gather(*(call(name, part) for name, part in self._parts.items()))

    def _tried(self, name: str, work: Callable[[Any], Any], given: object) -> Any:
        try:
            return work(given)
        except Exception as error:  # noqa: BLE001 - it is not ours, and the job is watched without it
            self._drop(name, error)
            return None

    def _drop(self, name: str, error: Exception) -> None:
        self._parts.pop(name, None)
        self._note(f"{name} is off: {type(error).__name__}: {error}"[:300])
