"""How functions are called in pictures: short where there is little room, in full on demand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from eroica.model.pattern import FunctionKey


def short_names(keys: Sequence[FunctionKey]) -> list[str]:
    """A name for each of some functions that tells them apart as far as possible; not clean yet."""
    names = [_short(key) for key in keys]
    seen = Counter(names)
    return [f"{name} · {_apart(key)}" if seen[name] > 1 else name for name, key in zip(names, keys, strict=True)]


def _short(key: FunctionKey) -> str:
    """A Python function with its file, others by name."""
    if not key.stack:
        return key.name
    name, _, where = key.stack[-1].partition(" (")
    return f"{name} {where.removesuffix(')').rsplit('/', 1)[-1]}".strip()


def _apart(key: FunctionKey) -> str:
    """What tells functions of one name apart: the group, the caller, else part of the iteration."""
    if key.group:
        return key.group
    if len(key.stack) > 1:
        return key.stack[-2].split(" (")[0]
    return key.phase


def full_name(key: FunctionKey) -> str:
    """A function with where it ran: "aten::mm, backward"; of Python the innermost frames."""
    if key.stack:
        return " › ".join(frame.split(" (")[0] for frame in key.stack[-4:-1]) + f" › {key.stack[-1]}"
    where = [f"group {key.group}"] if key.group else [] if key.phase == "other" else [key.phase]
    return ", ".join([key.name, *where])
