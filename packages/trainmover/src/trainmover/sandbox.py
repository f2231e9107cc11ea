"""The shadow iteration: collectives are recorded once for each role and replayed in a joiner.

In a job's first iterations each member records the outputs of its collectives. Members with the same sequence of
collectives (names, shapes, dtypes, groups) have the same role; one recording of each role is kept. A joiner runs the
job's script from its beginning against the recording of its role, alone, so imports, allocation and first-step costs
delay nobody. Barriers and sends have no outputs and are skipped.

Source:
    TrainMover, section 4. Deviation: roles follow from the recordings; traffic inside one machine is replayed too.
"""

from __future__ import annotations

import hashlib
import io
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from trainmover.errors import MoveError


@dataclass
class Note:
    """One recorded collective: its name and its outputs, which are None until they arrive."""

    name: str
    outputs: list[torch.Tensor] | None = None


@dataclass
class Recording:
    """The recorded collectives of one role, by group number and in order of their calls."""

    notes: dict[int, list[Note]] = field(default_factory=dict)

    def reserve(self, ordinal: int, name: str) -> Note:
        """Reserve a place in the order of calls for outputs that come later."""
        note = Note(name)
        self.notes.setdefault(ordinal, []).append(note)
        return note

    def signature(self) -> str:
        """Return a digest that is equal for members with the same role."""
        digest = hashlib.sha256()
        for ordinal in sorted(self.notes):
            for note in self.notes[ordinal]:
                shapes = [(tuple(one.shape), str(one.dtype)) for one in note.outputs or () if one.dtype != torch.uint8]
                digest.update(repr((ordinal, note.name, shapes)).encode())
        return digest.hexdigest()[:16]

    def to_bytes(self) -> bytes:
        """Return the recording as bytes: tensors and plain values only."""
        buffer = io.BytesIO()
        plain = {ordinal: [(note.name, note.outputs or []) for note in notes] for ordinal, notes in self.notes.items()}
        torch.save(plain, buffer)
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, content: bytes) -> Recording:
        """Read the output of `to_bytes`."""
        plain: dict[int, list[tuple[str, list[torch.Tensor]]]] = torch.load(io.BytesIO(content), weights_only=True)
        return cls({ordinal: [Note(name, outputs) for name, outputs in notes] for ordinal, notes in plain.items()})


class Replay:
    """Answers a joiner's collectives from the recording of its role.

    Args:
        recording: The role's own.
    """

    def __init__(self, recording: Recording) -> None:
        self._queues: dict[tuple[int, str], deque[Note]] = {}
        for ordinal, notes in recording.notes.items():
            for note in notes:
                self._queues.setdefault((ordinal, note.name), deque()).append(note)
        self._last: dict[tuple[int, str], Note] = {}

    def answer(self, ordinal: int, name: str, outputs: Sequence[torch.Tensor]) -> None:
        """Fill the outputs from the recording; beyond its end, with the last outputs of the same collective.

        Raises:
            MoveError: The script calls a collective that its role did not have when it was recorded.
        """
        if name in ("barrier", "send"):
            return
        queue = self._queues.get((ordinal, name))
        note = queue.popleft() if queue else self._last.get((ordinal, name))
        if note is None or note.outputs is None:
            raise MoveError(
                f"the shadow iteration calls {name} in group {ordinal}, which is not in the recording: "
                "the joiner runs another script, or another role, than the member that was recorded"
            )
        self._last[ordinal, name] = note
        for output, recorded in zip(outputs, note.outputs, strict=False):
            _copy(output, recorded)


def _copy(output: torch.Tensor, recorded: torch.Tensor) -> None:
    target: Any = output.detach()
    if target.shape == recorded.shape:
        target.copy_(recorded)
    else:  # a pickled object of another length: as much as fits
        n_same = min(target.numel(), recorded.numel())
        target.view(-1)[:n_same].copy_(recorded.reshape(-1)[:n_same])
