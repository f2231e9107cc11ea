"""Workers that run tests: processes of this machine by default, or machines of a Ray cluster. Equal results in any order.

A worker is a separate single-threaded process which reads jobs and writes verdicts as length-prefixed messages. It forks one
sandbox per test. It ends when the process that started it ends, and its sandbox with it.
"""

import asyncio
import contextlib
import os
import signal
import struct
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, BinaryIO

import msgspec

from cloudeval.errors import RunnerError, UsageError
from cloudeval.judging import judge
from cloudeval.problems import Variant
from cloudeval.records import UNJUDGED, Verdict
from cloudeval.runners import cgroups, linux

_SERVE = "import sys; from cloudeval.workers import serve; serve(sys.stdin.buffer, sys.stdout.buffer)"
_PIPE = asyncio.subprocess.PIPE


class Task(msgspec.Struct, frozen=True):
    """A test for a worker."""

    number: int
    variant: Variant
    text: str


class Done(msgspec.Struct, frozen=True):
    """A test's verdict."""

    number: int
    verdict: Verdict


def serve(source: BinaryIO, sink: BinaryIO) -> None:
    """Run tests until the source ends: the life of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    linux.die_with_parent()
    decoder = msgspec.json.Decoder(Task)
    while header := source.read(4):
        test = decoder.decode(source.read(struct.unpack("!I", header)[0]))
        sink.write(_message(Done(test.number, _safely(test))))
        sink.flush()


def _message(record: Task | Done) -> bytes:
    message = msgspec.json.encode(record)
    return struct.pack("!I", len(message)) + message


def _safely(test: Task) -> Verdict:
    try:
        return judge(test.variant, test.text)
    except Exception as error:  # noqa: BLE001  one test must not end the worker
        return Verdict(UNJUDGED, "runner", f"{type(error).__name__}: {error}")


class Worker:
    """The parent's side of one worker process; a dead worker is replaced, and its test repeated once."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None

    async def run(self, test: Task) -> Done:
        """Run one test."""
        for _ in range(2):
            try:
                return await self._exchange(await self._started(), test)
            except (asyncio.IncompleteReadError, OSError):
                await self.close()
        reason = "the worker process ended twice during this test"
        return Done(test.number, Verdict(UNJUDGED, "runner", reason, attempts=2))

    async def _started(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", _SERVE, stdin=_PIPE, stdout=_PIPE, limit=1 << 24, start_new_session=True
            )
        return self._process

    @staticmethod
    async def _exchange(process: asyncio.subprocess.Process, test: Task) -> Done:
        assert process.stdin and process.stdout
        process.stdin.write(_message(test))
        await process.stdin.drain()
        async with asyncio.timeout(test.variant.timeout_s * 4 + 60):
            size = struct.unpack("!I", await process.stdout.readexactly(4))[0]
            return msgspec.json.decode(await process.stdout.readexactly(size), type=Done)

    async def close(self) -> None:
        """End the process, and with it its sandbox."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
            cgroups.sweep()
        self._process = None


async def run_local(tests: Iterable[Task], workers: int) -> AsyncIterator[Done]:
    """Run tests on worker processes of this machine and yield verdicts as they come."""
    cgroups.sweep()
    waiting, done = list(tests)[::-1], asyncio.Queue[Done]()

    async def work() -> None:
        worker = Worker()
        try:
            while waiting:
                done.put_nowait(await worker.run(waiting.pop()))
        finally:
            await worker.close()

    count = len(waiting)
    tasks = [asyncio.create_task(work()) for _ in range(max(1, workers))]
    try:
        for _ in range(count):
            yield await done.get()
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        cgroups.sweep()


async def run_ray(tests: Iterable[Task], address: str, workers: int) -> AsyncIterator[Done]:
    """Run tests on the Ray cluster at `address` ("local": one of its own): `workers` actors, each with a process."""
    try:
        import ray
    except ImportError as error:
        raise UsageError('Ray is not installed; pip install "cloudeval[ray]"') from error

    class Actor:
        def __init__(self) -> None:
            self.worker = Worker()

        async def run(self, message: bytes) -> bytes:
            return msgspec.json.encode(await self.worker.run(msgspec.json.decode(message, type=Task)))

    started_here = not ray.is_initialized()
    if started_here:
        ray.init(address=address, log_to_driver=False, include_dashboard=False, namespace=f"cloudeval-{os.getpid()}")
    try:
        actors = [ray.remote(Actor).options(num_cpus=1).remote() for _ in range(max(1, workers))]
        pool, queue = list(actors), list(tests)
        pending: dict[Any, Any] = {}
        while queue or pending:
            while queue and pool:
                actor = pool.pop()
                pending[actor.run.remote(msgspec.json.encode(queue.pop(0)))] = actor
            ready, _ = await asyncio.to_thread(ray.wait, list(pending), num_returns=1)
            for reference in ready:
                pool.append(pending.pop(reference))
                yield msgspec.json.decode(await asyncio.to_thread(ray.get, reference), type=Done)
    finally:
        if started_here:
            ray.shutdown()


def run_all(
    tests: Iterable[Task],
    workers: int = 1,
    ray_address: str | None = None,
    on_done: Callable[[Done], Any] | None = None,
) -> list[Done]:
    """Run tests and return the verdicts in the order of the tests."""

    async def collect() -> list[Done]:
        source = run_local(tests, workers) if ray_address is None else run_ray(tests, ray_address, workers)
        found = []
        async for item in source:
            found.append(item)
            if on_done:
                on_done(item)
        return sorted(found, key=lambda item: item.number)

    if ray_address is None and os.name != "posix":
        raise RunnerError("workers need Linux")
    return asyncio.run(collect())
