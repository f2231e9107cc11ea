"""What the gateway reads of requests and answers: identifiers, token counts, texts; and clients that leave."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import zlib
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec
from starlette.requests import ClientDisconnect
from starlette.types import Receive

from pythia.errors import Refused
from pythia.records import BROKEN, Identifiers

#: Member of the body that holds the identifiers.
MEMBER = "app_metadata"
#: The header of each identifier.
HEADERS = {"workflow_type_id": b"x-workflow-type-id", "workflow_id": b"x-workflow-id", "agent_id": b"x-agent-id"}
FINAL_HEADER = b"x-workflow-final"
T = TypeVar("T")


def decoded(raw: bytes | msgspec.Raw, kind: type[T]) -> T | None:
    """Return JSON as a kind of object; None if it is missing or no such object."""
    with contextlib.suppress(*BROKEN):
        return msgspec.json.decode(raw, type=kind)
    return None


def find(fields: Mapping[str, msgspec.Raw], headers: Mapping[bytes, bytes]) -> Identifiers | None:
    """Return the identifiers of a request; None if it has none.

    Args:
        fields: Members of its body.
        headers: Its headers, names in lower case.

    Raises:
        Refused: Some identifiers are given, but not all of them, or one cannot be used.
    """
    if MEMBER in fields:
        metadata = decoded(fields[MEMBER], dict[str, Any]) or {}  # another application may have a member of this name
        given = {name: value for name, value in metadata.items() if value is not None}
    else:
        given = {name: headers[h].decode("utf-8", "replace") for name, h in HEADERS.items() if h in headers}
        given["final"] = headers.get(FINAL_HEADER, b"").lower() in (b"1", b"true")
    if not given.keys() & HEADERS.keys():
        return None
    try:
        return msgspec.convert(given, Identifiers)
    except msgspec.ValidationError as error:
        raise Refused(
            f"identifiers: {error}; give workflow_type_id, workflow_id and agent_id, 1 to 128 printable characters each"
        ) from error


def rewrite(fields: Mapping[str, msgspec.Raw], remove: tuple[str, ...], add: Mapping[str, object]) -> bytes:
    """Return the body without some members and with others at its end; all others keep their bytes and order."""
    kept = {name: raw for name, raw in fields.items() if name not in remove}
    for name, value in add.items():
        kept[name] = msgspec.Raw(msgspec.json.encode(value))
    return msgspec.json.encode(kept)


#: Bytes of an answer that are read for its token counts; of longer streams, events are counted instead.
LOOKED_AT = 1 << 20
#: Characters of a token until an engine's counts tell more.
CHARS = 4.0


class Counts(NamedTuple):
    """Token counts of an answer; `prompt` is 0 if the engine did not report it."""

    prompt: int
    output: int
    cached: int
    text: str


class Answer:
    """Keeps the beginning of an answer while it passes."""

    def __init__(self, status: int, streamed: bool, encoding: str) -> None:
        self.status, self.streamed, self.encoding = status, streamed, encoding
        self.kept = bytearray()
        self.events = self.size = 0

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes."""
        self.size += len(chunk)
        if self.streamed:
            self.events += chunk.count(b"data:")
        if len(self.kept) < LOOKED_AT:
            self.kept += chunk[: LOOKED_AT - len(self.kept)]

    def read(self) -> Counts:
        """Return the token counts, as the engine reports them or estimated, and the text."""
        usage: dict[str, Any] = {}
        texts: list[str] = []
        for event in self._events():
            found = event.get("usage") or (event.get("response") or {}).get("usage")
            usage = found if isinstance(found, dict) else usage
            texts.append(_text(event))
        text = "".join(texts)
        output = usage.get("completion_tokens", usage.get("output_tokens"))
        if not isinstance(output, int):
            pieces = sum(map(bool, texts)) if self.size <= LOOKED_AT else self.events
            output = pieces if self.streamed else round(len(text or self.kept) / CHARS)
        prompt = usage.get("prompt_tokens", usage.get("input_tokens"))
        details = usage.get("prompt_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, dict) else 0
        known = [n if isinstance(n, int) else 0 for n in (prompt, output, cached)]
        return Counts(known[0], max(0, known[1]), known[2], text)

    def _events(self) -> Iterator[dict[str, Any]]:
        data = bytes(self.kept)
        if self.encoding in ("gzip", "deflate"):
            with contextlib.suppress(zlib.error):
                data = zlib.decompressobj(zlib.MAX_WBITS | 32).decompress(data, LOOKED_AT * 8)
        lines = data.split(b"\n") if self.streamed else [b"data:" + data]
        for line in lines:
            event = decoded(line[5:], dict[str, Any]) if line.startswith(b"data:") else None
            if event is not None:
                yield event


def _text(event: Mapping[str, Any]) -> str:
    """Return the text of an answer or of one of its events."""
    if isinstance(event.get("delta"), str):
        return str(event["delta"])
    found = []
    for choice in event.get("choices") or ():
        part = (choice.get("delta") or choice.get("message") or choice) if isinstance(choice, dict) else None
        if isinstance(part, dict):
            text = part.get("content") or part.get("text") or part.get("reasoning_content") or part.get("tool_calls")
            found.append(text if isinstance(text, str) else msgspec.json.encode(text).decode() if text else "")
    return "".join(found)


def prompt_texts(fields: Mapping[str, msgspec.Raw]) -> list[str]:
    """Return the texts of a prompt."""
    texts: list[str] = []

    def walk(value: object) -> None:
        if isinstance(value, str):
            texts.append(value)
        elif isinstance(value, list):
            for item in value:
                walk(item)
        elif isinstance(value, dict):
            walk(value.get("content", value.get("text")))

    for name in ("instructions", "messages", "prompt", "input"):
        with contextlib.suppress(RecursionError):
            walk(decoded(fields.get(name, b""), object))
    return texts


def chain(body: bytes) -> tuple[int, ...]:
    """Return hashes of a body's prefixes, one per 512 bytes."""
    digest = hashlib.blake2b(digest_size=8)
    found = []
    for at in range(0, min(len(body), 512 * 256) - 511, 512):
        digest.update(body[at : at + 512])
        found.append(int.from_bytes(digest.digest(), "big"))
    return tuple(found)


@contextlib.asynccontextmanager
async def while_client_stays(receive: Receive) -> AsyncIterator[None]:
    """Cancel what runs inside and raise `ClientDisconnect` once the client has gone.

    Args:
        receive: The ASGI channel of a request whose body has been read.
    """
    stay = asyncio.timeout(None)

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        stay.reschedule(0)  # a time that has passed: it ends at once

    watching = asyncio.create_task(watch())
    try:
        async with stay:
            yield
    except TimeoutError:
        if stay.expired():
            raise ClientDisconnect from None
        raise
    finally:
        watching.cancel()
