"""Values that nobody has computed: where they go, and who decides by them.

A receive that was pruned without a recording leaves zeros. Operators that read them make further such values. A script
may print or average them; it must not branch on them. `Tensor.item` of one gives a float that can be printed and
calculated with, but not compared or tested.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from prismllm.errors import InventedValueError

#: Operators by which Python learns a value.
_DECIDING = ("is_nonzero", "equal", "nonzero", "_local_scalar_dense", "masked_select")


class InventedFloat(float):
    """A number that came from zeros: may be shown and calculated with, but not decided by."""

    site: str
    rank: int

    def _refuse(self, *_: Any) -> Any:
        raise InventedValueError(_text(self.rank, self.site))

    __bool__ = __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = __int__ = __round__ = _refuse
    __hash__ = float.__hash__


def _calculate(name: str) -> Callable[..., Any]:
    plain = getattr(float, name)

    def method(self: InventedFloat, *others: Any) -> Any:
        value = plain(self, *others)
        return invented_float(value, self.rank, self.site) if isinstance(value, float) else value

    return method


for _name in ("__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__", "__truediv__", "__neg__", "__abs__"):
    setattr(InventedFloat, _name, _calculate(_name))


def invented_float(value: float, rank: int, site: str) -> InventedFloat:
    """A number that remembers whose zeros it came from."""
    number = InventedFloat(value)
    number.rank, number.site = rank, site
    return number


def _text(rank: int, site: str) -> str:
    return (
        f"rank {rank} decides at {_line()} by a value that came from a message nobody has sent (received at {site}). "
        "Run its sender in the same slice or as a sandbox rank, or let a recording supply it (capture both with a "
        "larger --slice)."
    )


def _line() -> str:
    torch_home = str(Path(torch.__file__).parent)
    frame: Any = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith("<") and not name.startswith(torch_home) and name != __file__:
            return f"{Path(name).name}:{frame.f_lineno}"
        frame = frame.f_back
    return "?"


class TaintMode(TorchDispatchMode):  # type: ignore[misc]
    """Follows invented values from operator to operator."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank = rank
        self.sites = WeakIdKeyDictionary()

    def add(self, tensor: torch.Tensor, site: str) -> None:
        """The whole storage of this tensor is invented."""
        self.sites[tensor.untyped_storage()] = site

    def site_of(self, tensor: torch.Tensor) -> str | None:
        """Where the value was received, None if it is real."""
        try:
            site: str | None = self.sites.get(tensor.untyped_storage())
        except (RuntimeError, NotImplementedError):  # no storage
            return None
        return site

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator; what it makes of invented values is invented."""
        kwargs = kwargs or {}
        inputs = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        site = next((found for found in map(self.site_of, inputs) if found), None)
        name = func.overloadpacket.__name__
        is_shown = name == "_local_scalar_dense" and bool(_item_calls)
        if site is not None and name in _DECIDING and not is_shown:
            raise InventedValueError(_text(self.rank, site))
        result = func(*args, **kwargs)
        if site is not None:
            written = inputs[:1] if name.endswith("_") else []
            for one in [*tree_leaves(result), *written]:
                if isinstance(one, torch.Tensor):
                    self.add(one, site)
        return result


_item_calls: list[int] = []


def watch(rank: int, is_strict: bool) -> Callable[[torch.Tensor, str], None]:
    """Start following invented values in this process.

    Returns:
        What to tell of a tensor that was filled with zeros, and where; does nothing unless strict.
    """
    if not is_strict:
        return lambda _tensor, _site: None
    mode = TaintMode(rank)
    mode.__enter__()
    plain = torch.Tensor.item

    def item(self: torch.Tensor) -> Any:
        site = mode.site_of(self)
        _item_calls.append(1)
        try:
            value = plain(self)
        finally:
            _item_calls.pop()
        return value if site is None or not isinstance(value, float) else invented_float(value, rank, site)

    torch.Tensor.item = item
    return mode.add
