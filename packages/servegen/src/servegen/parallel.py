"""Runs one function over many tasks: in this process, in a process pool, or on Ray, with equal results."""

from __future__ import annotations

import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any, Literal, TypeVar

from servegen.errors import MissingExtra

Shared = TypeVar("Shared")
Task = TypeVar("Task")
Result = TypeVar("Result")
Engine = Literal["process", "ray"]

_worker: dict[str, Any] = {}


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


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
    if engine == "ray":
        yield from _on_ray(function, shared, tasks, workers)
    elif workers <= 1:
        yield from (function(shared, task) for task in tasks)
    else:
        context = multiprocessing.get_context("forkserver")
        with ProcessPoolExecutor(workers, context, initializer=_set_up, initargs=(function, shared)) as executor:
            yield from _in_flight(
                tasks, 2 * workers, lambda task: executor.submit(_run, task), lambda future: future.result()
            )


def _set_up(function: Any, shared: Any) -> None:
    _worker.update(function=function, shared=shared)


def _run(task: Any) -> Any:
    return _worker["function"](_worker["shared"], task)


def _in_flight(
    tasks: Iterable[Any], most: int, begin: Callable[[Any], Any], finish: Callable[[Any], Any]
) -> Iterator[Any]:
    waiting: deque[Any] = deque()
    for task in tasks:
        waiting.append(begin(task))
        if len(waiting) >= most:
            yield finish(waiting.popleft())
    while waiting:
        yield finish(waiting.popleft())


def _on_ray(
    function: Callable[[Shared, Task], Result], shared: Shared, tasks: Iterable[Task], workers: int
) -> Iterator[Result]:
    try:
        import ray
    except ImportError as error:
        raise MissingExtra("Ray is not installed; `pip install 'servegen[ray]'`") from error
    started = not ray.is_initialized()
    if started:
        ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        remote, everywhere = ray.remote(function), ray.put(shared)
        yield from _in_flight(tasks, 2 * workers, lambda task: remote.remote(everywhere, task), ray.get)
    finally:
        if started:
            ray.shutdown()
