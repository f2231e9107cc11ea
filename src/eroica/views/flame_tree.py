"""Stacks of two sides as one tree: the same frame of both is one node with two times."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from eroica.report.words import clean

#: Deeper frames count to the one at this depth.
_MOST_DEPTH = 60
#: Letters of a frame that the page keeps.
_LONGEST_NAME = 160


@dataclass
class Frame:
    """One frame below its callers.

    Attributes:
        name: "function (file.py:line)", not clean yet.
        own_ms: Milliseconds per iteration on the workers in question, frames below included.
        peers_ms: On their peers.
        below: Frames that it calls, by name.
    """

    name: str
    own_ms: float = 0.0
    peers_ms: float = 0.0
    below: dict[str, Frame] = field(default_factory=dict)

    @property
    def children(self) -> list[Frame]:
        """Frames that it calls, the longest on either side first."""
        return sorted(self.below.values(), key=lambda one: (-max(one.own_ms, one.peers_ms), one.name))

    @property
    def short(self) -> str:
        """The function without its file."""
        return self.name.split(" (")[0]

    @property
    def height(self) -> int:
        """Levels below it."""
        return max((1 + child.height for child in self.below.values()), default=0)

    def of(self, side: str) -> float:
        """Its time on one side, "own" or "peers"."""
        return self.own_ms if side == "own" else self.peers_ms

    def leaves(self, callers: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Frame]]:
        """Frames that call nothing, with the way to them."""
        for child in self.children:
            path = (*callers, child.short)
            if child.below:
                yield from child.leaves(path)
            else:
                yield path, child

    def packed(self) -> list[object]:
        """Name, both times and what is below: as the script wants it."""
        times = round(self.own_ms, 4), round(self.peers_ms, 4)
        return [clean(self.name, _LONGEST_NAME), *times, [child.packed() for child in self.children]]


def build_tree(stacks: Iterable[tuple[tuple[str, ...], float, float]]) -> Frame | None:
    """All stacks below one root without a name; None where there is no time in them.

    Args:
        stacks: Frames from the outermost to the leaf, milliseconds on the workers in question and on their peers.
    """
    root = Frame("all")
    for stack, own_ms, peers_ms in stacks:
        at = root
        at.own_ms += own_ms
        at.peers_ms += peers_ms
        for name in stack[:_MOST_DEPTH]:
            at = at.below.setdefault(name, Frame(name))
            at.own_ms += own_ms
            at.peers_ms += peers_ms
    return root if max(root.own_ms, root.peers_ms) > 0 else None
