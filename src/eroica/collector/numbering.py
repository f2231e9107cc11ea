"""Parts of patterns that all workers have in common: each asked for once, and called by its number from then on."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from eroica.errors import InputError
from eroica.wire.parcels import ID_BYTES, part_id

#: One part; the longest are process groups whose ranks follow no rule.
MOST_PART_BYTES = 1_000_000
#: All parts of a job. Beyond, another book begins.
MOST_PARTS, MOST_BYTES = 500_000, 128_000_000
#: An agent that was asked for a part hands it over within this time; after that another one is asked.
ANSWER_S = 3.0


class Book:
    """Parts by number.

    Args:
        most_parts: Parts that there is room for.
        most_bytes: Bytes of them.

    Attributes:
        number: Of this book. Numbers of parts from another one say nothing.
    """

    def __init__(self, most_parts: int = MOST_PARTS, most_bytes: int = MOST_BYTES) -> None:
        self._most_parts, self._most_bytes = most_parts, most_bytes
        self._begin()

    def _begin(self) -> None:
        self.number = 1 + secrets.randbits(48)  # no other collector's
        self._numbers: dict[bytes, int] = {}
        self._parts: list[bytes | None] = []
        self._asked: dict[int, float] = {}
        self._bytes = 0

    def look_up(self, now: float, ids: bytes) -> tuple[list[int], list[int]]:
        """Number these parts, and say which of them the agent that asks shall hand over.

        Args:
            now: Seconds.
            ids: Of the parts, one after another.

        Returns:
            Their numbers, and the places of those that nobody was asked for, or did not hand over in time.

        Raises:
            InputError: These are no ids, or too many.
        """
        count, rest = divmod(len(ids), ID_BYTES)
        if rest or count > self._most_parts:
            raise InputError(f"{len(ids)} bytes are no ids of parts")
        asked = [ids[at : at + ID_BYTES] for at in range(0, len(ids), ID_BYTES)]
        if len(self._parts) + sum(one not in self._numbers for one in asked) > self._most_parts:
            self._begin()
        numbers, wanted = [], []
        for place, one in enumerate(asked):
            number = self._numbers.setdefault(one, len(self._parts))
            if number == len(self._parts):
                self._parts.append(None)
            if self._parts[number] is None and now >= self._asked.get(number, now):
                self._asked[number] = now + ANSWER_S
                wanted.append(place)
            numbers.append(number)
        return numbers, wanted

    def enter(self, parts: Sequence[bytes]) -> None:
        """Keep parts that were asked for. Each goes under the id that is computed from it, whatever was meant.

        Raises:
            InputError: One was not asked for, or is too long; those before it are kept.
        """
        for part in parts:
            if len(part) > MOST_PART_BYTES:
                raise InputError(f"a part of {len(part)} bytes; at most {MOST_PART_BYTES} are taken")
            number = self._numbers.get(part_id(part))
            if number is None:
                raise InputError("a part that nobody asked for: its BLAKE2b is none of the ids that were sent")
            if self._parts[number] is not None:
                continue
            if self._bytes + len(part) > self._most_bytes:
                self._begin()
                return
            self._parts[number] = part
            self._bytes += len(part)
            self._asked.pop(number, None)

    def lacks(self, book: int, numbers: Sequence[int]) -> bool:
        """A part of these has not come yet, but may."""
        return book == self.number and any(
            0 <= number < len(self._parts) and self._parts[number] is None for number in numbers
        )

    def parts(self, book: int, numbers: Sequence[int]) -> tuple[bytes, ...] | None:
        """The parts of these numbers; None if one is unknown, or they are from another book."""
        if book != self.number or not all(0 <= number < len(self._parts) for number in numbers):
            return None
        found = tuple(part for part in map(self._parts.__getitem__, numbers) if part is not None)
        return found if len(found) == len(numbers) else None
