"""Workers that run tests: processes of this machine by default, or machines of a Ray cluster. Equal results in any order.

A worker is a separate single-threaded process that forks one sandbox per test. It ends when the process that started it ends,
and its sandbox with it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any

from cloudeval.errors import UsageError
from cloudeval.judging import judge
from cloudeval.problems import Variant
from cloudeval.records import UNJUDGED, Verdict
from cloudeval.runners import cgroups, linux

#: A problem's variant and the text of an answer.
Test = tuple[Variant, str]
_context = multiprocessing.get_context("spawn")


def _serve(pipe: Connection[Any, Any]) -> None:
    """Run tests until the pipe ends: the life of a worker process."""
    linux.die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's
    with contextlib.suppress(EOFError):
        while True:
            variant, text = pipe.recv()
            try:
                verdict = judge(variant, text)
            except Exception as error:  # noqa: BLE001  one test must not end the worker
                verdict = Verdict(UNJUDGED, "runner", f"{type(error).__name__}: {error}")
            pipe.send(verdict)


class Worker:
    """The parent's side of one worker process."""

    def __init__(self) -> None:
        self.pipe, theirs = _context.Pipe()
        self.process = _context.Process(target=_serve, args=(theirs,), daemon=True)
        handler = None
        if threading.current_thread() is threading.main_thread():  # other threads may set no handlers
            handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process inherits it until it has started
        self.process.start()
        if handler is not None:
            signal.signal(signal.SIGINT, handler)
        theirs.close()
        self.deadline = 0.0

    def close(self) -> None:
        """End the process, and with it its sandbox."""
        self.process.kill()
        self.process.join()
        self.pipe.close()
        cgroups.sweep()


class Crew:
    """Up to `size` worker processes of this machine, kept from one call of `run` to the next."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.idle: list[Worker] = []
        self.busy: dict[Any, tuple[Worker, int, Test, int]] = {}
        cgroups.sweep()

    def run(self, tests: Iterable[Test]) -> Iterator[tuple[int, Verdict]]:
        """Yield number and verdict of each test as they come. A worker that dies is replaced, and its test repeated once."""
        waiting = [(number, test, 1) for number, test in enumerate(tests)][::-1]
        while waiting or self.busy:
            while waiting and len(self.busy) < self.size:
                number, test, attempt = waiting.pop()
                worker = self.idle.pop() if self.idle else Worker()
                worker.deadline = time.monotonic() + test[0].timeout_s * 4 + 60
                self.busy[worker.pipe] = worker, number, test, attempt
                with contextlib.suppress(OSError):  # a dead worker is found below
                    worker.pipe.send(test)
            for pipe in wait(list(self.busy), 5):
                worker, number, test, attempt = self.busy.pop(pipe)
                try:
                    verdict = worker.pipe.recv()
                    self.idle.append(worker)
                except (EOFError, OSError):
                    worker.close()
                    if attempt == 1:
                        waiting.append((number, test, 2))
                        continue
                    reason = "the worker process ended twice during this test"
                    verdict = Verdict(UNJUDGED, "runner", reason, attempts=2)
                yield number, verdict
            for worker, *_ in self.busy.values():
                if time.monotonic() > worker.deadline:
                    worker.process.kill()

    def close(self) -> None:
        """End all workers and their sandboxes."""
        for worker in [*self.idle, *(worker for worker, *_ in self.busy.values())]:
            worker.close()


def _run_ray(tests: Iterable[Test], address: str, workers: int) -> Iterator[tuple[int, Verdict]]:
    """Run tests on the Ray cluster at `address` ("local": one of its own): `workers` actors, each with a worker process."""
    try:
        import ray
    except ImportError as error:
        raise UsageError('Ray is not installed; pip install "cloudeval[ray]"') from error

    class Actor:
        def __init__(self) -> None:
            self.crew = Crew(1)

        def run(self, number: int, test: Test) -> tuple[int, Verdict]:
            return number, next(self.crew.run([test]))[1]

    started_here = not ray.is_initialized()
    if started_here:
        ray.init(address=address, log_to_driver=False, include_dashboard=False, namespace=f"cloudeval-{os.getpid()}")
    try:
        pool = ray.util.ActorPool([ray.remote(Actor).options(num_cpus=1).remote() for _ in range(workers)])
        yield from pool.map_unordered(lambda actor, item: actor.run.remote(*item), enumerate(tests))
    finally:
        if started_here:
            ray.shutdown()


def run_all(
    tests: Iterable[Test],
    workers: int = 1,
    ray_address: str | None = None,
    on_done: Callable[[int, Verdict], None] = lambda *_: None,
) -> list[Verdict]:
    """Run tests and return the verdicts in the order of the tests. `on_done` gets each number and verdict as they come.

    Worker processes import the calling script anew: it must call this function under `if __name__ == "__main__":`.
    """
    crew, found = Crew(max(1, workers)), {}
    with contextlib.closing(crew):
        for number, verdict in crew.run(tests) if ray_address is None else _run_ray(tests, ray_address, crew.size):
            found[number] = verdict
            on_done(number, verdict)
    return [found[number] for number in sorted(found)]
