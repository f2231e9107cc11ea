"""Rare call stacks of large jobs, counted with their callers.

Every worker's samples hit some stacks that hardly any other worker's hit. Their number grows with the job (measured:
with the number of workers to the power 0.13 to 0.36). One function for each, on all workers, would be more than memory
holds. So a function in which no worker spends much time is counted as its caller's own time, and the caller likewise,
until the time is enough to be told apart. No time is lost, and no name of a function that a single worker spends much
time in. Outermost functions stay. Some functions are read otherwise than their caller by rules (a hook below the
autograd engine, a read below the user's function). Each is counted as the heaviest function below that caller that is
read alike.

Array suffixes: K keys, N nodes of the tree of callers, R rows, C cells (a node on a worker), G rows after folding.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import chain

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.model.pattern import FunctionKey, WorkerPattern
from eroica.model.rows import NUMBERS, RowTable
from eroica.model.series import decode_series, encode_series
from eroica.summarize.phases import split_frame

Reading = Callable[[tuple[str, ...]], Hashable]
Floats = NDArray[np.float64]
Places = NDArray[np.intp]
#: Functions times workers that are laid side by side: each costs 200 bytes and two microseconds in all rules.
_MOST_CELLS = 6_000_000
#: But no fewer functions than these, and no more.
_FEWEST_FUNCTIONS, _MOST_FUNCTIONS = 250, 20_000
#: Thresholds that are tried, each twice the one before.
_MOST_TRIES = 32
#: A series stays as it is where time added to it is at most this share.
_LITTLE = 0.05
#: Workers whose rows are folded together.
_TOGETHER = 512
#: A function that takes a share of the time on one worker alone counts like one that takes this much of it on all.
_OF_ONE_WORKER = 0.05
#: Time that holds nobody up counts so much.
_BESIDE = 0.25
_BETA_ERROR, _MU, _SIGMA = (NUMBERS.index(name) for name in ("beta_error", "mu", "sigma"))
_LARGEST = [NUMBERS.index(name) for name in ("max_s", "active_iterations")]


def all_alike(stack: tuple[str, ...]) -> Hashable:
    """Reading of a caller that reads nothing in stacks."""
    return None


class _Tree:
    """Callers of all Python functions, a tree for each way in which rules read a stack.

    Attributes:
        parent: Caller of each node; itself for outermost functions. intp [N].
        depth: Frames of each node's stack. intp [N].
        node: Node of each key, -1 for what is never folded. intp [K].
    """

    def __init__(self, keys: Sequence[FunctionKey], reading: Reading) -> None:
        self._keys, self._reading = keys, reading
        ids: dict[tuple[object, str], int] = {}
        parents, depths, nodes = list[int](), list[int](), list[int]()
        self._key_of: dict[int, int] = {}
        for number, key in enumerate(keys):
            at: int = -1
            root = (key.phase, key.thread, reading(key.stack)) if is_foldable(key) else None
            for depth, frame in enumerate(key.stack if is_foldable(key) else (), start=1):
                found = ids.setdefault((at if depth > 1 else root, frame), len(parents))
                if found == len(parents):
                    parents.append(at if depth > 1 else found)
                    depths.append(depth)
                at = found
            nodes.append(at)
            self._key_of.setdefault(at, number)
        self.parent, self.depth, self.node = (np.asarray(each, dtype=np.intp) for each in (parents, depths, nodes))

    def key(self, node: int, of: FunctionKey) -> FunctionKey:
        """The function that a node's time is counted as.

        Args:
            node: The node.
            of: The heaviest function that is counted there: its name is taken where the caller would be read otherwise.
        """
        number = self._key_of.get(node)
        if number is not None:
            return self._keys[number]
        stack = of.stack[: int(self.depth[node])]
        if self._reading(stack) != self._reading(of.stack):
            return of
        return msgspec.structs.replace(of, name=split_frame(stack[-1])[0], stack=stack)


def is_foldable(key: FunctionKey) -> bool:
    """Return whether a function has callers that its time can be counted with."""
    return key.kind == "python" and bool(key.stack)


def number_keys(tables: Sequence[RowTable]) -> tuple[list[FunctionKey], Places]:
    """All functions, each object once, and which of them each row is of. intp [R].

    Patterns share the keys they have in common (`eroica.wire.codec`), so most rows are told apart by what object
    their key is; to hash a call stack for each row takes ten times as long.
    """
    every = [table.keys for table in tables]
    known = dict(zip(map(id, chain.from_iterable(every)), chain.from_iterable(every), strict=True))
    numbers = {key: number for number, key in enumerate(known)}
    number_R = np.fromiter(map(numbers.__getitem__, map(id, chain.from_iterable(every))), dtype=np.intp)
    return list(known.values()), number_R


def fold_rare_stacks(
    patterns: Sequence[WorkerPattern],
    baseline: Sequence[WorkerPattern],
    most: int | None = None,
    reading: Reading = all_alike,
) -> tuple[Sequence[WorkerPattern], Sequence[WorkerPattern], int]:
    """The patterns of a window and of its baseline with no more Python functions than can be laid side by side.

    Args:
        patterns: One per worker.
        baseline: The same of the baseline window; may be empty. A function folded in one is folded in both.
        most: How many functions there may be; None means as many as there is room for.
        reading: What a stack is read as. Only functions read alike are counted together: where their caller is read
            otherwise, as the heaviest of them.

    Returns:
        Both, the very same where there is room for all; and how many functions are counted with their callers.
    """
    workers = max(len(patterns), len(baseline), 1)
    most = min(max(_MOST_CELLS // workers, _FEWEST_FUNCTIONS), _MOST_FUNCTIONS) if most is None else most
    everybody = [*patterns, *baseline]
    if sum(len(pattern.functions) for pattern in everybody) <= most:
        return patterns, baseline, 0
    tables = [RowTable.of(pattern.functions) for pattern in everybody]
    if _are_few(tables, most):
        return patterns, baseline, 0
    keys, number_R = number_keys(tables)
    distinct = {key: place for place, key in enumerate(dict.fromkeys(keys))}
    number_R = np.asarray([distinct[key] for key in keys], dtype=np.intp)[number_R]
    keys = list(distinct)
    tree = _Tree(keys, reading)
    worker_R = np.repeat(np.arange(len(tables)), list(map(len, tables)))
    weight_R = np.concatenate(
        [_weights(table, pattern.duration_s) for table, pattern in zip(tables, everybody, strict=True)]
    )
    final_N = _settled(tree, number_R, worker_R, weight_R, (workers, most))
    folded, target_K = list(keys), np.arange(len(keys))
    weight_K = np.bincount(number_R, weights=weight_R, minlength=len(keys))
    moved = np.flatnonzero((tree.node >= 0) & (final_N[tree.node] != tree.node))
    place_N: dict[int, int] = {}
    for number in moved[np.argsort(-weight_K[moved], kind="stable")].tolist():
        node = int(final_N[tree.node[number]])
        if node not in place_N:
            key = tree.key(node, keys[number])
            place_N[node] = distinct.setdefault(key, len(folded))
            folded += [key] if place_N[node] == len(folded) else []
        target_K[number] = place_N[node]
    ends = np.cumsum([0, *map(len, tables)])
    made: list[WorkerPattern] = []
    for start in range(0, len(everybody), _TOGETHER):
        some = slice(start, start + _TOGETHER)
        first, last = ends[start], ends[min(start + _TOGETHER, len(everybody))]
        made += _folded(everybody[some], tables[some], target_K[number_R[first:last]], folded)
    return made[: len(patterns)], made[len(patterns) :], int((target_K != np.arange(len(keys))).sum())


def _are_few(tables: Sequence[RowTable], most: int) -> bool:
    """Return whether there is room for all functions that could be folded."""
    seen: dict[int, FunctionKey] = {}
    for table in tables:
        seen.update(zip(map(id, table.keys), table.keys, strict=True))
    return len({key for key in seen.values() if is_foldable(key)}) <= most


def _weights(table: RowTable, duration_s: float) -> Floats:
    """Share of the window that each row stands for. float64 [R]."""
    share_R = _weight_of(table.numbers) / max(duration_s, 1e-9)
    return np.asarray(np.clip(np.nan_to_num(share_R), 0.0, 1.0))  # numbers may be anything in a damaged pattern


def _weight_of(numbers: Floats) -> Floats:
    """Weight of each row in seconds. float64 [R]."""
    critical, total, device = (numbers[NUMBERS.index(name)] for name in ("critical_s", "total_s", "device_s"))
    return np.asarray(np.maximum(np.maximum(critical, device), _BESIDE * total))


def _settled(tree: _Tree, number_R: Places, worker_R: Places, weight_R: Floats, room: tuple[int, int]) -> Places:
    """Find the node that the time of each node is counted in: its own, or that of a caller. intp [N].

    Args:
        tree: All callers.
        number_R: Key of each row.
        worker_R: Worker of each row.
        weight_R: See `_weights`.
        room: Workers of a window, and how many functions there may be.
    """
    workers, most = room
    node_R = tree.node[number_R]
    at = np.flatnonzero(node_R >= 0)
    cells = _Cells(node_R[at], worker_R[at], weight_R[at])
    score_N = np.zeros(tree.parent.size)
    score_N[cells.node] = cells.scores(workers)
    ranked = np.sort(score_N[np.unique(tree.node[tree.node >= 0])])[::-1]
    least = max(float(ranked[min(most // 2, ranked.size - 1)]), 1e-6)
    for _ in range(_MOST_TRIES):
        final_N = _moved_up(tree, cells, score_N >= least, least, workers)
        if np.unique(final_N[tree.node[tree.node >= 0]]).size <= most:
            break
        least *= 2
    return final_N


class _Cells:
    """Weights of nodes on workers, each pair once, in order of the nodes."""

    def __init__(self, node: Places, worker: Places, weight: Floats) -> None:
        self._width = int(worker.max(initial=0)) + 1
        cell_C, inverse = np.unique(node * self._width + worker, return_inverse=True)
        self.weight = np.bincount(inverse, weights=weight, minlength=cell_C.size)
        self.node, self.worker = np.divmod(cell_C, self._width)

    def scores(self, workers: int) -> Floats:
        """Score the node of each cell by its mean share and by the largest share of one worker. float64 [C]."""
        if not self.node.size:
            return np.zeros(0)
        firsts = np.flatnonzero(np.diff(self.node, prepend=-1))
        mean, largest = np.add.reduceat(self.weight, firsts) / workers, np.maximum.reduceat(self.weight, firsts)
        return np.repeat(mean + _OF_ONE_WORKER * largest, np.diff(firsts, append=self.node.size))


def _moved_up(tree: _Tree, cells: _Cells, own_N: NDArray[np.bool_], least: float, workers: int) -> Places:
    """Find where nodes end that move to their callers, innermost first, while they score below `least`. intp [N]."""
    moves_N = np.zeros(tree.parent.size, dtype=np.bool_)
    depth_C = np.where(own_N[cells.node], 0, tree.depth[cells.node])  # what is enough by itself stays where it is
    node, worker, weight = (np.zeros(0, each.dtype) for each in (cells.node, cells.worker, cells.weight))
    by_depth = np.argsort(depth_C, kind="stable")
    bounds = np.searchsorted(depth_C[by_depth], np.arange(int(depth_C.max(initial=0)) + 2))
    for depth in range(bounds.size - 2, 1, -1):
        here = by_depth[bounds[depth] : bounds[depth + 1]]
        if not (here.size or node.size):
            continue
        parts = (node, cells.node[here]), (worker, cells.worker[here]), (weight, cells.weight[here])
        level = _Cells(*(np.concatenate(part) for part in parts))
        moving = ~own_N[level.node] & (level.scores(workers) < least)
        moves_N[level.node[moving]] = True
        node, worker, weight = tree.parent[level.node[moving]], level.worker[moving], level.weight[moving]
    final_N = np.arange(moves_N.size)
    for at in np.argsort(tree.depth, kind="stable").tolist():
        if moves_N[at]:
            final_N[at] = final_N[tree.parent[at]]
    return final_N


def _folded(
    patterns: Sequence[WorkerPattern], tables: Sequence[RowTable], target_R: Places, keys: Sequence[FunctionKey]
) -> list[WorkerPattern]:
    """Patterns of some workers with rows of one function added up; rows stay in their order.

    Args:
        patterns: The patterns.
        tables: Their rows.
        target_R: Function that each row is counted with.
        keys: The functions.
    """
    if not target_R.size:
        return list(patterns)
    worker_R = np.repeat(np.arange(len(tables)), list(map(len, tables)))
    _, first_G, inverse = np.unique(worker_R * len(keys) + target_R, return_index=True, return_inverse=True)
    group_R = np.argsort(np.argsort(first_G))[inverse]
    order = np.argsort(group_R, kind="stable")
    starts = np.flatnonzero(np.diff(group_R[order], prepend=-1))
    numbers = np.concatenate([table.numbers for table in tables], axis=1)[:, order]
    resource_R = np.concatenate([table.resource for table in tables])[order]
    resource_G = _resources(numbers, resource_R, group_R[order], starts)
    is_of_it_R = resource_R == np.repeat(resource_G, np.diff(starts, append=order.size))
    added = _added_up(numbers, starts, is_of_it_R)
    key_G = [keys[target] for target in target_R[order[starts]].tolist()]
    head_G = order[starts]
    size_R = np.concatenate([np.diff(table.ends, prepend=0) for table in tables])
    to_add_W = set(worker_R[head_G[_change_series(numbers, size_R[order], starts)]].tolist())
    ends_W = np.searchsorted(worker_R[head_G], np.arange(len(tables)), side="right").tolist()
    first_W = np.searchsorted(worker_R, np.arange(len(tables))).tolist()
    made, begin = list[WorkerPattern](), 0
    for worker, (pattern, table, end) in enumerate(zip(patterns, tables, ends_W, strict=True)):
        series, sizes_G = table.series, size_R[head_G[begin:end]]
        if worker in to_add_W:
            inside = order[starts[begin] : starts[end] if end < starts.size else order.size] - first_W[worker]
            parts = [
                _series(table, rows.tolist(), pattern)
                for rows in np.split(inside, starts[begin + 1 : end] - starts[begin])
            ]
            series, sizes_G = b"".join(parts), np.asarray(list(map(len, parts)), dtype=np.int64)
        rows = RowTable(
            keys=tuple(key_G[begin:end]),
            numbers=added[:, begin:end],
            resources=table.resources,
            resource=resource_G[begin:end],
            series=series,
            ends=np.cumsum(sizes_G),
        )
        made.append(msgspec.structs.replace(pattern, functions=rows))
        begin = end
    return made


def _change_series(numbers: Floats, size_R: NDArray[np.int64], starts: Places) -> NDArray[np.bool_]:
    """Groups whose series is not that of their first row: others have one too, or more time without one. bool [G].

    Args:
        numbers: As in `RowTable`. float64 [N, R].
        size_R: Bytes of each row's series.
        starts: First row of each group. intp [G].
    """
    critical_R, has = numbers[NUMBERS.index("critical_s")], (size_R > 0).astype(np.intp)
    some_G = np.add.reduceat(has, starts)
    unknown_G = np.add.reduceat(np.where(has, 0.0, critical_R), starts)
    is_much_G = unknown_G > _LITTLE * np.add.reduceat(critical_R, starts)
    return np.asarray((some_G > has[starts]) | ((some_G > 0) & is_much_G))


def _resources(numbers: Floats, resource_R: NDArray[np.int32], group_R: Places, starts: Places) -> NDArray[np.int32]:
    """Find the resource of each group: of its heaviest row that was sampled, else of its heaviest. int32 [G]."""
    unsampled_R = numbers[NUMBERS.index("resource_samples")] == 0
    heaviest = np.lexsort((-_weight_of(numbers), unsampled_R, group_R))[starts]
    return resource_R[heaviest]


def _added_up(numbers: Floats, starts: Places, is_of_it_R: NDArray[np.bool_]) -> Floats:
    """Columns of rows in groups, of one row each in the end: what is used is a mean by time, errors add in squares.

    Args:
        numbers: As in `RowTable`. float64 [N, R].
        starts: First row of each group. intp [G].
        is_of_it_R: Rows bounded by the group's resource; those of others say nothing of its use. bool [R].
    """
    added = np.add.reduceat(numbers, starts, axis=1)
    added[_LARGEST] = np.maximum.reduceat(numbers[_LARGEST], starts, axis=1)
    added[_BETA_ERROR] = np.sqrt(np.add.reduceat(numbers[_BETA_ERROR] ** 2, starts))
    of = dict(zip(NUMBERS, numbers, strict=True))
    is_known_R = (of["resource_samples"] > 0) & is_of_it_R
    weight_R = np.where(is_known_R, np.maximum(of["critical_s"], 1e-9 * of["total_s"]), 0.0)
    whole_G = np.add.reduceat(weight_R, starts)
    for column in (_MU, _SIGMA):
        with np.errstate(invalid="ignore", over="ignore"):
            used_G = np.add.reduceat(weight_R * numbers[column], starts)
            added[column] = np.divide(used_G, whole_G, out=numbers[column, starts].copy(), where=whole_G > 0)
    return np.asarray(added)


def _series(table: RowTable, rows: Sequence[int], pattern: WorkerPattern) -> bytes:
    """Critical time by iteration of some rows together; a row without a series of its own has its mean in each."""
    parts = list(map(table.series_of, rows))
    if len(parts) == 1:
        return parts[0]
    if not any(parts):
        return b""
    iterations = max(pattern.last_iteration - pattern.first_iteration, 1)
    known = [decode_series(part, np.float32) for part in parts if part]
    if {series.size for series in known} != {iterations}:
        return b""
    unknown = [at for at, part in zip(rows, parts, strict=True) if not part]
    mean_us = float(table.column("critical_s")[unknown].sum()) * 1e6 / iterations
    return encode_series((np.stack(known).sum(axis=0) + mean_us).astype(np.float32))
