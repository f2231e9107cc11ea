"""One window on this host: orders given, stacks and hardware sampled, traces summarized, patterns handed over."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import subprocess
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import msgspec

from eroica.agent.roster import LocalWorker
from eroica.agent.setup import process_setup
from eroica.agent.stacks import StackSampler, affordable_children, affordable_hz
from eroica.errors import EroicaError
from eroica.settings import Settings
from eroica.summarize.setup import SETUP_FILE
from eroica.wire import beat
from eroica.wire.messages import OrderMessage
from eroica.wire.places import private_directory, write_private
from eroica.worker.launch import program

log = logging.getLogger("eroica.agent")
_OVER = ("closed", "done", "missed", "skipped", "failed")
_BYTES_PER_EVENT = 500  # of a saved trace, with the stacks sampled beside it; 344 measured on a small transformer
_LOST = ("missed", "skipped", "failed")
Deliver = Callable[[int, bytes], Awaitable[None]]
Regret = Callable[[int, int, str], Awaitable[None]]


def event_budget(scratch: Path, workers: int, scratch_bytes: int) -> int:
    """Trace events per worker that fit into the scratch directory; 0 where nobody can tell.

    Half of the free disk at most, and `scratch_bytes` at most, for all workers of the host together.
    """
    try:
        free = shutil.disk_usage(scratch).free
    except OSError:
        return 0
    return max(1, min(scratch_bytes, free // 2) // (max(1, workers) * _BYTES_PER_EVENT))


class HostWindow:
    """The current order on this host's workers.

    Args:
        order: What the collector wants.
        workers: This host's living workers.
        scratch: The host's scratch directory.
        settings: Tunables.
        outside: Whether stacks can be sampled from outside, and if not, why.
        deliver: Called with (global rank, encoded pattern).
        regret: Called with (window id, global rank, why there is no pattern).
    """

    def __init__(
        self,
        order: OrderMessage,
        workers: list[LocalWorker],
        scratch: Path,
        settings: Settings,
        outside: tuple[bool, str],
        deliver: Deliver,
        regret: Regret,
    ) -> None:
        self.order = order
        self.directory = scratch / f"window-{order.window_id}"
        self.notes: list[str] = []
        self._workers = workers
        self._settings = settings
        self._outside = outside
        self._deliver = deliver
        self._regret = regret
        self._stacks: dict[int, StackSampler] = {}
        self._hardware: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Give every worker its order; for a real window, start the samplers. Takes tens of milliseconds."""
        kind = {"probe": beat.PROBE, "window": beat.WINDOW, "cancel": beat.CANCEL}[self.order.kind]
        flags = beat.TRACE_PYTHON_CALLS if self._settings.trace_python_calls else 0
        directories = {w.worker.pid: private_directory(self.directory / str(w.worker.pid)) for w in self._workers}
        inside_hz = self._inside_hz() if kind == beat.WINDOW else 0
        for worker in self._workers:
            worker.reader.give(
                beat.Order(
                    self.order.window_id,
                    kind,
                    flags,
                    self.order.first_iteration,
                    self.order.last_iteration,
                    self.order.max_events,
                    inside_hz,
                    str(directories[worker.worker.pid]),
                )
            )
        if kind == beat.WINDOW:
            self._write_setup(directories)
            if not inside_hz and self._sampler != "none":
                self._start_stacks(directories)
            if self._settings.hardware:
                self._start_hardware()

    def _write_setup(self, directories: Mapping[int, Path]) -> None:
        """What can be read of the workers' processes from outside, for the summaries; a window goes on without it."""
        for pid, directory in directories.items():
            try:
                write_private(directory / SETUP_FILE, msgspec.json.encode(process_setup(pid)))
            except OSError as error:
                self.notes.append(f"how process {pid} is set up is not known: {error}")

    async def follow(self, give_up_after_s: float) -> None:
        """Wait until every worker closed its window, then summarize one after another; ends with the scratch empty."""
        try:
            await self._follow(give_up_after_s)
        finally:
            await asyncio.to_thread(self._stop_samplers)
            if not self._settings.keep_traces:
                await asyncio.to_thread(shutil.rmtree, self.directory, True)

    async def give_up(self, why: str) -> None:
        """Say for every worker that nothing will come."""
        for worker in self._workers:
            await self._regret(self.order.window_id, worker.worker.global_rank, why)

    async def _follow(self, give_up_after_s: float) -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._all_over(), give_up_after_s)
        await asyncio.to_thread(self._stop_samplers)
        slots = asyncio.Semaphore(max(1, (os.cpu_count() or 1) // 2))
        await asyncio.gather(*(self._summarize(worker, slots, give_up_after_s) for worker in self._workers))

    # ------------------------------------------------------------------ samplers

    @property
    def _sampler(self) -> str:
        """Who samples stacks; nobody where every call is traced."""
        return "none" if self._settings.trace_python_calls else self._settings.sampler

    def _inside_hz(self) -> int:
        """The rate at which the workers sample themselves; 0 where py-spy can do it from outside."""
        hz, mode = self._settings.sampling_hz, self._sampler
        if mode == "inside":
            return hz
        if mode == "none" or not self._workers:
            return 0
        possible, reason = self._outside
        if possible:
            return 0
        if mode == "outside":
            self.notes.append(f"Python stacks are missing: {reason}")
            return 0
        self.notes.append(f"Python stacks come from a thread inside each worker: {reason}")
        return hz

    def _start_stacks(self, directories: Mapping[int, Path]) -> None:
        hz, children = affordable_hz(directories, self._settings.sampling_hz), affordable_children(len(directories))
        for pid, directory in directories.items():
            sampler = StackSampler(pid, directory, hz, most_children=children)
            try:
                sampler.start()
                self._stacks[pid] = sampler
            except EroicaError as error:
                self.notes.append(f"Python stacks of process {pid} are missing: {error}")

    def _start_hardware(self) -> None:
        pairs = [f"{worker.worker.pid}:{worker.training_thread_id}" for worker in self._workers]
        arguments = [argument for pair in pairs for argument in ("--pid", pair)]
        directory = private_directory(self.directory / "hardware")
        try:
            self._hardware = subprocess.Popen(
                program(
                    "eroica.hardware",
                    *arguments,
                    "--out",
                    str(directory),
                    "--hz",
                    str(max(1, self._settings.thread_state_hz)),
                ),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        except OSError as error:
            self.notes.append(f"hardware channels are missing: {error}")

    def _stop_samplers(self) -> None:
        stacks, self._stacks = self._stacks, {}
        for sampler in stacks.values():
            sampler.interrupt()
        for pid, sampler in stacks.items():
            try:
                self.notes.extend(f"process {pid}: {note}" for note in sampler.stop())
            except EroicaError as error:
                self.notes.append(str(error))
        hardware, self._hardware = self._hardware, None
        if hardware is None:
            return
        with contextlib.suppress(ProcessLookupError):
            hardware.send_signal(signal.SIGTERM)
        try:
            hardware.wait(5.0)
        except subprocess.TimeoutExpired:
            hardware.kill()
            hardware.wait()

    # ------------------------------------------------------------------ waiting

    def _status(self, worker: LocalWorker) -> str:
        result = worker.result()
        mine = result.window_id == self.order.window_id and result.kind == self.order.kind
        return result.status if mine else "nothing"

    async def _all_over(self) -> None:
        while not all(worker.ended or self._status(worker) in _OVER for worker in self._workers):
            await asyncio.sleep(0.1)

    async def _saved(self, worker: LocalWorker, limit_s: float) -> bool:
        loop = asyncio.get_running_loop()
        end = loop.time() + limit_s
        while loop.time() < end:
            status = self._status(worker)
            if status == "done":
                return True
            if status in _LOST or worker.ended:
                return (self.directory / str(worker.worker.pid) / "capture.json").exists()
            await asyncio.sleep(0.1)
        return False

    # ------------------------------------------------------------------ summaries

    async def _summarize(self, worker: LocalWorker, slots: asyncio.Semaphore, limit_s: float) -> None:
        rank, window_id = worker.worker.global_rank, self.order.window_id
        if not await self._saved(worker, limit_s):
            status = self._status(worker)
            if status not in _LOST:
                await self._regret(window_id, rank, "the capture was never handed over")
            return
        directory = self.directory / str(worker.worker.pid)
        async with slots:
            failure = await self._run_summary(directory, limit_s)
        pattern = directory / "pattern"
        if failure or not pattern.exists():
            await self._regret(window_id, rank, f"the summary failed: {failure or 'no pattern written'}")
            return
        await self._deliver(rank, pattern.read_bytes())

    async def _run_summary(self, directory: Path, limit_s: float) -> str:
        """Summarize in a process of its own; returns why it failed, empty if it did not."""
        process = await asyncio.create_subprocess_exec(
            *program(
                "eroica.summarize",
                str(directory / "capture.json"), str(self.directory / "hardware"), str(directory / "pattern"),
            ),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip
        try:
            _, stderr = await asyncio.wait_for(process.communicate(), limit_s)
        except asyncio.TimeoutError:
            process.kill()
            await process.wait()
            return f"it took longer than {limit_s:.0f} s"
        text = stderr.decode("utf-8", "replace").strip()
        if process.returncode:
            log.warning("summary of %s failed: %s", directory, text)
            return text.splitlines()[-1][:300] if text else f"exit status {process.returncode}"
        return ""
