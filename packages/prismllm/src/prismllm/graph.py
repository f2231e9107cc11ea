"""The execution graph of the whole job: rank classes, the calls they share, and whether these fit together.

A *rank class* is a row of events that many ranks have in common; a *family* is a set of disjoint groups of one size
(all tensor-parallel groups). An *operation* is one collective of one group, or one message. The graph is kept per class
and operation, never per rank and event, so that thousands of ranks cost a few arrays.

Source: PrismLLM (arXiv 2605.15617): an execution graph of computation, communication and dependencies at target scale.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import msgspec
import numpy as np
from numpy.typing import NDArray

from prismllm.errors import GraphError
from prismllm.model import FORMAT, PAIRWISE, Call, Group, Step, digest

Ints = NDArray[np.int64]
#: Above the number of (family, tag, number) in one job.
_CODES = 1_000_003


class RankClass(msgspec.Struct, frozen=True):
    """Ranks that do the same.

    Attributes:
        rank: The one whose calls stand for all.
        ran: Ranks of this class that ran, whose calls are equal.
        samples_ns: Segments of timed iterations, each as long as `step.segments_ns`.
        spread: Relative difference of the compute time of an iteration between ranks that were timed; 0 if one was.
        peak_bytes: Most memory in use; of `rank`.
        timed: Ranks of this class whose own work was timed.
        sizes: Bytes of the uneven calls in each of `samples_ns`; int [samples, uneven calls].
    """

    rank: int
    ran: list[int]
    step: Step
    samples_ns: list[list[int]]
    spread: float
    peak_bytes: int
    timed: list[int] = []
    sizes: list[list[int]] = []


class Job(msgspec.Struct, frozen=True):
    """A captured job.

    Attributes:
        groups: All process groups, in order of creation; number 0 holds everybody.
        kind_of: Class of each rank, `world` of them.
        local_world: Ranks of a host.
        unlike: Timed ranks that make the calls of others but work longer or shorter; each is in a class of its own.
    """

    world: int
    groups: list[Group]
    classes: list[RankClass]
    class_of: list[int]
    local_world: int
    script: list[str]
    unlike: list[int] = []
    format: int = FORMAT


@dataclass(frozen=True)
class Layout:
    """Groups as families.

    Attributes:
        families: Ranks of all groups of each family; int64 [groups, members].
        places: Family and row of each group, by number; -1 if it is in none.
        row: Row of each rank in each family, -1 if it is in none; int64 [families, world].
        position: Its place in that group; likewise.
    """

    families: list[Ints]
    places: list[tuple[int, int]]
    row: Ints
    position: Ints

    def family_of(self, group: int) -> int:
        """Family of a group."""
        return self.places[group][0]

    @cached_property
    def numbers(self) -> dict[tuple[int, int], int]:
        """Number of the group at each family and row."""
        return {place: number for number, place in enumerate(self.places)}

    def group_of(self, family: int, rank: int) -> int:
        """Number of the group of a family that a rank is in."""
        return self.numbers[family, int(self.row[family, rank])]


def lay_out(groups: Sequence[Group], world: int) -> Layout:
    """Sort groups into families: same line of code, same size, disjoint."""
    members: list[list[list[int]]] = []
    taken: list[set[int]] = []
    keys: list[tuple[str, str, int]] = []
    places: list[tuple[int, int]] = []
    for group in groups:
        key = group.site, group.description, len(group.ranks)
        at = next((one for one in range(len(keys) - 1, -1, -1)
                   if keys[one] == key and taken[one].isdisjoint(group.ranks)), -1)  # fmt: skip
        if at < 0:
            at = len(keys)
            keys.append(key)
            members.append([])
            taken.append(set())
        places.append((at, len(members[at])))
        members[at].append(group.ranks)
        taken[at].update(group.ranks)
    families = [np.array(one, np.int64) for one in members]
    row = np.full((len(families), world), -1, np.int64)
    position = np.full((len(families), world), -1, np.int64)
    for at, family in enumerate(families):
        rows, columns = np.indices(family.shape)
        row[at, family] = rows
        position[at, family] = columns
    return Layout(families, places, row, position)


def fingerprint(step: Step, rank: int, layout: Layout) -> str:
    """Return a digest of a rank's calls and operators, equal for ranks that are alike.

    Groups count as their family, other sides by how far they are away in the group.
    """
    rows: list[object] = []
    for call in step.calls:
        family = layout.family_of(call.group)
        away = -1
        if call.is_pairwise:
            size = layout.families[family].shape[1]
            away = int(layout.position[family, call.peer] - layout.position[family, rank]) % size
        nbytes = -1 if call.is_uneven else call.nbytes
        rows.append((call.op, family, call.number, call.signature, nbytes, away, call.tag))
    return digest([rows, step.events, step.work])


@dataclass
class Block:
    """Ranks of a class that can be replayed as one array: their messages never go to each other.

    Attributes:
        class: Number of the class.
        ranks: Ascending; int64 [n].
        operations: Of each call of the class; int64 [n] each.
    """

    rank_class: int
    ranks: Ints
    operations: list[Ints]


@dataclass
class Graph:
    """The dependencies of one iteration.

    Attributes:
        blocks: Every rank is in one.
        members: How many ranks launch each operation; int64 [operations].
        before: The operation that the same group has to finish first, -1 if none; int64 [operations].
        last: The group's queue of each operation, -1 for messages; int64 [operations].
        queues: Number of queues: one for each group.
        calls: (operation, bytes, family or -1) of each class of operations.
        call_of: Class of each operation; int64 [operations].
        row_of: Row of the operation's group in its family, or index of the message; int64 [operations].
        pair: Sender and receiver of each message operation, else -1; int64 [operations, 2].
    """

    job: Job
    layout: Layout
    blocks: list[Block]
    members: Ints
    before: Ints
    last: Ints
    queues: int
    calls: list[tuple[str, int, int]]
    call_of: Ints
    row_of: Ints
    pair: Ints

    @cached_property
    def groups_of(self) -> dict[int, list[int]]:
        """Numbers of the groups that each rank is in."""
        found: dict[int, list[int]] = defaultdict(list)
        for number, group in enumerate(self.job.groups):
            for rank in group.ranks:
                found[rank].append(number)
        return found

    def nodes_and_edges(self) -> tuple[int, int]:
        """Count nodes (segments and calls of all ranks) and edges (program order and calls' members)."""
        nodes = sum(
            len(block.ranks) * (len(self.job.classes[block.rank_class].step.events) + 1) for block in self.blocks
        )
        edges = sum(len(block.ranks) * len(self.job.classes[block.rank_class].step.events) * 2 for block in self.blocks)
        return nodes + len(self.members), edges


def rows_of(blocks: Sequence[Block], ranks: Iterable[int] | None) -> list[tuple[int, int, int]]:
    """Return block number, row and rank of these ranks, or of all."""
    wanted = None if ranks is None else set(ranks)
    return [(at, row, rank) for at, block in enumerate(blocks) for row, rank in enumerate(block.ranks.tolist())
            if wanted is None or rank in wanted]  # fmt: skip


def build(job: Job) -> Graph:
    """Build the graph of a job and check it.

    Raises:
        GraphError: A collective lacks a member, or members disagree; a message lacks its other side. Ranks, calls,
            files and lines are named.
    """
    layout = lay_out(job.groups, job.world)
    class_of = np.array(job.class_of, np.int64)
    ranks_of = [np.flatnonzero(class_of == rank_class) for rank_class in range(len(job.classes))]
    shared = _collectives_of_classes(job, layout)
    _check_collectives(job, layout, class_of, shared)
    makers = _Numbering(job, layout)
    for family in range(len(layout.families)):
        makers.add_family(family, max((mine.get(family, []) for mine in shared), key=len))
    makers.add_messages(ranks_of)
    blocks = []
    for rank_class, ranks in enumerate(ranks_of):
        for part in _apart(job.classes[rank_class].step, ranks, layout):
            calls = job.classes[rank_class].step.calls
            blocks.append(Block(rank_class, part, [makers.operations_of(call, part) for call in calls]))
    members = np.zeros(makers.count, np.int64)
    for block in blocks:
        for operations in block.operations:
            np.add.at(members, operations, 1)
    return makers.graph(blocks, members)


def _collectives_of_classes(job: Job, layout: Layout) -> list[dict[int, list[Call]]]:
    """Collectives of each class, by family."""
    shared: list[dict[int, list[Call]]] = []
    for rank_class in job.classes:
        mine: dict[int, list[Call]] = defaultdict(list)
        for call in rank_class.step.calls:
            if not call.is_pairwise:
                mine[layout.family_of(call.group)].append(call)
        shared.append(mine)
    return shared


def _check_collectives(job: Job, layout: Layout, class_of: Ints, shared: list[dict[int, list[Call]]]) -> None:
    for family, ranks in enumerate(layout.families):
        classes_GM = class_of[ranks]
        seen: set[tuple[int, ...]] = set()
        for row, classes in enumerate(np.sort(classes_GM, axis=1)):
            key = tuple(dict.fromkeys(classes.tolist()))
            if key in seen:
                continue
            seen.add(key)
            first = int(classes_GM[row, 0])
            for other in key:
                if other != first:
                    whom = int(ranks[row, np.flatnonzero(classes_GM[row] == other)[0]])
                    _compare(shared[first].get(family, []), shared[other].get(family, []), int(ranks[row, 0]), whom,
                             _named(job, layout, family, row))  # fmt: skip


def _named(job: Job, layout: Layout, family: int, row: int) -> str:
    group = job.groups[layout.numbers[family, row]]
    shown = ", ".join(map(str, group.ranks[:4])) + (", …" if len(group.ranks) > 4 else "")
    return f"group {group.description or 'of ' + str(len(group.ranks))} [{shown}]"


def _compare(mine: list[Call], theirs: list[Call], me: int, them: int, group: str) -> None:
    for number, (one, other) in enumerate(zip(mine, theirs, strict=False)):
        same_size = one.nbytes == other.nbytes or one.op == "all_to_all"
        if one.op != other.op or one.signature != other.signature or not same_size:
            raise GraphError(
                f"call {number} of {group} does not fit: rank {me} makes {one}, rank {them} {other}. "
                "All members must make the same calls in the same order with equal sizes."
            )
    if len(mine) != len(theirs):
        few, many, lacking, having = (theirs, mine, them, me) if len(mine) > len(theirs) else (mine, theirs, me, them)
        raise GraphError(
            f"call {len(few)} of {group} lacks a member: rank {having} makes {many[len(few)]}, rank {lacking} "
            f"makes only {len(few)} calls there in an iteration."
        )


def _apart(step: Step, ranks: Ints, layout: Layout) -> list[Ints]:
    """Ranks of a class by their places in groups in which the class sends."""
    families = sorted({layout.family_of(call.group) for call in step.calls if call.is_pairwise})
    if not families or len(ranks) < 2:
        return [ranks]
    keys = layout.position[families][:, ranks]
    _, which = np.unique(keys, axis=1, return_inverse=True)
    which = which.reshape(-1)
    return [ranks[which == one] for one in range(int(which.max()) + 1)]


@dataclass
class _Side:
    """All sends, or all receives, in order of their keys; int64 [messages] each.

    Attributes:
        keys: Sender, receiver and what else tells messages apart.
        nbytes: Their sizes.
        ranks: Who makes them.
        places: Index of each in `calls`.
        calls: Calls of classes of ranks.
    """

    keys: Ints
    nbytes: Ints
    ranks: Ints
    places: Ints
    calls: list[Call]

    def described(self, at: int) -> tuple[int, Call]:
        """Return rank and call of a message."""
        return int(self.ranks[at]), self.calls[self.places[at]]


class _Numbering:
    """Numbers collectives and messages."""

    def __init__(self, job: Job, layout: Layout) -> None:
        self.job, self.layout = job, layout
        self.count = 0
        self.queues = 0
        self.calls: list[tuple[str, int, int]] = []
        self._base: dict[int, int] = {}
        self._columns: tuple[list[Ints], ...] = ([], [], [], [], [])
        self._codes: dict[tuple[int, int, int], int] = {}
        self._owner = {id(call): rank_class.rank for rank_class in job.classes for call in rank_class.step.calls}
        self._keys: Ints = np.zeros(0, np.int64)
        self._first_message = 0

    def add_family(self, family: int, calls: Sequence[Call]) -> None:
        """Number all collectives of a family: number by number, row by row."""
        rows = len(self.layout.families[family])
        self._base[family] = self.count
        here = np.arange(rows, dtype=np.int64)
        none = np.full(rows, -1, np.int64)
        for number, call in enumerate(calls):
            before = self.count - rows + here if number else none
            kind = np.full(rows, len(self.calls), np.int64)
            self.calls.append((call.op, call.nbytes, family))
            self._add(before, self.queues + here, kind, here, np.stack([none, none], axis=1))
        self.queues += rows

    def _add(self, *columns: Ints) -> None:
        """Add operations: those before, queues, classes, rows and ends of each."""
        for column, more in zip(self._columns, columns, strict=True):
            column.append(more)
        self.count += len(columns[0])

    def _message_keys(self, call: Call, ranks: Ints) -> Ints:
        """Sender, receiver and what else tells messages apart, in one number."""
        layout, family = self.layout, self.layout.family_of(call.group)
        code = self._codes.setdefault((family, call.tag, call.number), len(self._codes))
        size = layout.families[family].shape[1]
        away = layout.position[family, call.peer] - layout.position[family, self._owner[id(call)]]
        peers = layout.families[family][layout.row[family, ranks], (layout.position[family, ranks] + away) % size]
        source, target = (ranks, peers) if call.op == "send" else (peers, ranks)
        return (source * self.job.world + target) * _CODES + code

    def add_messages(self, ranks_of: Sequence[Ints]) -> None:
        """Number all messages; sends and receives must be each other's."""
        sent, received = (self._side(op, ranks_of) for op in PAIRWISE)
        self._check_partners(sent, received, "receive")
        self._check_partners(received, sent, "send")
        differ = np.flatnonzero(sent.nbytes != received.nbytes)
        if len(differ):
            mine, theirs = sent.described(differ[0]), received.described(differ[0])
            raise GraphError(f"a message has two sizes: rank {mine[0]} makes {mine[1]}, rank {theirs[0]} {theirs[1]}.")
        self._keys, self._first_message = sent.keys, self.count
        sizes, kinds = np.unique(sent.nbytes, return_inverse=True)
        none, ends = np.full(len(sent.keys), -1, np.int64), sent.keys // _CODES
        pairs = np.stack([ends // self.job.world, ends % self.job.world], axis=1)
        self._add(none, none, len(self.calls) + kinds.reshape(-1), np.arange(len(none)), pairs)
        self.calls += [("send", int(size), -1) for size in sizes]

    def _side(self, op: str, ranks_of: Sequence[Ints]) -> _Side:
        """Return all sends or all receives."""
        calls: list[Call] = []
        columns: list[Ints] = [np.zeros((4, 0), np.int64)]
        for rank_class, ranks in zip(self.job.classes, ranks_of, strict=True):
            for call in rank_class.step.calls:
                if call.op == op:
                    same = np.ones_like(ranks)
                    keys = self._message_keys(call, ranks)
                    columns.append(np.stack([keys, call.nbytes * same, ranks, len(calls) * same]))
                    calls.append(call)
        whole = np.concatenate(columns, axis=1)
        keys, nbytes, makers, places = whole[:, np.argsort(whole[0], kind="stable")]
        return _Side(keys, nbytes, makers, places, calls)

    def _check_partners(self, mine: _Side, theirs: _Side, other: str) -> None:
        alone = np.flatnonzero(~np.isin(mine.keys, theirs.keys))
        if len(alone):
            rank, call = mine.described(alone[0])
            ends = divmod(int(mine.keys[alone[0]]) // _CODES, self.job.world)
            raise GraphError(
                f"rank {rank} makes {call}, for which rank {ends[call.op == 'send']} has no "
                f"{other} (tag {call.tag}, number {call.number} in the iteration)."
            )

    def operations_of(self, call: Call, ranks: Ints) -> Ints:
        """Return the operation of this call on each of these ranks."""
        if call.is_pairwise:
            found = np.searchsorted(self._keys, self._message_keys(call, ranks))
            return found.astype(np.int64) + self._first_message
        family = self.layout.family_of(call.group)
        rows = len(self.layout.families[family])
        row: Ints = self.layout.row[family, ranks]
        return self._base[family] + call.number * rows + row

    def graph(self, blocks: list[Block], members: Ints) -> Graph:
        """All together."""
        before, last, call_of, row_of, pair = map(np.concatenate, self._columns)
        return Graph(
            self.job, self.layout, blocks, members, before, last, self.queues, self.calls, call_of, row_of, pair
        )
