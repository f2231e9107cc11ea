"""Reads one streamed answer of an OpenAI-compatible server: bytes in, times of tokens out. It does no I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Chunk).decode


@dataclass
class AnswerStream:
    """The state of one streamed answer.

    A chunk counts as text if its content or reasoning is not empty; role chunks and usage chunks do not. A stream that
    holds an error, or ends without a finish reason or end mark, failed whatever its HTTP status was.

    """

    first_s: float | None = None  #: Time of the first text
    last_s: float | None = None  #: Time of the last text
    gaps_s: list[float] = field(default_factory=list)  #: Seconds between chunks of text
    prompt_tokens: int | None = None  #: As the server counted them, None if it did not say
    completion_tokens: int | None = None
    error: str = ""  #: Why the request failed, "" if it did not
    complete: bool = False
    _rest: bytes = b""

    @property
    def chunks(self) -> int:
        """Return the number of chunks with text."""
        return 0 if self.first_s is None else len(self.gaps_s) + 1

    def feed(self, data: bytes, now_s: float) -> None:
        """Take bytes that arrived at a time."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._event(line[5:].strip(), now_s)

    def close(self) -> None:
        """Take the end of the connection."""
        if self._rest.startswith(b"data:"):
            self._event(self._rest[5:].strip(), self.last_s or 0.0)
        if not self.error and not self.complete:
            self.error = "the stream ended without its end mark"
        elif not self.error and self.first_s is None:
            self.error = "the answer has no text"

    def _event(self, data: bytes, now_s: float) -> None:
        if data == b"[DONE]":
            self.complete = True
            return
        try:
            chunk = _decode(data)
        except msgspec.DecodeError as error:
            self.error = self.error or f"a chunk is not understood ({error})"
            return
        if chunk.error is not None:
            self.error = self.error or f"error in the stream: {str(chunk.error)[:200]}"
        if chunk.usage is not None and chunk.usage.completion_tokens is not None:
            self.prompt_tokens, self.completion_tokens = chunk.usage.prompt_tokens, chunk.usage.completion_tokens
        for choice in chunk.choices:
            delta = choice.delta
            if choice.text or (delta is not None and (delta.content or delta.reasoning_content or delta.reasoning)):
                if self.last_s is None:
                    self.first_s = now_s
                else:
                    self.gaps_s.append(now_s - self.last_s)
                self.last_s = now_s
            self.complete |= choice.finish_reason is not None
