"""One window on this host: orders given, stacks and hardware sampled, traces summarized, patterns handed over.

Its files lie in the job's scratch directory, of which nothing is left at the end. With `keep_traces` finished windows
stay, as far as half of `scratch_bytes` goes; the other half is for the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import os
import signal
import subprocess
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from eroica.agent.roster import LocalWorker
from eroica.agent.scratch import Scratch
from eroica.agent.setup import process_setup
from eroica.agent.stacks import StackSampler, affordable_children, affordable_hz
from eroica.errors import EroicaError
from eroica.model.window import SETUP_FILE
from eroica.settings import Settings
from eroica.start import isolated
from eroica.wire import beat, patience
from eroica.wire.messages import OrderMessage
from eroica.wire.places import PROBE_FILE, private_directory, write_private

log = logging.getLogger("eroica.agent")
_OVER = ("closed", "done", "missed", "skipped", "failed")
_LOST = ("missed", "skipped", "failed")
#: Workers of a job close a window within a few iterations of each other; who is so far behind does not take part.
_MOST_BEHIND = 3.0
_LEAST_BEHIND_S = 10.0
_LONGEST_NOTE = 300
#: Samples a second of each worker's Python stacks, and of the states of its threads.
_STACKS_HZ = 100
#: Of summaries: one gets a tenth of the core that a rank beside it gets. The lowest priority would be a seventieth, and
#: where all cores are busy a verdict would wait for minutes.
_NICENESS = 10
Deliver = Callable[[int, bytes], Awaitable[None]]
Regret = Callable[[int, int, str], Awaitable[None]]


class HostWindow:
    """The current order on this host's workers.

    Args:
        order: What the collector wants.
        workers: This host's living workers.
        scratch: Where its files go.
        settings: Tunables.
        outside: Whether stacks can be sampled from outside, and if not, why.
        deliver: Called with (global rank, encoded pattern).
        regret: Called with (window id, global rank, why there is no pattern).
    """

    def __init__(
        self,
        order: OrderMessage,
        workers: list[LocalWorker],
        scratch: Scratch,
        settings: Settings,
        outside: tuple[bool, str],
        deliver: Deliver,
        regret: Regret,
    ) -> None:
        self.order = order
        self.directory = scratch.window(order.window_id)
        self.notes: list[str] = []
        self._is_closing = False
        self._scratch = scratch
        self._workers = workers
        self._settings = settings
        self._outside = outside
        self._deliver = deliver
        self._regret = regret
        self._stacks: dict[int, StackSampler] = {}
        self._hardware: subprocess.Popen[bytes] | None = None
        lead = order.first_iteration - max((worker.iteration for worker in workers), default=order.first_iteration)
        length = order.last_iteration - order.first_iteration
        iteration_s = max((worker.iteration_s or 0.0 for worker in workers), default=0.0)
        self._until_closed_s = patience.until_closed_s(lead, length, iteration_s, settings)
        self._until_saved_s = patience.until_saved_s(iteration_s, settings)
        self._behind_s = max(_LEAST_BEHIND_S, _MOST_BEHIND * iteration_s)

    def start(self) -> None:
        """Give every worker its order; for a real window, start the samplers. Takes tens of milliseconds."""
        kind = {"probe": beat.PROBE, "window": beat.WINDOW, "cancel": beat.CANCEL}[self.order.kind]
        flags = 0 if self.order.operators else beat.NO_OPERATORS
        directories = {w.worker.pid: private_directory(self.directory / str(w.worker.pid)) for w in self._workers}
        if kind == beat.PROBE:  # an earlier job of this name, whose traces are kept, may have left one
            for directory in directories.values():
                (directory / PROBE_FILE).unlink(missing_ok=True)
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
            if not inside_hz and self._settings.sampler != "none":
                self._start_stacks(directories)
            self._start_hardware()

    def _write_setup(self, directories: Mapping[int, Path]) -> None:
        """Write the facts that can be read of the workers' processes from outside; a window goes on without them."""
        for pid, directory in directories.items():
            try:
                write_private(directory / SETUP_FILE, msgspec.json.encode(process_setup(pid)))
            except OSError as error:
                self.notes.append(f"how process {pid} is set up is not known: {error}")

    def close_early(self, why: int = 0) -> None:
        """Have every worker close its window at its next iteration, once.

        Args:
            why: `beat.RISEN`, or 0: the job is told to end.
        """
        workers, self._is_closing = () if self._is_closing else self._workers, True
        for worker in workers:
            if not worker.ended and self._status(worker) not in _OVER:
                order = self.order
                first, last = order.first_iteration, order.last_iteration
                worker.reader.give(beat.Order(order.window_id, beat.CLOSE, why, first, last, 0, 0, ""))

    @property
    def is_saved(self) -> bool:
        """Nothing more is to be had of its workers: each has saved what it captured, lost it, or ended."""
        return all(worker.ended or self._status(worker) in ("done", *_LOST) for worker in self._workers)

    async def follow(self) -> None:
        """Wait until every worker closed its window, then summarize one after another; ends with the scratch empty."""
        try:
            await self._follow()
        finally:
            await asyncio.to_thread(self._stop_samplers)
            note = await asyncio.to_thread(self._scratch.release, self.order.window_id)
            if note:
                self.notes.append(note)

    async def give_up(self, why: str) -> None:
        """Say for every worker that nothing will come."""
        for worker in self._workers:
            await self._regret(self.order.window_id, worker.worker.global_rank, why)

    async def _follow(self) -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._all_over(), self._until_closed_s)
        await asyncio.to_thread(self._stop_samplers)
        saved = await asyncio.gather(*(self._saved(worker) for worker in self._workers))
        if self.order.purpose == "baseline":
            await asyncio.to_thread(self._split)
        slots = asyncio.Semaphore(max(1, (os.cpu_count() or 1) // 2))
        work = (self._summarize(worker, is_saved, slots) for worker, is_saved in zip(self._workers, saved, strict=True))
        await asyncio.gather(*work)

    def _split(self) -> None:
        """Cut a baseline window where iterations got longer for good; if that fails, the whole window is judged."""
        captures = [self.directory / str(worker.worker.pid) / "capture.json" for worker in self._workers]
        try:
            note = split_at_rise([path for path in captures if path.exists()])
        except (OSError, ValueError, LookupError) as error:
            note = f"the baseline window could not be looked through: {error}"
        self.notes.extend(filter(None, (note,)))

    # ------------------------------------------------------------------ samplers

    def _inside_hz(self) -> int:
        """The rate at which the workers sample themselves; 0 where py-spy can do it from outside."""
        mode = self._settings.sampler
        if mode == "inside":
            return _STACKS_HZ
        if mode == "none" or not self._workers:
            return 0
        possible, reason = self._outside
        if possible:
            return 0
        if mode == "outside":
            self.notes.append(f"Python stacks are missing: {reason}")
            return 0
        self.notes.append(
            f"Python stacks come from a thread inside each worker, and none from data-loader processes: {reason}"
        )
        return _STACKS_HZ

    def _start_stacks(self, directories: Mapping[int, Path]) -> None:
        hz, children = affordable_hz(directories, _STACKS_HZ), affordable_children(len(directories))
        for pid, directory in directories.items():
            sampler = StackSampler(pid, directory, hz, math.ceil(self._until_closed_s), most_children=children)
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
            with self._hardware_log.open("wb") as log:
                self._hardware = subprocess.Popen(
                    isolated("eroica.hardware.sampler", *arguments, "--out", str(directory)),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=log,
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
        if hardware is not None:
            self._stop_hardware(hardware)

    def _stop_hardware(self, hardware: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(ProcessLookupError):
            hardware.send_signal(signal.SIGTERM)
        try:
            hardware.wait(5.0)
        except subprocess.TimeoutExpired:
            hardware.kill()
            hardware.wait()
        if hardware.returncode not in (0, -signal.SIGTERM):  # it may be told to end before it can listen
            why = _last_words(self._hardware_log, hardware.returncode)
            self.notes.append(f"hardware channels are missing or end early: {why}")

    @property
    def _hardware_log(self) -> Path:
        return self.directory / "hardware.log"

    # ------------------------------------------------------------------ waiting

    def _status(self, worker: LocalWorker) -> str:
        result = worker.result()
        mine = result.window_id == self.order.window_id and result.kind == self.order.kind
        return result.status if mine else "nothing"

    async def _all_over(self) -> None:
        """Every worker has closed its window, or those that go on with the job have, and some do not follow."""
        loop, first_s = asyncio.get_running_loop(), None
        while not all(worker.ended or self._status(worker) in _OVER for worker in self._workers):
            await asyncio.sleep(0.1)
            if first_s is None and any(self._status(worker) in _OVER for worker in self._workers):
                first_s = loop.time()
            if first_s is not None and loop.time() - first_s > self._behind_s:
                return

    async def _saved(self, worker: LocalWorker) -> bool:
        loop = asyncio.get_running_loop()
        end = loop.time() + self._until_saved_s
        while loop.time() < end:
            status = self._status(worker)
            if status == "done":
                return True
            if status in _LOST or worker.ended:
                return (self.directory / str(worker.worker.pid) / "capture.json").exists()
            await asyncio.sleep(0.1)
        return False

    # ------------------------------------------------------------------ summaries

    async def _summarize(self, worker: LocalWorker, is_saved: bool, slots: asyncio.Semaphore) -> None:
        rank, window_id = worker.worker.global_rank, self.order.window_id
        if not is_saved:
            status = self._status(worker)
            if status not in _LOST:
                await self._regret(window_id, rank, "the capture was never handed over")
            return
        directory = self.directory / str(worker.worker.pid)
        async with slots:
            failure = await self._run_summary(directory)
        pattern = directory / "pattern"
        if failure or not pattern.exists():
            await self._regret(window_id, rank, f"the summary failed: {failure or 'no pattern written'}")
            return
        await self._deliver(rank, pattern.read_bytes())

    async def _run_summary(self, directory: Path) -> str:
        """Summarize in a process of its own; returns why it failed, empty if it did not."""
        process = await asyncio.create_subprocess_exec(
            *isolated(
                "eroica.summarize.files",
                str(directory / "capture.json"), str(self.directory / "hardware"), str(directory / "pattern"),
                niceness=_NICENESS,
            ),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        )  # fmt: skip
        try:
            _, stderr = await asyncio.wait_for(process.communicate(), self._until_saved_s)
        except asyncio.TimeoutError:
            process.kill()
            await process.wait()
            return f"it took longer than {self._until_saved_s:.0f} s"
        text = stderr.decode("utf-8", "replace").strip()
        if process.returncode:
            log.warning("summary of %s failed: %s", directory, text)
            return _last_line(text) or f"exit status {process.returncode}"
        return ""


#: Iterations that a baseline needs, and that must be longer after it: fewer may be anything.
_LEAST_BEFORE, _LEAST_AFTER = 8, 4
#: A rise inside a baseline window: by this factor; at most this share of the iterations before it may be as long as
#: those after it, and the other way round.
_TIMES = 1.3
_ASTRAY = 0.2
#: Workers see a change in the same iteration or in the one before: who waits for whom differs.
_EARLIER = 1


def find_rise(durations: Sequence[float]) -> int | None:
    """Count the iterations before a lasting rise; None if there is none.

    The split that leaves the fewest iterations on the wrong side of the middle between both medians; of several, the
    one with the largest ratio of these.

    Args:
        durations: Of the iterations of a window, in order, any unit.
    """
    found = []
    for count in range(_LEAST_BEFORE, len(durations) - _LEAST_AFTER + 1):
        before, after = durations[:count], durations[count:]
        low, high = median(before), median(after)
        middle = (low * high) ** 0.5
        too_long, too_short = sum(one >= middle for one in before), sum(one <= middle for one in after)
        if high >= _TIMES * low and too_long <= _ASTRAY * count and too_short <= _ASTRAY * len(after):
            found.append((-too_long - too_short, high / low, count))
    return max(found)[2] if found else None


def split_at_rise(captures: Sequence[Path]) -> str:
    """End the captures of one host's workers before the job got slow in them; all at the same iteration.

    Args:
        captures: `capture.json` of each worker, of one window.

    Returns:
        A note on it; "" if nothing was changed.
    """
    records = {path: json.loads(path.read_bytes()) for path in captures}
    found = [find_rise(_durations(record)) for record in records.values()]
    counts = [count for count in found if count is not None]
    if not counts or 2 * len(counts) < len(found):
        return ""
    count = max(min(counts) - _EARLIER, 1)
    note = f"the baseline window is read up to its iteration {count}: from there on iterations were longer"
    for path, record in records.items():
        record["boundaries_ns"] = record["boundaries_ns"][: count + 1]
        record["last_iteration"] = record["first_iteration"] + len(record["boundaries_ns"]) - 1
        record["notes"] = [*record["notes"], note]
        draft = path.with_suffix(".draft")
        write_private(draft, json.dumps(record).encode())
        draft.rename(path)
    return note


def _durations(record: dict[str, Any]) -> list[int]:
    bounds = record["boundaries_ns"]
    return [end - begin for begin, end in pairwise(bounds)]


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][:_LONGEST_NOTE] if lines else ""


def _last_words(log: Path, status: int) -> str:
    """Return the last line that a program wrote, else its exit status."""
    try:
        said = _last_line(log.read_text("utf-8", "replace"))
    except OSError:
        said = ""
    return said or (f"exit status {status}" if status >= 0 else f"ended by signal {-status}")
