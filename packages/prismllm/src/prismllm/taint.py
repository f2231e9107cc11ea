"""Follows values that no rank has sent, and refuses branches on them.

A receive that was pruned without a recording leaves zeros. Operators that read them make further such values. A script
may print or average them; it must not branch on them. `Tensor.item` of one gives a float that can be printed and
calculated with, but not compared or tested.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from prismllm.errors import UnsentValueError, call_site

#: Operators by which Python learns a value.
_DECIDING = ("is_nonzero", "equal", "nonzero", "_local_scalar_dense", "masked_select")
#: Operators that write all of their first argument.
_OVERWRITING = ("copy_", "zero_", "fill_", "normal_", "uniform_")


class UnsentFloat(float):
    """A number that came from zeros: may be shown and calculated with, but not decided by."""

    rank: int
    site: str

    def __new__(cls, value: float, rank: int, site: str) -> UnsentFloat:
        """Remember whose zeros the number came from."""
        number = super().__new__(cls, value)
        number.rank, number.site = rank, site
        return number

    def _refuse(self, *_: Any) -> Any:
        raise UnsentValueError(_text(self.rank, self.site))

    __bool__ = __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = __int__ = __round__ = _refuse
    __hash__ = float.__hash__


def _calculate(name: str) -> Callable[..., Any]:
    plain = getattr(float, name)

    def method(self: UnsentFloat, *others: Any) -> Any:
        value = plain(self, *others)
        return UnsentFloat(value, self.rank, self.site) if isinstance(value, float) else value

    return method


for _name in ("__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__", "__truediv__", "__neg__", "__abs__"):
    setattr(UnsentFloat, _name, _calculate(_name))


def _text(rank: int, site: str, deed: str = "decides at {} by a value") -> str:
    return (
        f"rank {rank} {deed.format(call_site())} that came from a message nobody has sent (received at {site}). "
        "Run its sender in the same slice or as a sandbox rank, or let a recording supply it (capture both with a "
        "larger --slice)."
    )


def _held(tensor: torch.Tensor) -> torch.Tensor:
    """The plain tensor inside a DTensor or a tensor that a collective is still filling."""
    for name in ("_local_tensor", "elem"):
        inner = getattr(tensor, name, None)
        if isinstance(inner, torch.Tensor):
            return _held(inner)
    return tensor


class Watch:
    """A watch that ignores unsent values.

    Attributes:
        spent_ns: Time that following them took, which is none of the rank's own work; nanoseconds.
    """

    spent_ns = 0

    def add(self, tensor: torch.Tensor, site: str) -> None:
        """Mark the whole storage of a tensor of zeros that no rank has sent; received at `site`."""

    def site_of(self, tensor: torch.Tensor) -> str | None:
        """Return where the value was received; None if it is real or unknown."""
        return None


class StrictWatch(Watch, TorchDispatchMode):  # type: ignore[misc]
    """Follows unsent values from operator to operator, from the first one on; without any it costs nothing."""

    def __init__(self, rank: int) -> None:
        TorchDispatchMode.__init__(self)
        self.rank = rank
        self.sites = WeakIdKeyDictionary()
        self._is_needed = False
        _guard(self, rank)
        for name in ("backward", "grad"):  # a mode that is entered inside of a backward pass ends with it
            setattr(torch.autograd, name, self._and_then_follow(getattr(torch.autograd, name)))

    def follow(self) -> None:
        """Operators of this thread are seen from now on, if there is anything to follow."""
        if self._is_needed and not any(one is self for one in _get_current_dispatch_mode_stack()):
            self.__enter__()

    def _and_then_follow(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return plain(*args, **kwargs)
            finally:
                self.follow()

        return call

    def add(self, tensor: torch.Tensor, site: str) -> None:
        """See `Watch`."""
        self._mark(tensor, site)
        self._is_needed = True
        self.follow()

    def _mark(self, tensor: torch.Tensor, site: str) -> None:
        with contextlib.suppress(RuntimeError, NotImplementedError):  # no storage
            self.sites[_held(tensor).untyped_storage()] = site

    def site_of(self, tensor: torch.Tensor) -> str | None:
        """See `Watch`."""
        try:
            site: str | None = self.sites.get(_held(tensor).untyped_storage())
        except (RuntimeError, NotImplementedError):  # no storage
            return None
        return site

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator; mark its results if an input is unsent."""
        begun = time.perf_counter_ns()
        kwargs = kwargs or {}
        inputs = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        site = next((found for found in map(self.site_of, inputs) if found), None)
        name = func.overloadpacket.__name__
        is_shown = name == "_local_scalar_dense" and bool(_item_calls)
        if site is not None and name in _DECIDING and not is_shown:
            raise UnsentValueError(_text(self.rank, site))
        called = time.perf_counter_ns()
        result = func(*args, **kwargs)
        returned = time.perf_counter_ns()
        if site is not None:
            written = inputs[:1] if name.endswith("_") else []
            if name in _OVERWRITING and not any(map(self.site_of, inputs[1:])):
                self._clear(inputs[0])
            else:
                for one in [*tree_leaves(result), *written]:
                    if isinstance(one, torch.Tensor):
                        self._mark(one, site)
        self.spent_ns += called - begun + time.perf_counter_ns() - returned
        return result

    def _clear(self, tensor: torch.Tensor) -> None:
        """Clear the mark of a tensor that real values overwrite, if it is all of its storage."""
        plain = _held(tensor)
        if plain.nbytes == plain.untyped_storage().nbytes():
            self.sites.pop(plain.untyped_storage(), None)


_item_calls: list[int] = []


def _guard(mode: StrictWatch, rank: int) -> None:
    """The ways by which a value leaves its tensor: one number may be shown; whole tensors cannot be followed."""
    plain_item = torch.Tensor.item

    def item(self: torch.Tensor) -> Any:
        site = mode.site_of(self)
        _item_calls.append(1)
        try:
            value = plain_item(self)
        finally:
            _item_calls.pop()
        return value if site is None or not isinstance(value, float) else UnsentFloat(value, rank, site)

    torch.Tensor.item = item
    for name in ("numpy", "tolist", "__array__"):
        setattr(torch.Tensor, name, _refusing_tensors(mode, rank, getattr(torch.Tensor, name)))
    for name in ("isnan", "isinf", "isfinite"):  # they read a float without asking it
        setattr(math, name, _refusing_numbers(getattr(math, name)))


def _refusing_tensors(mode: StrictWatch, rank: int, plain: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        site = mode.site_of(self)
        if site is not None:
            raise UnsentValueError(_text(rank, site, "copies at {}, to where nobody can follow it, a value"))
        return plain(self, *args, **kwargs)

    return method


def _refusing_numbers(plain: Callable[[Any], bool]) -> Callable[[Any], bool]:
    def function(number: Any) -> bool:
        if isinstance(number, UnsentFloat):
            raise UnsentValueError(_text(number.rank, number.site))
        return plain(number)

    return function
