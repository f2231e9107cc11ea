"""Show torch's compiler stand-ins for our functions, which neither end a graph nor add an operator to it.

TorchDynamo follows the training into every Python function that it calls, our hook of optimizers too. Where it compiles
a whole step, it is to see in the hook's place one that stores the optimizer in an attribute of a module. That is no
operator, so the graph is the same. But Dynamo stores it anew each time that what it has compiled runs, and the module
listens. In versions of torch with which this was not tried the compiler sees nothing, and steps that are compiled whole
are not counted.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

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
