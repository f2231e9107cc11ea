"""Run the PyTorch profiler (Kineto) once, and know when other code runs its own."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from eroica.errors import CaptureError
from eroica.wire.places import SAVING_PREFIX, private_file
from eroica.worker.errors_of_users import raised_by_user
from eroica.worker.kineto import Silence, leave_for_good, quiet, save_unlocked
from eroica.worker.pristine import get_ident, monotonic_ns

_give_back = getattr(ctypes.CDLL(None), "malloc_trim", None)  # not every C library has it
_COUNTED_PLACES = 16
_COUNTED_BYTES = 65_536
_SENDS = (b'"c10d::send"', b'"c10d::recv_"')


_PREPARE, _ENABLE, _DISABLE = _NAMES = "_prepare_profiler", "_enable_profiler", "_disable_profiler"
#: What torch's functions have returned to the tracer that is at work.
_returned: dict[str, list[Any]] = {name: [] for name in _NAMES}
#: What the tracer that is at work records, as torch's function takes it behind its two arguments; nothing = everything.
_scopes: list[Any] = []


def _call_and_keep(name: str, function: Callable[..., Any], arguments: Any, named: Any) -> Any:
    """Call it and keep what it returns, in one piece: a signal's handler runs before or after, never between."""
    kept = _returned[name]
    if name == _ENABLE and _scopes:
        arguments = (*arguments[:2], *_scopes)
    kept.extend(islice(iter(functools.partial(function, *arguments, **named), kept), 1))
    return kept[-1]


class Tracer:
    """Kineto for one window. `prepare`, `start` and `stop` belong to the training thread, `save` to any other.

    Args:
        inputs: Record shapes and numbers that operators are called with, at the cost of a longer stall; not where a
            device is traced.
        operators: Record torch's operators. Without them a trace holds collectives, optimizer steps, loading, ranges of
            the user's own and the work of devices: 41 events where there were 10,466.

    Attributes:
        on_device: The device's work is traced too.
        waits: `stop` lets the device finish first; else what it has not finished is missing.
        displaced: Another profiler was started meanwhile, in another thread. torch has one at a time, so stopping ours
            as well would crash it: `stop` then only leaves it.
    """

    def __init__(self, inputs: bool = False, operators: bool = True) -> None:
        self.on_device = False
        self.waits = True
        self.displaced = False
        self._inputs = inputs
        self._operators = operators
        self._profile: Any = None
        self._kept: dict[str, list[Any]] = {name: [] for name in _NAMES}
        self._prepared = self._ending = False
        self._silence = Silence()

    @property
    def records_inputs(self) -> bool:
        """Inputs are asked for, and no device is traced, whose kernels say as much by themselves."""
        return self._inputs and not self.on_device

    def prepare(self) -> None:
        """Allocate buffers and wake up device tracing; costs most the first time.

        Raises:
            CaptureError: The profiler refuses.
        """
        self._profile = self._make()
        self._call("_prepare_trace")
        self._prepared = True

    def start(self) -> None:
        """Record from now on, in this thread and those that work for it.

        Raises:
            CaptureError: The profiler refuses.
        """
        self._call("_start_trace")

    def pause(self) -> None:
        """Record no further operators of this thread, nor collectives it enqueues, until `stop`; a microsecond.

        Operators and collectives that are open now still get their ends, and other observers theirs.
        """
        self._silence.begin()

    def stop(self) -> None:
        """Collect the events: 3-5 microseconds for each.

        A collective that is open now would write its end into memory that is freed here (torch 2.13, gloo): `pause`
        first and wait until `eroica.worker.surroundings.collectives_completed` says that they have ended.

        A signal's handler may have raised inside any of these calls, so torch is asked what runs. Call it again after
        that.

        Raises:
            CaptureError: The profiler refuses, or its end was interrupted and nobody has the events.
        """
        if self.displaced:
            leave_for_good()
            raise CaptureError("another profiler was started in another thread")
        enabled = sys.modules["torch.autograd"]._profiler_enabled
        runs = enabled()
        try:
            if self._kept[_DISABLE]:  # a handler raised right after it
                self._profile.kineto_results = self._kept[_DISABLE][-1]
                return
            if not runs:
                if self._ending or not (self._prepared or self._kept[_PREPARE]):
                    raise CaptureError("a signal's handler interrupted the profiler")
                self._call("_start_trace")  # prepared only: it must be started to be closed
            self._ending = True
            if not self.waits:
                self._profile.use_device = None  # all that torch goes by when it waits
            self._call("__exit__", None, None, None)
        finally:
            self._silence.end()
            if not enabled():  # where that was interrupted torch still believes it
                sys.modules["torch.autograd.profiler"]._run_on_profiler_stop()

    def save(self, path: Path) -> int:
        """Write the trace as JSON: 2-3 microseconds for each event.

        Returns:
            Nanoseconds for which the interpreter lock was held, so that the training had to wait.

        Raises:
            OSError: Nothing was written.
        """
        os.close(private_file(path))  # where we cannot write, Kineto would say so aloud
        results, before = self._profile.kineto_results, monotonic_ns()
        with _beside(path) as draft:
            with quiet():  # it complains of a full disk
                unlocked = save_unlocked(results, draft)
                if not unlocked:
                    results.save(str(draft))
            held_ns = 0 if unlocked else monotonic_ns() - before
            if not draft.is_file():
                raise OSError(f"the profiler wrote no trace to {draft}; is the disk full?")
            draft.chmod(0o600)  # torch goes by the user's umask
            draft.rename(path)
        return held_ns

    def drop(self) -> int:
        """Give the events' memory back to the system: 1.3 KB for each.

        Returns:
            Nanoseconds for which the training may have had to wait: for the interpreter lock, then for the allocator's.
        """
        before = monotonic_ns()
        self._profile = None
        if _give_back is not None:
            _give_back(0)
        return monotonic_ns() - before

    def _make(self) -> Any:
        import torch
        from torch._C._profiler import _ExperimentalConfig
        from torch.autograd.profiler import profile

        try:
            config = _ExperimentalConfig(trace_only=True)
        except TypeError:  # before torch 2.10
            config = _ExperimentalConfig()
        self.on_device = torch.cuda.is_initialized()
        return profile(
            use_kineto=True,
            use_device="cuda" if self.on_device else None,
            record_shapes=self.records_inputs,
            experimental_config=config,
        )

    def _call(self, name: str, *arguments: Any) -> None:
        _returned.update(self._kept)
        # collectives, steps, batches and the user's own ranges
        _scopes[:] = [] if self._operators else [{sys.modules["torch._C._profiler"].RecordScope.USER_SCOPE}]
        try:
            with quiet():
                getattr(self._profile, name)(*arguments)
        except RuntimeError as error:
            if raised_by_user(error):
                raise
            raise CaptureError(f"the profiler refused: {error}") from error


