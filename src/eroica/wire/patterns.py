"""Patterns between their record and MessagePack: what the workers of a large job have in common is kept once.

A hundred thousand workers name the same functions, and each process group is named by all its members. On the wire a
group whose ranks follow each other in equal steps, as in nearly all jobs, carries first, step and count instead of a
hundred thousand numbers; after decoding, equal functions and equal groups are the same objects.
"""

from __future__ import annotations

from typing import Any

import msgspec

from eroica.model.pattern import FunctionKey, FunctionPattern, WorkerPattern
from eroica.model.worker import ProcessGroup

#: Shorter lists of ranks travel as they are.
_LONG_LIST = 16
#: Ranks that all groups of one pattern may name together: a few dozen bytes must not become gigabytes.
_MOST_MEMBERS = 2_000_000
#: No rank lies beyond: ranks are compared as 64-bit numbers.
_MOST_RANK = 2**62
#: Functions and ranks of groups that are kept for the next patterns.
_MOST_KEYS, _MOST_KEPT_MEMBERS = 50_000, 10_000_000


class _WireRow(FunctionPattern, frozen=True, kw_only=True):
    """A row whose key is not read yet."""

    key: msgspec.Raw  # type: ignore[assignment]


class _WireGroup(ProcessGroup, frozen=True, kw_only=True):
    """A group as it travels: `ranks`, or `span` = first, step and count."""

    span: tuple[int, int, int] | None = None


class _WirePattern(WorkerPattern, frozen=True, kw_only=True):
    functions: tuple[_WireRow, ...]
    process_groups: tuple[_WireGroup, ...] = ()


_DECODER = msgspec.msgpack.Decoder(_WirePattern)
_KEY_DECODER = msgspec.msgpack.Decoder(FunctionKey)


class _Kept:
    """What recent patterns had in common, bounded."""

    def __init__(self) -> None:
        self._keys: dict[bytes, FunctionKey] = {}
        self._groups: dict[tuple[object, ...], ProcessGroup] = {}
        self._members = 0

    def key(self, raw: msgspec.Raw) -> FunctionKey:
        """The function with these bytes."""
        text = bytes(raw)
        key = self._keys.get(text)
        if key is None:
            if len(self._keys) >= _MOST_KEYS:
                self._keys = {}
            key = self._keys[text] = _KEY_DECODER.decode(text)
        return key

    def group(self, wire: _WireGroup) -> ProcessGroup:
        """The group that travelled so."""
        named = wire.name, wire.description, wire.backend, wire.span or wire.ranks
        group = self._groups.get(named)
        if group is None:
            ranks = wire.ranks if wire.span is None else _members(*wire.span)
            if self._members + len(ranks) > _MOST_KEPT_MEMBERS:
                self._groups, self._members = {}, 0
            group = ProcessGroup(name=wire.name, description=wire.description, ranks=ranks, backend=wire.backend)
            self._groups[named] = group
            self._members += len(ranks) + 1
        return group


_KEPT = _Kept()


def pack_pattern(pattern: WorkerPattern) -> bytes:
    """A pattern as MessagePack."""
    groups = tuple(_packed(group) for group in pattern.process_groups)
    return msgspec.msgpack.encode(msgspec.structs.replace(pattern, process_groups=groups))


def unpack_pattern(text: bytes) -> WorkerPattern:
    """What `pack_pattern` made.

    Raises:
        ValueError: It is no pattern (msgspec's errors are ValueErrors), or its groups name too many ranks, or
            ranks that no job has.
    """
    wire = _DECODER.decode(text)
    if sum(map(_size, wire.process_groups)) > _MOST_MEMBERS:
        raise ValueError(f"its process groups name more than {_MOST_MEMBERS} ranks")
    values: dict[str, Any] = {name: getattr(wire, name) for name in WorkerPattern.__struct_fields__}
    values["functions"] = tuple(map(_row, wire.functions))
    values["process_groups"] = tuple(map(_KEPT.group, wire.process_groups))
    return WorkerPattern(**values)


def _row(wire: _WireRow) -> FunctionPattern:
    return FunctionPattern(
        key=_KEPT.key(wire.key),
        beta=wire.beta,
        mu=wire.mu,
        sigma=wire.sigma,
        resource=wire.resource,
        resource_samples=wire.resource_samples,
        critical_s=wire.critical_s,
        total_s=wire.total_s,
        count=wire.count,
        max_s=wire.max_s,
        active_iterations=wire.active_iterations,
        beta_error=wire.beta_error,
        per_iteration_us=wire.per_iteration_us,
    )


def _packed(group: ProcessGroup) -> ProcessGroup:
    """The group as it travels."""
    ranks = group.ranks
    if len(ranks) < _LONG_LIST:
        return group
    span = ranks[0], ranks[1] - ranks[0], len(ranks)
    if span[1] <= 0 or ranks != _members(*span):
        return group
    return _WireGroup(name=group.name, description=group.description, backend=group.backend, span=span)


def _size(group: _WireGroup) -> int:
    """How many ranks a group names; its span is checked before anything is built from it."""
    if group.span is None:
        return len(group.ranks)
    first, step, count = group.span
    if first < 0 or step <= 0 or not 0 <= count <= _MOST_MEMBERS or first + step * count > _MOST_RANK:
        raise ValueError(f"{count} ranks from {first} in steps of {step} are no process group")
    return count


def _members(first: int, step: int, count: int) -> tuple[int, ...]:
    return tuple(range(first, first + step * count, step))
