"""Waits until the user's code imports torch. Standard library only; imported in every Python of a job."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # importing `typing` would double what a Python of a watched job costs at its start
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

OPTIMIZERS = "torch.optim.optimizer"
LOADERS = "torch.utils.data.dataloader"
COMPILER = "torch._dynamo"
DISTRIBUTED = "torch.distributed.distributed_c10d"
_AWAITED = (OPTIMIZERS, LOADERS, COMPILER, DISTRIBUTED)


class _Lookout:
    """Finder that finds nothing itself: it lets other finders load torch's modules, and hears when they are loaded."""

    def __init__(self) -> None:
        self._asking: set[str] = set()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The real spec of a module we wait for, with our word after its execution; None for all others."""
        if name not in _AWAITED or name in self._asking:
            return None
        self._asking.add(name)
        try:
            spec = _ask_the_others(self, name, path, target)
        finally:
            self._asking.discard(name)
        if spec is not None and spec.loader is not None:
            try:
                _announce_after(spec.loader, name)
            except Exception as error:  # before the border stands, this is it
                if _is_of_the_user(error):
                    raise
                _write_down(error)
        return spec


def _ask_the_others(
    ours: _Lookout, name: str, path: Sequence[str] | None, target: ModuleType | None
) -> ModuleSpec | None:
    for finder in list(sys.meta_path):
        find = getattr(finder, "find_spec", None)
        if finder is ours or find is None:
            continue
        spec: ModuleSpec | None = find(name, path, target)
        if spec is not None:
            return spec
    return None


def _announce_after(loader: Any, name: str) -> None:
    """Let this one loader (each module has its own) call us after it has executed its module."""
    execute = getattr(loader, "exec_module", None)
    if execute is None:
        return

    def exec_module(module: ModuleType) -> None:
        execute(module)
        _arrived(name)

    try:
        loader.exec_module = exec_module
    except AttributeError:  # a loader that takes no attributes: unusual, and then we stay out
        return


def _arrived(name: str) -> None:
    """This runs inside the user's import of torch, which nothing of ours may fail."""
    try:
        from eroica.worker.attach import attach_to
    except Exception as error:  # before the border stands, this is it
        if _is_of_the_user(error):
            raise
        _write_down(error)
    else:
        attach_to(name)


def _is_of_the_user(error: Exception) -> bool:
    """A signal's handler raised it while we were imported, as far as that can be told."""
    try:
        from eroica.worker.errors_of_users import raised_by_user
    except ImportError:
        return False
    return raised_by_user(error)


def _write_down(error: Exception) -> None:
    """Log it if that much of ours can be imported; else we are silently not there."""
    try:
        from eroica.worker.guard import Guard, log_of_this_process
    except Exception:  # noqa: BLE001 - nowhere left to report to
        return
    Guard(log_of_this_process, lambda _: None).run(_throw, error)


def _throw(error: Exception) -> None:
    raise error


_lookout = _Lookout()


def look_out() -> None:
    """Attach to what of torch is there already, and to the rest as soon as it is imported. Idempotent."""
    if _lookout not in sys.meta_path:
        sys.meta_path.insert(0, _lookout)
    for name in _AWAITED:
        module = sys.modules.get(name)
        spec = getattr(module, "__spec__", None)
        if module is not None and not getattr(spec, "_initializing", False):
            _arrived(name)


def look_away() -> None:
    """Stop waiting."""
    if _lookout in sys.meta_path:
        sys.meta_path.remove(_lookout)
