"""Sources of answers: an OpenAI-compatible endpoint, files, and the references, mutants and alternatives themselves."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import msgspec

from cloudeval.cache import cache_folder
from cloudeval.errors import EndpointError, UsageError


class Answer(msgspec.Struct, frozen=True):
    """An answer of a model and the tokens it took; `note` says why it is empty."""

    text: str
    prompt_tokens: int = 0
    answer_tokens: int = 0
    cached: bool = False
    note: str = ""


@dataclass(frozen=True)
class Endpoint:
    """Settings of an OpenAI-compatible endpoint.

    Args:
        base_url: Up to and without `/chat/completions`.
        model: Name of the model.
        concurrency: Requests at once.
        retries: Further tries after a failed or empty answer.
        prices: US dollars per million prompt tokens and answer tokens.
        options: Further fields of each request, such as temperature.
    """

    base_url: str
    model: str
    concurrency: int = 8
    retries: int = 3
    timeout_s: float = 120.0
    prices: tuple[float, float] = (0.0, 0.0)
    options: dict[str, Any] = field(default_factory=dict)
    cache: bool = True

    def cost(self, answer: Answer) -> float:
        """Return what an answer cost, in dollars; nothing if it came from the cache."""
        if answer.cached:
            return 0.0
        return (answer.prompt_tokens * self.prices[0] + answer.answer_tokens * self.prices[1]) / 1e6


class Client:
    """Asks an endpoint: several requests at once, repeated when they fail, kept on disk per sample."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._slots = asyncio.Semaphore(endpoint.concurrency)
        key = os.environ.get("OPENAI_API_KEY", "")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._http = httpx.AsyncClient(timeout=endpoint.timeout_s, headers=headers, trust_env=False)

    async def __aenter__(self) -> Client:
        """Return the client."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the connections."""
        await self._http.aclose()

    def _kept(self, text: str, sample: int) -> Path:
        identity = [self.endpoint.base_url, self.endpoint.model, self.endpoint.options, text, sample]
        digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
        return cache_folder() / "answers" / digest[:2] / f"{digest}.json"

    async def ask(self, text: str, sample: int = 0) -> Answer:
        """Return the answer to a prompt. Samples with different numbers are asked and kept separately.

        Raises:
            EndpointError: The endpoint refuses the request itself (4xx), or cannot be reached.
        """
        kept = self._kept(text, sample)
        if self.endpoint.cache and kept.exists():
            return msgspec.structs.replace(msgspec.json.decode(kept.read_bytes(), type=Answer), cached=True)
        async with self._slots:
            answer = await self._tries(text, sample)
        if self.endpoint.cache and not answer.note:
            kept.parent.mkdir(parents=True, exist_ok=True)
            partial = kept.with_suffix(f".{os.getpid()}-{id(answer)}")
            partial.write_bytes(msgspec.json.encode(answer))
            partial.replace(kept)
        return answer

    async def _tries(self, text: str, sample: int) -> Answer:
        url, note, unreachable = self.endpoint.base_url, "", None
        body = {"model": self.endpoint.model, "messages": [{"role": "user", "content": text}]}
        body |= ({"seed": sample} if sample else {}) | self.endpoint.options
        for attempt in range(self.endpoint.retries + 1):
            if attempt:
                await asyncio.sleep(min(20.0, 0.2 * 2**attempt))
            try:
                response = await self._http.post(f"{url.rstrip('/')}/chat/completions", json=body)
            except httpx.HTTPError as error:
                unreachable = f"{url} cannot be reached: {type(error).__name__} {error}; check --base-url"
                continue
            unreachable, status = None, response.status_code
            if status in (400, 401, 403, 404, 422):
                hint = "check --base-url, --model and OPENAI_API_KEY"
                raise EndpointError(f"{url} answers {status}: {response.text[:200]}; {hint}")
            if status == 200 and (answer := _read_answer(response)) is not None:
                return answer
            note = "an empty or malformed answer with status 200" if status == 200 else f"status {status}"
        if unreachable:
            raise EndpointError(unreachable)
        return Answer("", note=note)


def _read_answer(response: httpx.Response) -> Answer | None:
    """Return the answer, or None if it is empty or malformed, as some endpoints answer with status 200."""
    try:
        body = response.json()
        content = body["choices"][0]["message"]["content"]
        if isinstance(content, list):
            content = "".join(part["text"] for part in content if "text" in part)
        usage = body.get("usage") or {}
        asked, answered = (int(usage.get(key) or 0) for key in ("prompt_tokens", "completion_tokens"))
        return Answer(content, asked, answered) if content.strip() else None
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return None


def read_files(folder: Path) -> dict[tuple[str, str, int], str]:
    """Return answers from files by (problem, style, sample).

    A folder holds `PROBLEM.yaml`, `PROBLEM.STYLE.yaml` or `PROBLEM.STYLE.SAMPLE.yaml` (`.txt` and `.md`, too; without a style
    an answer counts for all three). A JSON-lines file holds objects with problem, answer, and optionally style and sample.
    """
    if not folder.exists():
        raise UsageError(f"there is no {folder}")
    answers: dict[tuple[str, str, int], str] = {}
    lines = folder.read_text().splitlines() if folder.is_file() else []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                item = json.loads(line)
                answers[item["problem"], item.get("style", ""), int(item.get("sample", 0))] = item["answer"]
            except (ValueError, KeyError, TypeError) as error:
                raise UsageError(f"{folder} line {number}: needs an object with problem and answer") from error
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if path.suffix in (".yaml", ".yml", ".txt", ".md", ".json"):
            problem, style, sample, *_ = [*path.name.removesuffix(path.suffix).split("."), "", ""]
            answers[problem, style, int(sample or 0)] = path.read_text()
    if not answers:
        raise UsageError(f"no answers in {folder}; name them PROBLEM.STYLE.SAMPLE.yaml")
    return answers
