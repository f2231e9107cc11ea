"""Python calls that the profiler traced (`with_stack=True`): the exact form of what is sampled otherwise.

Every call of a Python or built-in function is an event; events of a thread nest. A function is a whole call stack, as
in samples: a node of the tree of calls. The tree is built level by level, since there may be millions of events: all
calls of one depth get their nodes at once, from the nodes of their callers and their own frames.

A stack has the moments in which its innermost frame is the innermost one that is open. `nn.Module: …` entries are no
frames, nor are built-in functions: what they take is their caller's, as in sampled stacks (the autograd engine aside).
While the training thread's stack waits in the autograd engine, the calls of the engine's own threads stand below it.
Other threads are never critical; they have totals only.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from eroica.model.pattern import FunctionKey, ThreadRole
from eroica.summarize.activity import Outline
from eroica.summarize.phases import is_apply_frame, is_engine_frame
from eroica.summarize.sampled import ENGINE, HOOK, PLAIN, stack_function
from eroica.summarize.sweep import (
    Durations,
    Functions,
    Layer,
    distinct,
    distinct_codes,
    empty_layer,
    find_interval,
    join_durations,
    nest,
    rows_by_thread,
    stretches,
)
from eroica.trace.chunks import counted
from eroica.trace.stacks import frame_text
from eroica.trace.table import Category, EventTable

ENGINE_CALL = "<built-in method run_backward of "
MOST_FRAMES = 1000
_MOST_STACKS = 100_000
_BELOW_APPLY = 3
_FRAME = re.compile(r"^(.*)\((\d{1,9})\): (.*)$", re.DOTALL)
_AT = re.compile(r" at 0x[0-9a-fA-F]+")
_PYBIND = re.compile(r" of pybind11_\S* object")
_NO_FRAME = "nn.Module: "
_BUILTIN = "<built-in "


class CallTree:
    """Call stacks of one role, as a tree; nodes have small numbers.

    Args:
        functions: Gives numbers to those that are the innermost frame at some time.
        role: Of the threads that ran them.

    Attributes:
        role: The same.
        too_deep: Calls left out because they were too deep.
        is_full: There were too many stacks; calls after that count as their callers'.
    """

    def __init__(self, functions: Functions, role: ThreadRole) -> None:
        self._functions = functions
        self.role = role
        self._frames: dict[str, int] = {}
        self._texts: list[str] = []
        self._nodes: dict[int, int] = {}
        self._parent: list[int] = []
        self._frame: list[int] = []
        self._kind: list[int] = []
        self._keys: dict[int, FunctionKey] = {}
        self._grafts: dict[tuple[int, int], int] = {}
        self.too_deep = 0
        self.is_full = False

    def frame(self, text: str) -> int:
        """Number of a frame."""
        if text not in self._frames:
            self._frames[text] = len(self._texts)
            self._texts.append(text)
        return self._frames[text]

    def node(self, parent: int, frame: int) -> int:
        """The node of a frame called from a node, -1 for the outermost; the caller's own if there are too many."""
        key = (parent + 1 << 32) + frame
        found = self._nodes.get(key)
        if found is None:
            if len(self._parent) >= _MOST_STACKS and parent >= 0:
                self.is_full = True
                return parent
            found = self._nodes[key] = len(self._parent)
            self._parent.append(parent)
            self._frame.append(frame)
            self._kind.append(self._kind_of(parent, self._texts[frame]))
        return found

    def nodes(self, parents: NDArray[np.int64], frames: NDArray[np.int64]) -> NDArray[np.int64]:
        """Nodes of many frames at once. int64, same shape."""
        known = self._nodes.get
        found = [known(key, -1) for key in ((parents + 1 << 32) + frames).tolist()]
        node = np.array(found, dtype=np.int64)
        for place in np.flatnonzero(node < 0).tolist():
            node[place] = self.node(int(parents[place]), int(frames[place]))
        return node

    def _kind_of(self, parent: int, text: str) -> int:
        if is_engine_frame(text) or text.startswith(ENGINE_CALL):
            return ENGINE
        above = self._kind[parent] if parent >= 0 else PLAIN
        if above != PLAIN:
            return HOOK
        return _BELOW_APPLY if is_apply_frame(text) else PLAIN

    def kinds(self) -> NDArray[np.int8]:
        """PLAIN, ENGINE or HOOK of every node, as in samples. int8 [nodes]."""
        kind = np.array(self._kind, dtype=np.int8)
        kind[kind == _BELOW_APPLY] = PLAIN
        return kind

    def stack(self, node: int) -> tuple[str, ...]:
        """Frames of a node, outermost first."""
        frames = []
        while node >= 0:
            frames.append(self._texts[self._frame[node]])
            node = self._parent[node]
        return tuple(reversed(frames))

    def graft(self, above: int, other: CallTree, below: int) -> int:
        """The node of another tree's stack below a node of this one."""
        if below < 0:
            return above
        known = self._grafts.get((above, below))
        if known is None:
            parent = self.graft(above, other, other._parent[below])
            known = self.node(parent, self.frame(other._texts[other._frame[below]]))
            self._grafts[above, below] = known
        return known

    def numbers(self, nodes: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return the function numbers of nodes. int32, same shape."""
        return self._functions.numbers(nodes, self._key_of)

    def _key_of(self, node: int) -> FunctionKey:
        if node not in self._keys:
            self._keys[node] = stack_function(self.stack(node), self.role)
        return self._keys[node]


class CallTrees(NamedTuple):
    """Trees of the three kinds of threads."""

    training: CallTree
    autograd: CallTree
    background: CallTree

    def losses(self) -> list[str]:
        """One sentence each about what was left out."""
        deep = sum(tree.too_deep for tree in self)
        told = []
        if deep:
            told.append(f"left out: {counted(deep, 'Python call')} below more than {MOST_FRAMES:,} others")
        if any(tree.is_full for tree in self):
            told.append(
                f"there are more than {_MOST_STACKS:,} different Python stacks; further calls count as callers'"
            )
        return told


def new_trees(functions: Functions) -> CallTrees:
    """Empty trees."""
    return CallTrees(*(CallTree(functions, role) for role in ("training", "autograd", "background")))


def call_frame(name: str) -> str:
    """A frame as it stands in keys from the name of a Python event; empty for what is no frame of its own."""
    if name.startswith(_NO_FRAME):
        return ""
    match = _FRAME.match(name)
    if match is None:
        if name.startswith(_BUILTIN) and not name.startswith(ENGINE_CALL):
            return ""
        return _PYBIND.sub(" of pybind11 object", _AT.sub("", name[:500]))
    file, line, function = match[1][:1000], match[2], match[3][:500]
    if file.startswith(("/", "<", "\\")) or file[1:2] == ":":
        return frame_text(function, file, int(line))
    return (
        f"{_AT.sub('', function)} ({file}:{line})"  # the profiler has cut off what is before torch/, the project, ...
    )


class Calls(NamedTuple):
    """Python of the training thread, with that of the engine's threads below it.

    Attributes:
        hooks: Python below the engine or inside a user's function of it; comes before operators that wrap others.
        others: All other Python.
        durations: Executions on all threads: times in which they were the innermost call.
    """

    hooks: tuple[Layer, ...]
    others: Layer
    durations: Durations


class _Thread(NamedTuple):
    """One thread's calls: moments of the innermost one as (start, end, node, row), and own time of each row."""

    leaves: Layer
    node_N: NDArray[np.int64]
    row_N: NDArray[np.int64]
    own_N: NDArray[np.int64]


def read_calls(events: EventTable, outline: Outline, window: tuple[int, int], trees: CallTrees) -> Calls:
    """Python calls of a trace.

    Args:
        events: The trace.
        outline: Of it.
        window: Start and end.
        trees: Take the stacks found.
    """
    rows = np.flatnonzero(events.category == Category.PYTHON)
    nothing = Calls((), empty_layer(), join_durations(()))
    if not len(rows):
        return nothing
    texts = _frames(events, rows)
    thread = events.thread[rows]
    is_training, is_engine = thread == outline.training_thread, np.isin(thread, outline.autograd_threads)
    others = _threads_apart(events, rows[~is_training & ~is_engine], texts, window, trees.background)
    parts = [_durations(one, trees.background) for one in others]
    if not is_training.any():
        return nothing._replace(durations=join_durations(parts))
    training = _read(events, rows[is_training], _frames_of(trees.training, texts), window, trees.training)
    autograd = _threads_apart(events, rows[is_engine], texts, window, trees.autograd)
    return _layers(training, autograd, trees, parts)


def _threads_apart(
    events: EventTable, rows: NDArray[np.int64], texts: Sequence[str], window: tuple[int, int], tree: CallTree
) -> list[_Thread]:
    frames = _frames_of(tree, texts)
    return [_read(events, mine, frames, window, tree) for _, mine in rows_by_thread(events, rows)]


def _frames(events: EventTable, rows: NDArray[np.int64]) -> list[str]:
    """Frame of each string of the table that names a call; empty for others."""
    used = np.zeros(len(events.strings), dtype=np.bool_)
    used[events.name[rows]] = True
    return [call_frame(name) if use else "" for name, use in zip(events.strings, used.tolist(), strict=True)]


def _frames_of(tree: CallTree, texts: Sequence[str]) -> NDArray[np.int64]:
    """Number of the frame of each string in a tree, -1 for what is none; once for all its threads."""
    return np.array([tree.frame(text) if text else -1 for text in texts], dtype=np.int64)


def _read(
    events: EventTable,
    rows: NDArray[np.int64],
    frames: NDArray[np.int64],
    window: tuple[int, int],
    tree: CallTree,
) -> _Thread:
    """Read calls.

    Args:
        events: The trace.
        rows: Calls of one thread, in order.
        frames: Number of the frame of each string.
        window: Start and end.
        tree: Takes the stacks found.
    """
    frame = frames[events.name[rows]]
    keep = (frame >= 0) & (events.start_ns[rows] < window[1]) & (events.end_ns[rows] > window[0])
    keep &= events.start_ns[rows] < events.end_ns[rows]
    rows, frame = rows[keep], frame[keep]
    start, end = events.start_ns[rows], events.end_ns[rows]
    nested = nest(start, end)
    if int(nested.depth_N.max(initial=0)) > MOST_FRAMES:
        shallow = nested.depth_N <= MOST_FRAMES
        tree.too_deep += len(shallow) - int(shallow.sum())
        rows, frame = rows[shallow], frame[shallow]
        nested = nest(start[shallow], end[shallow])
    node = _nodes(tree, nested.depth_N, nested.parent_N, frame)
    low, high, leaf = nested.leaves()
    leaves = Layer(low, high, node[leaf].astype(np.int32), leaf.astype(np.int32)).within(*window)
    length = (leaves.end - leaves.start).astype(np.float64)
    own = np.bincount(leaves.execution, weights=length, minlength=len(rows)).astype(np.int64)
    return _Thread(leaves, node, rows, own)


def _nodes(
    tree: CallTree, depth_N: NDArray[np.int32], parent_N: NDArray[np.int32], frame_N: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Node of each call, level by level."""
    node = np.empty(len(depth_N), dtype=np.int64)
    order = np.argsort(depth_N.astype(np.int16), kind="stable")
    bounds = np.searchsorted(depth_N[order], np.arange(1, int(depth_N.max(initial=0)) + 2))
    width = int(frame_N.max(initial=0)) + 1
    for low, high in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        level = order[low:high]
        above = np.where(parent_N[level] >= 0, node[parent_N[level]], -1)
        codes, inverse = distinct_codes((above + 1) * width + frame_N[level])
        node[level] = tree.nodes(codes // width - 1, codes % width)[inverse]
    return node


def _durations(thread: _Thread, tree: CallTree) -> Durations:
    own = thread.own_N > 0
    return Durations(tree.numbers(thread.node_N[own]), thread.own_N[own], thread.row_N[own].astype(np.int32))


def _layers(training: _Thread, autograd: list[_Thread], trees: CallTrees, parts: list[Durations]) -> Calls:
    tree = trees.training
    kind = tree.kinds()
    leaves = training.leaves
    waits = leaves.where(kind[leaves.function] == ENGINE)
    hooks = []
    for thread in autograd:
        below = _below(waits, thread.leaves, trees)
        hooks.append(stretches(below.start, below.end, below.function))
        length = (below.end - below.start).astype(np.float64)
        parts.append(_grafted(below, length, thread))
        around = find_interval(below.start, waits.start, waits.end)
        lost = np.bincount(waits.execution[around], weights=length, minlength=len(training.own_N))
        training.own_N[:] = np.maximum(training.own_N - lost.astype(np.int64), 0)
    parts.append(_durations(training, tree))
    numbered = stretches(leaves.start, leaves.end, tree.numbers(leaves.function.astype(np.int64)))
    is_hook = kind[leaves.function] == HOOK
    return Calls((*hooks, numbered.where(is_hook)), numbered.where(~is_hook), join_durations(parts))


def _grafted(below: Layer, length: NDArray[np.float64], thread: _Thread) -> Durations:
    """Divide own times of an engine's thread among the stacks around them; one call may have several stacks."""
    width = int(below.function.max(initial=0)) + 1
    codes, inverse = np.unique(below.execution.astype(np.int64) * width + below.function, return_inverse=True)
    own = np.bincount(inverse, weights=length, minlength=len(codes)).astype(np.int64)
    return Durations((codes % width).astype(np.int32), own, thread.row_N[codes // width].astype(np.int32))


def _below(waits: Layer, leaves: Layer, trees: CallTrees) -> Layer:
    """Calls of an engine's thread while the training thread waits in the engine, under their joined stacks."""
    edges = distinct(np.concatenate((waits.start, waits.end, leaves.start, leaves.end)))
    above = find_interval(edges[:-1], waits.start, waits.end)
    below = find_interval(edges[:-1], leaves.start, leaves.end)
    both = (above >= 0) & (below >= 0)
    upper, lower = waits.function[above[both]].astype(np.int64), leaves.function[below[both]].astype(np.int64)
    width = int(lower.max(initial=0)) + 1
    codes, inverse = np.unique(upper * width + lower, return_inverse=True)
    nodes = [trees.training.graft(code // width, trees.autograd, code % width) for code in codes.tolist()]
    numbers = trees.training.numbers(np.array(nodes, dtype=np.int64))
    return Layer(edges[:-1][both], edges[1:][both], numbers[inverse], leaves.execution[below[both]])