@contextlib.contextmanager
def _beside(path: Path) -> Iterator[Path]:
    """Yield a file for Kineto that later moves to `path`, in a directory that is not removed with the window's.

    It renames its file when it has written it, and that it cannot it says aloud whatever it was told.
    """
    place = path.parents[min(2, len(path.parents) - 1)] / f"{SAVING_PREFIX}{os.getpid()}"
    place.mkdir(mode=0o700, exist_ok=True)
    try:
        yield place / path.name
    finally:
        for left in (place / path.name, place / f"{path.name}.tmp"):
            left.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # another window of this process, or gone
            place.rmdir()


class Survey(NamedTuple):
    """Number and kind of a saved trace's events, estimated from evenly spaced pieces.

    Attributes:
        events: A few percent off.
        has_sends: Sends or receives between two ranks were seen.
    """

    events: int
    has_sends: bool


def survey(path: Path) -> Survey:
    """Look into a saved trace for a millisecond."""
    size = path.stat().st_size
    step = max(_COUNTED_BYTES, size // _COUNTED_PLACES)
    found = looked_at = 0
    has_sends = False
    with path.open("rb") as file:
        for offset in range(0, size, step):
            file.seek(offset)
            piece = file.read(_COUNTED_BYTES)
            found += piece.count(b'"ph"')
            looked_at += len(piece)
            has_sends = has_sends or any(name in piece for name in _SENDS)
    return Survey(round(found * size / looked_at) if looked_at else 0, has_sends)


class ProfilerDoor:
    """Stands where torch's profilers start and stop, to know of others and to make way for them.

    Args:
        make_way: Called before somebody else's profiler is prepared or started.
    """

    def __init__(self, make_way: Callable[[], object]) -> None:
        self._make_way = make_way
        self._placed: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {}  # name to ours and the original
        self._others_active: bool | None = None  # unknown until one has started or stopped
        self.ours = 0  # the thread in which the calls of torch's profiler are ours
        self.used = False  # a profiler has been prepared in this process

    @property
    def exists(self) -> bool:
        """The user has imported torch, so there is a profiler."""
        return "torch.autograd.profiler" in sys.modules

    @property
    def taken(self) -> bool:
        """Somebody else's profiler is prepared or running."""
        import torch.autograd
        from torch.autograd import profiler

        others = self._others_active
        if others is None:  # torch's own word, which stays true after a start that failed
            others = getattr(profiler, "_is_profiler_enabled", False)
        return bool(others or torch.autograd._profiler_enabled())

    def open(self) -> None:
        """Take our place. Idempotent."""
        from torch.autograd import profiler

        if self._placed:
            return
        for name in _NAMES:
            original = getattr(profiler, name, None)
            if original is not None:
                ours = self._passing(name, original)
                self._placed[name] = ours, original
                setattr(profiler, name, ours)

    def close(self) -> None:
        """Leave torch as it was, except where other code has put something over ours since. Idempotent."""
        from torch.autograd import profiler

        for name, (ours, original) in self._placed.items():
            if getattr(profiler, name, None) is ours:
                setattr(profiler, name, original)
        self._placed = {}
        self._others_active = None

    def _passing(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        starts = name != _DISABLE

        def pass_through(*arguments: Any, **named: Any) -> Any:
            self.used = True
            if self.ours == get_ident():
                return _call_and_keep(name, original, arguments, named)
            if starts:
                self._make_way()
            self._others_active = False  # until it has succeeded
            done = original(*arguments, **named)
            self._others_active = starts
            return done

        return pass_through
