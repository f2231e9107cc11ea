"""Keep patterns as they come until their window is judged: on disk, in one file a window.

The state machines need of a pattern whose it is and how long its iterations took: its head. A window of few workers
ends as a file for each of them; one of many keeps its one file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path

from eroica.archive.bundle import Bundle
from eroica.archive.forget import BUNDLE_FILE
from eroica.archive.load import open_window, read_contents
from eroica.archive.store import Store
from eroica.collector.intake import clean_pattern
from eroica.errors import InputError
from eroica.model.pattern import Neighbor, WorkerPattern
from eroica.wire.codec import decode_record
from eroica.wire.places import write_whole

#: Up to so many workers get a file each.
FEW_WORKERS = 256
#: Workers left out whose reason is told; the rest is a number.
_NAMED = 20
#: What heads carry of a worker's host, so that a baseline window is known to be disturbed: facts, and processes.
_FACTS, _PROCESSES = ("cores_outside", "run_queue_wait", "cpu_count"), 3


class Arrivals:
    """Patterns of a job's windows.

    Args:
        store: The run directory.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._bundles: dict[int, Bundle] = {}
        self._unwritten: dict[int, dict[int, bytes]] = {}

    def take(self, head: WorkerPattern, content: bytes) -> None:
        """Keep what came of a worker; it outlives this process when this returns.

        Args:
            head: Its head.
            content: As it came.

        Raises:
            OSError: It could not be written, and is kept in memory.
            InputError: The window's file is damaged; as before.
        """
        window_id, rank = head.window_id, head.worker.global_rank
        try:
            if window_id not in self._bundles:
                self._bundles[window_id] = Bundle(self._file(window_id), append=True)
            self._bundles[window_id].add(rank, content)
        except (OSError, InputError):
            self._unwritten.setdefault(window_id, {})[rank] = content
            raise
        self._unwritten.get(window_id, {}).pop(rank, None)

    def whole(self, heads: Sequence[WorkerPattern]) -> tuple[tuple[WorkerPattern, ...], tuple[str, ...]]:
        """Decode patterns of one window; to be called in a thread.

        Args:
            heads: Which ones.

        Returns:
            Those that are whole, in the order of their heads, and why each other worker is left out; a bounded list.
        """
        if not heads:
            return (), ()
        found: dict[int, WorkerPattern] = {}
        why: dict[str, str] = {}
        window_id = heads[0].window_id
        kept = read_contents(open_window(self._store.window_directory(window_id)).pattern_files)
        unwritten = [(f"worker {rank}", data) for rank, data in list(self._unwritten.get(window_id, {}).items())]
        for name, content in chain(kept, unwritten):
            try:
                pattern = clean_pattern(decode_record(_there(content), WorkerPattern))
                found[pattern.worker.global_rank] = pattern
            except InputError as error:
                why[name] = str(error)
        ranks = [head.worker.global_rank for head in heads]
        notes = [f"worker {rank}: {_reason(why, rank)}" for rank in ranks if rank not in found]
        more = [f"and {len(notes) - _NAMED} more workers left out"] if len(notes) > _NAMED else []
        return tuple(found[rank] for rank in ranks if rank in found), (*notes[:_NAMED], *more)

    def settle(self, window_id: int) -> int:
        """Give each worker of a small window a file; to be called in a thread.

        Returns:
            Workers whose file was written, so that the window's one file is not needed any more; see `close`.

        Raises:
            OSError: Not all could be written.
        """
        file = self._file(window_id)
        if not file.exists():
            return 0
        with Bundle(file) as bundle:
            if len(bundle.ranks) > FEW_WORKERS:
                return 0
            for rank in bundle.ranks:
                with contextlib.suppress(InputError):  # nothing is lost by that: it is damaged
                    write_whole(file.with_name(f"{rank}.pattern"), bundle.read(rank))
            return len(bundle.ranks)

    def close(self, window_id: int, settled: int) -> None:
        """A window is judged: nothing comes any more.

        Args:
            window_id: Which one.
            settled: As `settle` said.
        """
        bundle = self._bundles.pop(window_id, None)
        if bundle is not None:
            bundle.close()
        if settled and (bundle is None or len(bundle.ranks) == settled):  # else somebody came late
            self._file(window_id).unlink(missing_ok=True)

    def forget(self, window_id: int) -> None:
        """Nobody will ask for these patterns again: what could not be written goes, too."""
        self._unwritten.pop(window_id, None)

    def _file(self, window_id: int) -> Path:
        return self._store.window_directory(window_id) / "patterns" / BUNDLE_FILE


def _reason(why: dict[str, str], rank: int) -> str:
    """Tell why a worker's pattern is left out; patterns are read under these names."""
    names = f"worker {rank}", f"{rank}.pattern", BUNDLE_FILE
    return next((why[name] for name in names if name in why), "its pattern is not there any more")


def _there(content: bytes | str) -> bytes:
    if isinstance(content, str):
        raise InputError(content.removeprefix(": ").strip())
    return content


def heaviest(neighbors: Iterable[Neighbor]) -> list[Neighbor]:
    """Return the few processes beside the job that use most cores."""
    return sorted(neighbors, key=lambda each: -each.cpu_cores)[:_PROCESSES]


def head_in(content: bytes) -> WorkerPattern:
    """Take the head from what came of a worker, which is checked to its end: no rows, and little else.

    Raises:
        InputError: It is none, or nobody's.
    """
    pattern = clean_pattern(decode_record(content, WorkerPattern))
    return WorkerPattern(
        worker=pattern.worker,
        window_id=pattern.window_id,
        first_iteration=pattern.first_iteration,
        last_iteration=pattern.last_iteration,
        duration_s=pattern.duration_s,
        has_trace=pattern.has_trace,
        iteration_us=pattern.iteration_us,
        wait_us=b"",
        functions=(),
        has_accelerator=pattern.has_accelerator,
        host_facts={name: pattern.host_facts[name] for name in _FACTS if name in pattern.host_facts},
        neighbors=tuple(heaviest(pattern.neighbors)),
    )


def heads_in(paths: Iterable[Path]) -> tuple[tuple[WorkerPattern, ...], tuple[str, ...]]:
    """Heads of all patterns in some files, in order of global rank, and what cannot be read."""
    heads, refused = dict[int, WorkerPattern](), list[str]()
    for name, content in read_contents(tuple(paths)):
        try:
            head = head_in(_there(content))
            heads.setdefault(head.worker.global_rank, head)
        except InputError as error:
            refused.append(f"{name} was left out: {error}")
    return tuple(heads[rank] for rank in sorted(heads)), tuple(refused)
