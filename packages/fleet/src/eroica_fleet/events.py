"""What pages follow: runs of which something is new, as server-sent events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator

import msgspec
from starlette.responses import Response, StreamingResponse

from eroica_fleet.asking import Ask, problem
from eroica_fleet.queries import changed_since

#: Pause between two looks, and at most so long without a sign of life, seconds.
_LOOK_S, _BEAT_S = 2.0, 5.0
MAX_READERS = 200
#: A page asks again after so long, and shows again that it may, seconds.
_LONGEST_S = 60.0


class Events:
    """Readers of one service."""

    def __init__(self) -> None:
        self._readers = 0
        self._closed = asyncio.Event()

    def close(self) -> None:
        """Let the readers go."""
        self._closed.set()

    async def follow(self, ask: Ask) -> Response:
        """Runs that changed after `since`, milliseconds since 1970, and then as they change."""
        if self._readers >= MAX_READERS:
            return problem(503, f"{MAX_READERS} pages follow already", {"retry-after": "10"})
        since = int(ask.number("since", 1000 * time.time(), 0, 1e15))
        return StreamingResponse(self._news(ask, since), media_type="text/event-stream")

    async def _news(self, ask: Ask, since: int) -> AsyncGenerator[bytes, None]:
        self._readers += 1
        began = said = time.monotonic()
        try:
            yield b"event: hello\ndata: {}\n\n"
            while not self._closed.is_set() and time.monotonic() - began < _LONGEST_S:
                lines = await asyncio.to_thread(changed_since, ask, since)
                if lines:
                    since = max(line.changed for line in lines)
                    said = time.monotonic()
                    yield b"event: runs\ndata: " + msgspec.json.encode(lines) + b"\n\n"
                elif time.monotonic() - said >= _BEAT_S:
                    said = time.monotonic()
                    yield b"event: beat\ndata: {}\n\n"
                try:
                    await asyncio.wait_for(self._closed.wait(), _LOOK_S)
                except asyncio.TimeoutError:  # not the same as TimeoutError before Python 3.11
                    continue
        finally:
            self._readers -= 1
