"""Which function of one run is which of the other: commits move lines, refactor callers and rename kernels."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

import msgspec

from eroica.model.pattern import FunctionKey, WorkerPattern
from eroica.model.rows import RowTable
from eroica.model.trace import NO_KERNELS

_LINE = re.compile(r":\d+\)$")
_INNERMOST_BRACKETS = re.compile(r"<[^<>]*>")
_LOADER = re.compile(r"_(Single|Multi)Process(ing)?DataLoaderIter\b")
_DEEPEST = 30
#: Names of many unrelated functions: the name alone matches nothing.
_COMMON = frozenset({"backward", "call", "fn", "forward", "get", "inner", "main", "run", "step", "wrapped", "wrapper"})
#: Kinds whose names depend on whether Python stacks were recorded.
_HOST_KINDS = ("python", "other")


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """The same function on both sides, as indices into each side's keys.

    A side has no index if the function is new or gone, several if they cannot be separated. `key` is the later one.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    key: FunctionKey

    @property
    def is_operator(self) -> bool:
        """Whether it is the model's own computation, on both sides."""
        return bool(self.before and self.after) and self.key.kind in ("compute", "memory") and self.key.phase != "input"


def match_functions(before: Sequence[FunctionKey], after: Sequence[FunctionKey]) -> list[Pair]:
    """Pair the functions of two runs; every index occurs in exactly one pair.

    First by the whole stack without line numbers, then by name, file and phase, last by a unique name, of kernels
    without return type and arguments.
    """
    left_before, left_after = list(range(len(before))), list(range(len(after)))
    pairs: list[Pair] = []
    for identity in (_whole, _leaf, _name):
        groups = _grouped(left_before, before, identity), _grouped(left_after, after, identity)
        for name in [name for name in groups[0] if name in groups[1]]:
            mine, theirs = groups[0][name], groups[1][name]
            if identity is not _name or len(mine) == len(theirs) == 1:
                pairs.append(Pair(before=tuple(mine), after=tuple(theirs), key=after[theirs[0]]))
        left_before = _without(left_before, (index for pair in pairs for index in pair.before))
        left_after = _without(left_after, (index for pair in pairs for index in pair.after))
    pairs += [Pair(before=(index,), after=(), key=before[index]) for index in left_before]
    pairs += [Pair(before=(), after=(index,), key=after[index]) for index in left_after]
    return pairs


def _without(indices: Sequence[int], taken: Iterable[int]) -> list[int]:
    gone = set(taken)
    return [index for index in indices if index not in gone]


def _grouped(
    indices: Iterable[int], keys: Sequence[FunctionKey], identity: Callable[[FunctionKey], Hashable]
) -> Mapping[Hashable, list[int]]:
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for index in indices:
        name = identity(keys[index])
        if name is not None:
            groups[name].append(index)
    return groups


def _whole(key: FunctionKey) -> Hashable:
    return key.kind, key.name, tuple(map(_without_line, key.stack)), key.phase, key.thread, key.group


def _leaf(key: FunctionKey) -> Hashable:
    return key.kind, key.name, _without_line(key.stack[-1]) if key.stack else "", key.phase, key.thread


def _name(key: FunctionKey) -> Hashable:
    """Return the name alone; the data loader's `__next__` is the same with and without loader processes."""
    if _LOADER.search(key.name):
        return key.kind, key.phase, "loader"
    if key.kind != "python":
        return key.kind, plain_name(key.name)
    return None if key.name in _COMMON or key.name.startswith(("<", "__")) else (key.kind, key.name)


def _without_line(frame: str) -> str:
    return _LINE.sub(")", frame)


def plain_name(kernel: str) -> str:
    """Return a kernel's name without return type, template and call arguments."""
    name = kernel
    for _ in range(_DEEPEST):
        shorter = _INNERMOST_BRACKETS.sub("", name)
        if shorter == name:
            break
        name = shorter
    name = name.partition("(")[0] if not name.startswith("(") else name
    return name.removeprefix("void ").strip() or kernel


# --- runs that were recorded differently ---

Patterns = Sequence[WorkerPattern]


def without_unlike(before: Patterns, after: Patterns) -> tuple[Patterns, Patterns, str]:
    """Return both runs without Python if only one has Python stacks, and a note ("" if nothing is left out)."""
    shown = [
        any(key.kind == "python" and key.stack for pattern in side for key in RowTable.of(pattern.functions).keys)
        for side in (before, after)
    ]
    if shown[0] == shown[1]:
        return before, after, ""
    which = "first" if shown[0] else "second"
    note = f"only the {which} run has Python stacks: Python and the host's own time are not compared"
    return _without_host(before), _without_host(after), note


def _without_host(patterns: Patterns) -> Patterns:
    return [
        msgspec.structs.replace(
            pattern, functions=tuple(row for row in pattern.functions if row.key.kind not in _HOST_KINDS)
        )
        for pattern in patterns
    ]


def unseen_device(before: Patterns, after: Patterns) -> str:
    """Return why functions cannot be compared if only one run holds the kernels of its devices; else ""."""
    lacks = [all(NO_KERNELS in pattern.notes for pattern in patterns) for patterns in (before, after)]
    if lacks[0] == lacks[1]:
        return ""
    which = "first" if lacks[0] else "second"
    return (
        f"the {which} run used an accelerator and its recording holds no kernels of it; record it with the device's "
        "activities"
    )
