"""Putting the hooks where torch calls them, and taking them away again."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from types import FunctionType, ModuleType, TracebackType
from typing import Any

from eroica.settings import load_settings, pinned_config
from eroica.wire.places import places, private_directory, private_file
from eroica.worker.exchanges import hear_backward, hear_exchanges
from eroica.worker.guard import log_of_this_process
from eroica.worker.hooks import Guest
from eroica.worker.import_watch import COMPILER, DISTRIBUTED, LOADERS, OPTIMIZERS, look_away, look_out
from eroica.worker.kineto import quiet_for_good, torch_is_imported_here
from eroica.worker.limits import spared


class Attachment:
    """The hooks of this process; one per process, kept over forks."""

    def __init__(self) -> None:
        self.guest = Guest()
        self._undo: dict[str, Callable[[], object]] = {}
        self._registered = False

    def attach(self, name: str) -> None:
        """Hook one of torch's modules, which has been imported. Idempotent."""
        self.settle()
        if name in self._undo:
            return
        if name == LOADERS:
            self._undo[name] = _hear_of_batches(sys.modules[name]._BaseDataLoaderIter, self.guest)
        elif name == OPTIMIZERS:
            torch_is_imported_here()
            handle = sys.modules[name].register_optimizer_step_post_hook(self.guest.hooks.stepped)
            self._undo[name] = handle.remove
            self.guest.door.open()
            autograd = sys.modules.get("torch.autograd.variable")
            self._undo["backward"] = self.guest.leave_backward = hear_backward(autograd, self.guest.passed_back)
        elif name == DISTRIBUTED:
            self._undo[name] = hear_exchanges(sys.modules[name], self.guest.exchanged)
        elif name == COMPILER:
            let_compilers_pass(self.guest.hooks.stepped, step)
            keep_compilers_out(
                *self.guest.hooks[:2], self.guest.exchanged, self.guest.passed_back, self.guest.guard.run, _announce
            )

    def detach(self) -> None:
        """Take all hooks away and sign off. Idempotent."""
        look_away()
        for undo in self._undo.values():
            undo()
        self._undo = {}
        self.guest.end()
        self.guest.door.close()

    def settle(self) -> None:
        """Be told of the process's end and of its forks, and silence what is to come. Idempotent."""
        if self._registered:
            return
        self._registered = True
        quiet_for_good()
        atexit.register(self.guest.guard.run, self.guest.end)
        os.register_at_fork(after_in_child=self._after_fork)

    def _after_fork(self) -> None:
        self.guest.guard.clear()
        self.guest.guard.run(self.guest.after_fork)


_attachment = Attachment()
_COUNT = "_num_yielded"
_DISABLED = os.environ.get("EROICA_DISABLE") == "1"


def _hear_of_batches(iterator_class: Any, guest: Guest) -> Callable[[], object]:
    """Be told when an iterator of a loader has a batch: it counts those that it has handed out, and we see it count.

    Around `__next__` a function of ours would stand between the training and torch, in its warnings and tracebacks.
    """
    loaded = guest.hooks.loaded

    class Counted:
        """Reading is left to the instance; only what is stored passes here."""

        __slots__ = ()

        def __set__(self, iterator: Any, count: Any) -> None:
            iterator.__dict__[_COUNT] = count
            if count:
                loaded(iterator)

    if _COUNT not in iterator_class.__next__.__code__.co_names or hasattr(iterator_class, _COUNT):
        return lambda: None  # another torch: iterations are told by optimizers alone
    ours = Counted()
    setattr(iterator_class, _COUNT, ours)

    def undo() -> None:
        if iterator_class.__dict__.get(_COUNT) is ours:
            delattr(iterator_class, _COUNT)

    return undo


def attach_to(name: str) -> None:
    """Called by the look-out when a module of torch is there."""
    _attachment.guest.guard.run(_attachment.attach, name)


def detach() -> None:
    """Take everything of Eroica out of this process again."""
    _attachment.guest.guard.run(_attachment.detach)


#: Settings that the training process itself reads, when it becomes a worker: for them no other process must be told.
_OF_THE_WORKER = frozenset(("answering_thread", "stack_signal", "sealed_memory"))


_TRIED_WITH = ("2.13.",)


class _Bells(ModuleType):
    """Attributes that are functions: storing a value in one calls it."""

    def __setattr__(self, name: str, value: Any) -> None:
        self.__dict__[name](value)


_bells = _Bells("bells of eroica")
_done: set[int] = set()


def _ring_stepped(optimizer: Any = None, *_ignored: Any) -> None:
    _bells.stepped = optimizer


def _ring_announced() -> None:
    _bells.announced = None


def _pass(*_ignored: Any) -> None:
    pass


