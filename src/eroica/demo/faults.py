"""The five faults of the demo: storage, collections, processor, Python code, and a collective that one worker skips."""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, ClassVar, NamedTuple

from eroica.errors import UsageError

VARIABLE = "EROICA_FAULT"


@dataclass(frozen=True)
class FaultPlan:
    """One fault in one job.

    Attributes:
        name: Which fault, a key of `FAULTS`.
        worker: Global rank of the worker that has it; None = every worker.
        from_iteration: First iteration with the fault, counted from 0.
        options: Numbers of the fault itself; what is missing has the fault's default.
    """

    name: str
    worker: int | None = None
    from_iteration: int = 0
    options: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value in (("worker", self.worker or 0), ("from_iteration", self.from_iteration)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise UsageError(f"{name} of a fault plan must be a whole number >= 0, not {value!r}")
        for option, number in self.options.items():
            if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number < math.inf:
                raise UsageError(f"fault option {option} must be a number >= 0, not {number!r}")

    def __str__(self) -> str:
        """The form that `read_plans` and `EROICA_FAULT` take."""
        told = {"worker": self.worker, "from_iteration": self.from_iteration, **self.options}
        return f"{self.name}:{','.join(f'{name}={value}' for name, value in told.items() if value is not None)}"


def read_plans(text: str) -> tuple[FaultPlan, ...]:
    """Read plans of the form `name:key=number,key=number`, with ";" between them; "" and "none" hold none.

    Raises:
        UsageError: A plan has another form, or a value is out of range. Whether a fault of that name exists is checked
            by `inject`.
    """
    return tuple(_plan(part.strip()) for part in text.split(";") if part.strip() not in ("", "none"))


def plans_from_environment() -> tuple[FaultPlan, ...]:
    """Read the plans in `EROICA_FAULT`; none if it is not set."""
    return read_plans(os.environ.get(VARIABLE, ""))


def _plan(text: str) -> FaultPlan:
    name, _, rest = text.partition(":")
    values: dict[str, Any] = {}
    for part in filter(None, rest.split(",")):
        key, _, value = part.partition("=")
        try:
            values[key.strip()] = json.loads(value)
        except ValueError:
            raise UsageError(f"fault plan {text!r}: {part!r} is not key=number") from None
    known = {key: values.pop(key) for key in ("worker", "from_iteration") if key in values}
    return FaultPlan(name.strip(), **known, options=values)


class Place(NamedTuple):
    """Where a fault is built in.

    Attributes:
        worker: This worker's global rank.
        workers: Workers of the job.
        parts: What can be built in, by name ("dataset", "forward", "objects", ...).
        callbacks: What the training calls after each step, with the step's number.
    """

    worker: int
    workers: int
    parts: dict[str, Any]
    callbacks: list[Callable[[int], None]]


@dataclass
class Fault:
    """Base: does nothing."""

    name: ClassVar[str] = "none"

    def wrap_dataset(self, dataset: Any, place: Place) -> Any:
        """Return the dataset that the loader reads; called once, before the loader exists."""
        return dataset

    def wrap_collate(self, collate: Any, place: Place) -> Any:
        """Return what the loader makes batches with; called once, before the loader exists."""
        return collate

    def prepare(self, model: Any, place: Place) -> None:
        """Called once on every worker of the job, with the fault or not, before the first iteration."""

    def start(self, model: Any, place: Place) -> None:
        """Begin the fault."""

    def stop(self) -> None:
        """End the fault when the training is over; called only if it had begun."""

    def close(self) -> None:
        """Remove what `prepare` built in when the training is over, whether the fault had begun or not."""


@dataclass
class HookedFault(Fault):
    """Base of faults that a torch hook brings into the training, in front of each forward pass."""

    handle: Any = field(default=None, init=False, repr=False)

    def build(self, place: Place) -> Any:
        """Return the part that is hooked in."""
        raise NotImplementedError

    def start(self, model: Any, place: Place) -> None:
        """Hook it into the user's own module."""
        self.handle = inner_module(model).register_forward_pre_hook(self.build(place))

    def stop(self) -> None:
        """Unhook it."""
        self.handle.remove()


def inner_module(model: Any) -> Any:
    """Return the user's own module behind a wrapper such as `DistributedDataParallel`."""
    return getattr(model, "module", model)


def start_program(program: Path, *arguments: object, **streams: Any) -> subprocess.Popen[bytes]:
    """Start one of our programs beside this process, out of reach of the terminal's Ctrl-C."""
    command = [sys.executable, "-I", "-S", str(program), *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, **streams)


def end_program(program: subprocess.Popen[bytes] | None) -> None:
    """End it, if there is one, and wait until it is gone."""
    if program is None:
        return
    program.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        program.wait(timeout=5)
    if program.stdout is not None:
        program.stdout.close()


THROTTLE_PROGRAM = Path(__file__).with_name("throttle.py")


@dataclass
class SteeredFault(Fault):
    """Base of faults that a shared number steers, which loader processes see change."""

    number: Any = field(default=None, init=False, repr=False)

    def strength(self) -> float:
        """Return the number that the fault sets."""
        raise NotImplementedError

    def shared_number(self) -> Any:
        """Return the shared number for a part; it is 0 until the fault begins."""
        if self.number is None:  # a number of 0 counts as false
            self.number = multiprocessing.get_context("spawn").RawValue(ctypes.c_double, 0.0)
        return self.number

    def start(self, model: Any, place: Place) -> None:
        """Strong from now on."""
        self.shared_number().value = self.strength()


@dataclass
class SlowLoader(SteeredFault):
    """The worker's dataset waits for storage: each item takes `seconds` more, on no processor at all.

    Works in loader processes too. There the loader prefetches, so it costs nothing until items take longer than
    iteration x loader processes / batch.
    """

    name: ClassVar[str] = "slow-loader"
    seconds: float = 0.0075

    def strength(self) -> float:
        """Seconds per item."""
        return self.seconds

    def wrap_dataset(self, dataset: Any, place: Place) -> Any:
        """The dataset behind slow storage; slow once the fault is there."""
        return place.parts["dataset"](dataset, self.shared_number())


@dataclass
class GcPause(HookedFault):
    """Cyclic garbage collections that wander over the workers, in one iteration of `every` on average.

    Python's own collector does the work, on one core, holding the interpreter lock: it frees a tenth of `entries` small
    cycles and looks at every object of the process (torch alone brings some 200,000). Which worker has its turn, if
    any, is drawn anew each time, the same draw on all: nobody is slower than the others over a minute, but all wait.
    """

    name: ClassVar[str] = "gc-pause"
    entries: float = 40_000
    every: float = 3

    def build(self, place: Place) -> Any:
        """The heap, which takes a moment, and the turns."""
        return place.parts["objects"](int(self.entries), place.worker, round(place.workers * max(1.0, self.every)))


@dataclass
class SlowCompute(Fault):
    """The worker's process runs `run_ms` and is stopped `stop_ms`, over and over, by a program beside it.

    The same work takes longer, whatever it is: what a throttled or stolen processor looks like from inside.
    """

    name: ClassVar[str] = "slow-compute"
    run_ms: float = 4.0
    stop_ms: float = 16.0
    helper: Any = field(default=None, init=False, repr=False)

    def start(self, model: Any, place: Place) -> None:
        """Start the program beside this process."""
        self.helper = start_program(THROTTLE_PROGRAM, os.getpid(), self.run_ms, self.stop_ms)

    def stop(self) -> None:
        """End it and wait until it is gone: the process runs freely afterwards."""
        end_program(self.helper)


@dataclass
class SlowPython(HookedFault):
    """More pure Python in front of each forward pass: `tokens` turns of a small loop, on one core."""

    name: ClassVar[str] = "slow-python"
    tokens: float = 180_000

    def build(self, place: Place) -> Any:
        """The loop."""
        return place.parts["forward"](int(self.tokens))


@dataclass
class Hang(Fault):
    """The worker skips one collective that all others enter, and goes on to the next one: a desynchronized job.

    Before each forward pass all workers agree on a number in a process group made for it. That has its price, so the
    agreement exists only in jobs that have this fault. A skipped collective never ends by itself.
    """

    name: ClassVar[str] = "hang"
    agreement: Any = field(default=None, init=False, repr=False)
    handle: Any = field(default=None, init=False, repr=False)

    def prepare(self, model: Any, place: Place) -> None:
        """Build the agreement into every worker."""
        if place.workers < 2:
            raise UsageError("the fault hang needs at least two workers: one cannot miss a collective alone")
        self.agreement = place.parts["agreement"]()
        self.handle = inner_module(model).register_forward_pre_hook(self.agreement)

    def start(self, model: Any, place: Place) -> None:
        """Do not take part the next time."""
        self.agreement.unchanged = True

    def close(self) -> None:
        """Unhook it; not before, for all workers must go on to take part in it."""
        if self.handle is not None:
            self.handle.remove()


FAULTS: dict[str, type[Fault]] = {
    kind.name: kind for kind in (Fault, SlowLoader, GcPause, SlowCompute, SlowPython, Hang)
}


# --- building them in ---


class Injection:
    """The faults of one worker. As a context manager it takes everything back at the end.

    Args:
        plans: Plans of the whole job; those of other workers are only prepared for here.
        place: Which worker this is and what can be built in.
        kinds: All faults that a plan may name.
    """

    def __init__(self, plans: Sequence[FaultPlan], place: Place, kinds: Mapping[str, type[Fault]] = FAULTS) -> None:
        self._place = place
        everybodys = [(plan, build_fault(plan, kinds)) for plan in plans]
        self._faults = [(plan, fault) for plan, fault in everybodys if plan.worker in (None, place.worker)]
        self._unprepared = [fault for _, fault in everybodys]
        self._waiting = list(self._faults)
        self._running: list[Fault] = []

    def dataset(self, dataset: Any) -> Any:
        """Return the dataset for the loader, wrapped if a plan says so."""
        for _, fault in self._faults:
            dataset = fault.wrap_dataset(dataset, self._place)
        return dataset

    def collate(self, collate: Any) -> Any:
        """Return the function that the loader makes batches with, wrapped if a plan says so."""
        for _, fault in self._faults:
            collate = fault.wrap_collate(collate, self._place)
        return collate

    @property
    def callbacks(self) -> list[Callable[[int], None]]:
        """What the training shall call after each step, with the step's number; changes at iteration boundaries."""
        return list(self._place.callbacks)

    def iteration(self, iteration: int, model: Any) -> None:
        """Call at the start of each iteration: starts what is due.

        Args:
            iteration: Its number, from 0, the same on all workers.
            model: A torch module; hooks go into it.
        """
        while self._unprepared:
            self._unprepared.pop(0).prepare(model, self._place)
        for plan, fault in list(self._waiting):
            if plan.from_iteration <= iteration:
                self._waiting.remove((plan, fault))
                self._running.append(fault)
                fault.start(model, self._place)

    def close(self) -> None:
        """Stop everything that runs and end what was built in."""
        while self._running:
            self._running.pop(0).stop()
        for _, fault in self._faults:
            fault.close()

    def __enter__(self) -> Injection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def build_fault(plan: FaultPlan, kinds: Mapping[str, type[Fault]] = FAULTS) -> Fault:
    """Make the fault that `plan` names, one of `kinds`, with its options.

    Raises:
        UsageError: There is no such fault or it has no such option; the text lists what there is.
    """
    kind = kinds.get(plan.name)
    if kind is None:
        raise UsageError(f"no fault is called {plan.name!r}; there are {', '.join(kinds)}")
    known = {item.name for item in fields(kind) if item.init}
    unknown = sorted(set(plan.options) - known)
    if unknown:
        raise UsageError(f"{plan.name} has no option {', '.join(unknown)}; it has {', '.join(sorted(known)) or 'none'}")
    return kind(**plan.options)


def inject(
    *plans: FaultPlan,
    worker: int | None = None,
    workers: int | None = None,
    code: ModuleType | None = None,
    kinds: Mapping[str, type[Fault]] = FAULTS,
) -> Injection:
    """Prepare faults for this worker.

    Args:
        *plans: What to inject; none given = what `EROICA_FAULT` says.
        worker: Global rank of this process, default `RANK`, else 0.
        workers: Workers of the job, default `WORLD_SIZE`, else 1.
        code: A module with `PARTS` like `eroica.demo.training.tokens`, which is the default.
        kinds: All faults that a plan may name.

    Raises:
        UsageError: A plan names an unknown fault, option or worker.

    Example:
        >>> faults = inject(FaultPlan("slow-loader", worker=2, from_iteration=150))
        >>> dataset = faults.dataset(["a", "b"])
        >>> for iteration in range(3):
        ...     faults.iteration(iteration, model=None)
        >>> faults.close()
    """
    if code is None:
        from eroica.demo.training import tokens

        code = tokens
    chosen = plans or plans_from_environment()
    worker = int(os.environ.get("RANK", "0")) if worker is None else worker
    workers = int(os.environ.get("WORLD_SIZE", "1")) if workers is None else workers
    return Injection(chosen, Place(worker, workers, code.PARTS, []), kinds)
