"""Clients that leave before their answer is complete."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class Disconnected(Exception):  # an event, not an error
    """The client has gone."""


@contextlib.asynccontextmanager
async def while_client_stays(receive: Receive) -> AsyncIterator[None]:
    """Cancel what runs inside and raise `Disconnected` once the client has gone.

    Args:
        receive: The ASGI channel of a request whose body has been read.
    """
    task = asyncio.current_task()
    assert task is not None
    inside, gone = True, False

    async def watch() -> None:
        nonlocal gone
        while (await receive())["type"] != "http.disconnect":
            pass
        if inside:
            gone = True
            task.cancel()

    watching = asyncio.create_task(watch())
    try:
        yield
    except asyncio.CancelledError:
        if not gone:
            raise
        task.uncancel()
        raise Disconnected from None
    finally:
        inside = False
        watching.cancel()
