"""Putting the hooks where torch calls them, and taking them away again."""

from __future__ import annotations

import atexit
import functools
import os
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any

from eroica.settings import load_settings
from eroica.worker.hooks import Guest
from eroica.worker.kineto import quiet_for_good
from eroica.worker.lookout import LOADERS, OPTIMIZERS, look_away, look_out


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
            self._undo[name] = _wrap_next(sys.modules[name]._BaseDataLoaderIter, self.guest)
        elif name == OPTIMIZERS:
            self._undo[name] = _hook_optimizers(sys.modules[name], self.guest)
            self.guest.door.open()

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
_DISABLED = os.environ.get("EROICA_DISABLE") == "1"


def _wrap_next(iterator_class: Any, guest: Guest) -> Callable[[], object]:
    original = iterator_class.__next__
    loaded = guest.hooks.loaded

    @functools.wraps(original)
    def __next__(self: Any) -> Any:
        batch = original(self)
        loaded(self)
        return batch

    iterator_class.__next__ = __next__

    def undo() -> None:
        if iterator_class.__next__ is __next__:
            iterator_class.__next__ = original

    return undo


def _hook_optimizers(module: Any, guest: Guest) -> Callable[[], object]:
    handle = module.register_optimizer_step_post_hook(guest.hooks.stepped)
    return handle.remove  # type: ignore[no-any-return]


def attach_to(name: str) -> None:
    """Called by the look-out when a module of torch is there."""
    _attachment.guest.guard.run(_attachment.attach, name)


def detach() -> None:
    """Take everything of Eroica out of this process again."""
    _attachment.guest.guard.run(_attachment.detach)


class Watch:
    """What `watch` returns: use it as a context manager to end watching, or ignore it."""

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        detach()


def watch(**settings: Any) -> Watch:
    """Watch this process from here on; the first worker of a host starts what else is needed.

    Args:
        **settings: Any of `eroica settings`, e.g. `expected_iteration_s=1.0`; they hold for the whole job on this host.

    Returns:
        A context manager that ends watching; without `with` it goes on until the process ends.

    Raises:
        UsageError: A setting is unknown or has an impossible value.
    """
    load_settings(settings)
    for name, value in settings.items():
        os.environ[f"EROICA_{name.upper()}"] = str(value)
    if not _DISABLED:
        _attachment.guest.guard.run(_attachment.guest.welcome)
        _attachment.guest.guard.run(look_out)
    return Watch()


def step() -> None:
    """Say that one iteration is completed, in a loop that uses neither a torch DataLoader nor a torch optimizer."""
    if not _DISABLED:
        _attachment.guest.guard.run(_announce)


def _announce() -> None:
    _attachment.settle()
    _attachment.guest.stepped(None)
