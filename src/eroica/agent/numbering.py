"""Numbers that the collector has given to parts of patterns, so that only these travel."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from eroica.errors import InputError
from eroica.wire.messages import PartsReply, PartsRequest
from eroica.wire.parcels import pack_parts, part_id

#: More parts than a job has on one host.
_MOST_PARTS = 200_000
#: Parts in one message.
_MOST_TOGETHER = 500
Ask = Callable[[PartsRequest], Awaitable["PartsReply | None"]]


class Numbering:
    """Numbers of parts in the collector's present book.

    Args:
        ask: Sends a request to the collector; None if that failed.

    Attributes:
        book: Theirs; 0 before the first.
    """

    def __init__(self, ask: Ask) -> None:
        self.book = 0
        self._ask = ask
        self._numbers: dict[bytes, int] = {}
        self._asking = asyncio.Lock()

    def forget(self) -> None:
        """Ask for all numbers anew: the collector does not know them any more."""
        self.book, self._numbers = 0, {}

    async def numbers(self, parts: Sequence[bytes]) -> list[int] | None:
        """Numbers of these parts, in order; those that the collector wants are handed over first.

        Returns:
            None if the collector could not be asked, or began another book meanwhile.

        Raises:
            InputError: The collector's answer makes no sense.
        """
        ids = [part_id(part) for part in parts]
        async with self._asking:  # one after another: what one pattern asks for, the next one has
            if len(self._numbers) > _MOST_PARTS:
                self.forget()
            unknown = {key: part for key, part in zip(ids, parts, strict=True) if key not in self._numbers}
            if unknown and not await self._learn(unknown):
                return None
            return [self._numbers[key] for key in ids]

    async def _learn(self, unknown: dict[bytes, bytes]) -> bool:
        ids = list(unknown)
        reply = await self._ask(PartsRequest(ids=b"".join(ids)))
        if reply is None:
            return False
        if len(reply.numbers) != len(ids) or not all(0 <= place < len(ids) for place in reply.wanted):
            raise InputError(f"{len(reply.numbers)} numbers for {len(ids)} parts are no answer")
        if self._numbers and reply.book != self.book:
            self.forget()
            return False
        for first in range(0, len(reply.wanted), _MOST_TOGETHER):
            wanted = [unknown[ids[place]] for place in reply.wanted[first : first + _MOST_TOGETHER]]
            if await self._ask(PartsRequest(texts=pack_parts(wanted))) is None:
                return False
        self.book = reply.book
        self._numbers.update(zip(ids, reply.numbers, strict=True))
        return True
