"""Prompt templates as salted hashes: which part of a role's prompt is constant, and where the rest comes from.

Texts are cut into lines. A line becomes a salted hash and a length; no text is kept. A prompt's constant part is the
run of lines at its beginning that two runs have in common. A later line is a pointer if an earlier prompt or answer of
the same run had the same line.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import msgspec

from pythia.records import common

Pieces = tuple[tuple[int, int], ...]
#: Lines of one prompt that are hashed at most; bounds memory and time (about 1 µs a line).
MOST_PIECES = 4096
#: Prompts per role over which the constant part and the sources are averaged.
WINDOW = 32


def pieces(texts: Iterable[str], salt: bytes) -> Pieces:
    """Return (hash, characters) of each line of the texts."""
    found: list[tuple[int, int]] = []
    for text in texts:
        for line in text.splitlines():
            if len(found) == MOST_PIECES:
                return tuple(found)
            digest = hashlib.blake2b(line.encode("utf-8", "surrogatepass"), digest_size=7, key=salt).digest()
            found.append((int.from_bytes(digest, "big"), len(line) + 1))
    return tuple(found)


class Template(msgspec.Struct):
    """What is known of one role's prompts.

    Attributes:
        last: The latest prompt and its run, to compare the next one with.
        last_run: That run.
        constant: Characters that are constant, of the latest prompts.
        total: Characters of these prompts.
        sources: Characters by source ("planner.answer", "planner.prompt", "new"), decayed.
    """

    last: Pieces = ()
    last_run: str = ""
    constant: list[int] = msgspec.field(default_factory=list)
    total: list[int] = msgspec.field(default_factory=list)
    sources: dict[str, float] = msgspec.field(default_factory=dict)

    def learn(self, run: str, prompt: Pieces, seen: dict[int, str]) -> None:
        """Add a prompt.

        Args:
            run: The run that it belongs to.
            prompt: Its pieces.
            seen: Sources of the lines of the run's earlier prompts and answers.
        """
        if run == self.last_run:
            return
        if self.last:
            shared = common(self.last, prompt)
            self.constant = [*self.constant, sum(n for _, n in prompt[:shared])][-WINDOW:]
            self.total = [*self.total, sum(n for _, n in prompt)][-WINDOW:]
            for source in self.sources:
                self.sources[source] *= 1 - 1 / WINDOW
            for piece, length in prompt[shared:]:
                source = seen.get(piece, "new")
                self.sources[source] = self.sources.get(source, 0.0) + length
        self.last, self.last_run = prompt[:512], run

    @property
    def constant_share(self) -> float:
        """Share of a prompt's characters that is constant, median of the latest prompts."""
        shares = sorted(c / t for c, t in zip(self.constant, self.total, strict=True) if t)
        return shares[len(shares) // 2] if shares else 0.0

    def describe(self) -> dict[str, float]:
        """Return the share of each source in the part that is not constant."""
        total = sum(self.sources.values())
        return {k: round(v / total, 3) for k, v in sorted(self.sources.items(), key=lambda kv: -kv[1])} if total else {}
