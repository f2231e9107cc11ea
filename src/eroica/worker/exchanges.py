"""Hear that collectives, sends, receives and backward passes begin, without a function of ours around them.

Around them it would stand between the training and torch, in torch's warnings and tracebacks. So we stand where torch
asks something in passing, and are gone before the operation begins.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

_QUESTION = "_rank_not_in_group"
#: Functions of torch.distributed that ask it once for each operation. Those for objects call these.
_OPERATIONS = (
    "all_gather", "all_gather_coalesced", "all_gather_into_tensor", "all_gather_single", "all_reduce",
    "all_reduce_coalesced", "all_to_all", "all_to_all_single", "barrier", "broadcast", "gather", "monitored_barrier",
    "reduce", "reduce_scatter", "reduce_scatter_single", "reduce_scatter_tensor", "scatter",
)  # fmt: skip
#: Those with a peer, and the variables that name it.
_DIRECTED = {"isend": ("group_dst", "dst"), "irecv": ("group_src", "src")}


def hear_exchanges(module: Any, heard: Callable[[object], object]) -> Callable[[], None]:
    """Be told of each collective, send and receive that Python begins.

    Args:
        module: `torch.distributed.distributed_c10d`.
        heard: Called with what is equal for the same operation in the same group with the same peer.

    Returns:
        Takes it back.
    """
    theirs = getattr(module, _QUESTION, None)
    plain = {code: code for name in _OPERATIONS if (code := _asks(module, name))}
    directed = {code: names for name, names in _DIRECTED.items() if (code := _asks(module, name))}
    if theirs is None or not plain:
        return lambda: None  # another torch: iterations are told without exchanges

    def ours(
        group: Any, caller: Callable[[int], Any] = sys._getframe, plain: dict[int, int] = plain, ask: Any = theirs
    ) -> Any:
        frame = caller(1)
        code = id(frame.f_code)
        if code in plain:
            heard(code ^ id(group))
        elif code in directed:
            first, second = directed[code]
            variables = frame.f_locals
            peer = variables.get(first)
            heard((code, id(group), variables.get(second) if peer is None else peer))
        return ask(group)

    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(ours, name, getattr(theirs, name))
    setattr(module, _QUESTION, ours)

    def undo() -> None:
        if getattr(module, _QUESTION) is ours:
            setattr(module, _QUESTION, theirs)

    return undo


def _asks(module: Any, name: str) -> int:
    """Id of a function's code, which lives as long as torch does; 0 if there is none that asks."""
    function: Any = getattr(module, name, None)
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    code = getattr(function, "__code__", None)
    return id(code) if code is not None and _QUESTION in code.co_names else 0


def hear_backward(module: Any, heard: Callable[[object], object]) -> Callable[[], None]:
    """Be told of each backward pass that begins outside of another one.

    Args:
        module: `torch.autograd.variable`.
        heard: Called with None.

    Returns:
        Takes it back.
    """
    holder = getattr(module, "Variable", None)
    theirs = getattr(holder, "_execution_engine", None)
    kind = type(theirs)
    inside: Any = getattr(getattr(sys.modules.get("torch"), "_C", None), "_current_graph_task_id", None)
    run: Any = getattr(kind, "run_backward", None)
    if inside is None or run is None or kind.__module__ != "torch._C":
        return lambda: None  # another torch

    class Engine(kind):  # type: ignore[misc, valid-type]
        __slots__ = ()

        @property
        def run_backward(self) -> Any:
            """Torch's own."""
            if inside() < 0:
                heard(None)
            return run.__get__(self)

    Engine.__name__, Engine.__qualname__, Engine.__module__ = kind.__name__, kind.__qualname__, kind.__module__
    ours = holder._execution_engine = Engine()  # type: ignore[union-attr]

    def undo() -> None:
        if holder._execution_engine is ours:  # type: ignore[union-attr]
            holder._execution_engine = theirs  # type: ignore[union-attr]

    return undo
