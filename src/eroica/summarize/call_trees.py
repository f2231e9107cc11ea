"""Call stacks of traced Python as trees: small numbers for stacks, kept once, however often they occur."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from eroica.model.pattern import FunctionKey, ThreadRole
from eroica.summarize.codes import distinct_codes
from eroica.summarize.functions import Functions
from eroica.summarize.phases import is_apply_frame, is_engine_frame
from eroica.summarize.sampled import ENGINE, HOOK, PLAIN, stack_function
from eroica.trace.events import counted

ENGINE_CALL = "<built-in method run_backward of "
MOST_FRAMES = 1000
_MOST_STACKS = 100_000
_BELOW_APPLY = 3


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
        self._numbers: dict[int, int] = {}
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
        """Return the function numbers of nodes, and reserve missing ones. int32, same shape."""
        kinds, inverse = distinct_codes(nodes)
        found = []
        for node in kinds.tolist():
            if node not in self._numbers:
                self._numbers[node] = self._functions.reserve()
            found.append(self._numbers[node])
        return np.array(found, dtype=np.int32)[inverse] if found else np.empty(0, dtype=np.int32)

    def keys(self, wanted: set[int]) -> dict[int, FunctionKey]:
        """Identities of those of the function numbers that are of this tree."""
        return {
            number: stack_function(self.stack(node), self.role)
            for node, number in self._numbers.items()
            if number in wanted
        }


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
