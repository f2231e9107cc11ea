"""How functions are called in pictures: short where there is little room, in full on demand."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from eroica.model.pattern import FunctionKey
from eroica.model.verdict import NO_FUNCTION, Finding

_KERNEL = re.compile(r"\w*kernel\w*")
#: Names from the job are read no further: they may be of any length.
_LONGEST = 2000


def short_names(keys: Sequence[FunctionKey], room: int = 40) -> list[str]:
    """A name for each of some functions that tells them apart as far as possible; not clean yet.

    Args:
        keys: Functions.
        room: Letters there are; longer names lose their class or their templates, and may be too long still.
    """
    names = [_short(key, room) for key in keys]
    seen = Counter(names)
    return [f"{name} · {_apart(key)}" if seen[name] > 1 else name for name, key in zip(names, keys, strict=True)]


def _short(key: FunctionKey, room: int) -> str:
    """A Python function with its file, others by name."""
    if not key.stack:
        return key.name if len(key.name) <= room else _of_kernel(key.name[:_LONGEST])
    name, _, where = key.stack[-1][:_LONGEST].partition(" (")
    file = where.removesuffix(")").rsplit("/", 1)[-1]
    whole = f"{name} {file}".strip()
    return whole if len(whole) <= room else f"{last_part(name)} {file}".strip()


def last_part(name: str) -> str:
    """A Python function without its module and class: "Loader.read.<locals>.<listcomp>" is "read.<listcomp>"."""
    parts = [part for part in name.split(".") if part != "<locals>"]
    return ".".join(parts[-2:] if parts[-1:] and parts[-1].startswith("<") else parts[-1:]) or name


def _of_kernel(name: str) -> str:
    """A C++ kernel without namespaces and template arguments, behind the kernel that it is a template of."""
    head, bracket, inside = name.removeprefix("void ").partition("<")
    if not bracket or "::" not in name:
        return name
    outer = head.rsplit("::", 1)[-1]
    inner = next((found for found in _KERNEL.findall(inside) if found != outer), "")
    return f"{inner} · {outer}" if inner else outer or name


def shown_as(finding: Finding, key: FunctionKey) -> str:
    """What a finding is about, with the function that shows it where that is another one; not clean yet.

    What a loader's process does is never critical itself: "_read_block, waited for in poll".
    """
    name = finding.function.name
    if name in (key.name, NO_FUNCTION):
        return key.name if name == NO_FUNCTION else name
    if any(name in frame for frame in key.stack):
        return name
    return f"{name}, {'waited for in' if key.phase == 'input' else 'as'} {key.name}"


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