def let_compilers_pass(stepped: Callable[..., None], announced: Callable[[], None]) -> None:
    """Tell Dynamo, which has been imported, what to see in place of our functions. Idempotent.

    Dynamo follows the training into every Python function that it calls, our hook of optimizers too. Where it compiles
    a whole step, it is to see in the hook's place one that stores the optimizer in an attribute of a module. That is no
    operator, so the graph is the same. But Dynamo stores it anew each time that what it has compiled runs, and the
    module listens. In versions of torch with which this was not tried the compiler sees nothing, and steps that are
    compiled whole are not counted.

    Args:
        stepped: The post-step hook of optimizers.
        announced: What the user's loop calls at each iteration.
    """
    torch = sys.modules["torch"]
    substitute = getattr(getattr(torch, "compiler", None), "substitute_in_graph", None)
    if substitute is None or id(stepped) in _done:  # before torch 2.5 our hook ends a graph
        return
    _done.add(id(stepped))
    _bells.__dict__.update(stepped=stepped, announced=lambda _: announced())
    tried = str(getattr(torch, "__version__", "")).startswith(_TRIED_WITH)
    for ours, seen in ((stepped, _ring_stepped), (announced, _ring_announced)):
        substitute(ours, skip_signature_check=True)(seen if tried else _pass)


def keep_compilers_out(*functions: Callable[..., Any]) -> None:
    """Let Dynamo, which has been imported, compile neither these functions nor what they call when they run."""
    with contextlib.suppress(ImportError, AttributeError):  # before torch 2.6 it looks, and finds nothing to compile
        from torch._C._dynamo.eval_frame import set_code_exec_strategy
        from torch._dynamo.types import FrameAction, FrameExecStrategy

        never = FrameExecStrategy(FrameAction.SKIP, FrameAction.SKIP)
        for function in (*functions, _Bells.__setattr__):
            if isinstance(function, FunctionType):
                set_code_exec_strategy(function.__code__, never)


class Watch:
    """Handle that `watch` returns: a context manager that ends watching, or nothing to keep.

    Attributes:
        unheeded: Settings that came too late: agent and collector were running already. The worker's log says so, too.
    """

    def __init__(self, variables: Mapping[str, str], unheeded: Iterable[str]) -> None:
        self.unheeded = tuple(unheeded)
        self._before = {name: os.environ.get(name) for name in variables}
        self._ours = dict(variables)
        os.environ.update(variables)

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        detach()
        for name, before in self._before.items():
            if os.environ.get(name) != self._ours[name]:
                continue  # somebody has changed it since: theirs
            if before is None:
                del os.environ[name]
            else:
                os.environ[name] = before


def watch(**settings: Any) -> Watch:
    """Watch this process from here on; the first worker of a host starts what else is needed.

    The settings go into this process's environment, for the processes that are started from here on: loader children,
    and the host's agent and the job's collector, if they are not running yet. Call it before the first iteration. Under
    `eroica run` agent and collector were started before this process and keep the settings that they have: give them
    to `eroica run` (`--set NAME=VALUE`) instead.

    Args:
        **settings: Any of `eroica settings`, e.g. `expected_iteration_s=1.0`; None is as if it were not given.

    Returns:
        A context manager that ends watching and takes the settings back; without `with` both stay until the process
        ends. Its `unheeded` names the settings that came too late.

    Raises:
        UsageError: A setting is unknown or has an impossible value.
    """
    given = {name: value for name, value in settings.items() if value is not None}
    wanted, before = load_settings(given), load_settings()
    late = [
        name for name in given
        if name not in _OF_THE_WORKER and getattr(wanted, name) != getattr(before, name)
    ]  # fmt: skip
    unheeded = late if late and _agent_has_begun() else []
    variables = {f"EROICA_{name.upper()}": str(value) for name, value in given.items()}
    watching = Watch({**pinned_config(os.environ), **variables}, unheeded)
    if not _DISABLED:
        if unheeded:
            _attachment.guest.guard.run(_say_unheeded, unheeded)
        _attachment.guest.guard.run(_attachment.guest.welcome)
        _attachment.guest.guard.run(look_out)
    return watching


def _agent_has_begun() -> bool:
    """Somebody else started this job's agent and collector, or an agent of this host is at work."""
    if "EROICA_LAUNCHED" in os.environ:
        return True
    try:
        return (places(os.environ).runtime / "run").exists()
    except OSError:  # where we may not look
        return False


def _say_unheeded(names: Iterable[str]) -> None:
    """A line in the worker's log, if that can be written."""
    path, appending = log_of_this_process(), os.O_WRONLY | os.O_CREAT | os.O_APPEND
    reason = "agent and collector were running already; give them to `eroica run --set` or to the environment"
    line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} watch: not heeded: {', '.join(names)}: {reason}\n"
    with contextlib.suppress(OSError):
        private_directory(path.parent)
        with spared(), os.fdopen(private_file(path, appending), "a", encoding="utf-8") as file:
            file.write(line)


def step() -> None:
    """Say that one iteration is completed, in a loop that uses neither a torch DataLoader nor a torch optimizer."""
    if not _DISABLED:
        _attachment.guest.guard.run(_announce)


def _announce() -> None:
    _attachment.settle()
    _attachment.guest.stepped(None)
