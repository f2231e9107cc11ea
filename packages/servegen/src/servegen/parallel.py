"""Runs one function over many tasks: in this process, in a process pool, or on Ray, with equal results."""

from __future__ import annotations

import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

from servegen.errors import MissingExtra

Shared = TypeVar("Shared")
Task = TypeVar("Task")
Result = TypeVar("Result")
Engine = Literal["process", "ray"]

_worker: dict[str, Any] = {}


def map_ordered(
    function: Callable[[Shared, Task], Result],
    shared: Shared,
    tasks: Iterable[Task],
    workers: int,
    engine: Engine = "process",
) -> Iterator[Result]:
    """Yield function(shared, task) of each task, in the tasks' order.

    `shared` is sent to each worker once. At most two tasks per worker are in flight, so that results which nobody has
    taken yet do not fill the memory.

    Raises:
        MissingExtra: Ray is wanted and not installed.
    """
    if engine == "process" and workers <= 1:
        yield from (function(shared, task) for task in tasks)
        return
    with (_on_ray if engine == "ray" else _in_processes)(function, shared, workers) as (begin, finish):
        waiting: deque[Any] = deque()
        for task in tasks:
            waiting.append(begin(task))
            if len(waiting) >= 2 * workers:
                yield finish(waiting.popleft())
        while waiting:
            yield finish(waiting.popleft())


@contextmanager
def _in_processes(function: Any, shared: Any, workers: int) -> Iterator[tuple[Any, Any]]:
    """Give the functions that begin a task in a process pool, and that finish it."""
    context = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(workers, context, initializer=_set_up, initargs=(function, shared)) as executor:
        yield lambda task: executor.submit(_run, task), Future.result


def _set_up(function: Any, shared: Any) -> None:
    _worker.update(function=function, shared=shared)


def _run(task: Any) -> Any:
    return _worker["function"](_worker["shared"], task)


@contextmanager
def _on_ray(function: Any, shared: Any, workers: int) -> Iterator[tuple[Any, Any]]:
    """Give the functions that begin a task on Ray, and that finish it.

    Ray is the one that the caller started, or that RAY_ADDRESS names, or one of its own.
    """
    try:
        import ray
    except ImportError as error:
        raise MissingExtra("Ray is not installed; `pip install 'servegen[ray]'`") from error
    started = not ray.is_initialized()
    if started:
        address = os.environ.get("RAY_ADDRESS") or "local"
        own: dict[str, Any] = {"num_cpus": workers, "include_dashboard": False} if address == "local" else {}
        ray.init(address, log_to_driver=False, logging_level="ERROR", **own)
    try:
        remote, everywhere = ray.remote(function), ray.put(shared)
        yield lambda task: remote.remote(everywhere, task), ray.get
    finally:
        if started:
            ray.shutdown()
