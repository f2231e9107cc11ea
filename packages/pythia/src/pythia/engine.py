"""A thin OpenAI-compatible server around transformers' continuous batching, with priorities and hints."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from pythia import continuous
from pythia.bodies import while_client_stays
from pythia.errors import EngineError

try:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
except ImportError as error:
    raise EngineError("the engine needs torch and transformers: pip install 'pythia[engine]'") from error

#: Priority of a predicted prefix: behind every request.
LAST = 1 << 30


def make_model(folder: Path, hidden: int = 128, layers: int = 4, seed: int = 0) -> Path:
    """Write a model of random weights, one token per ASCII character and no end token, and return its folder.

    Its compute, cache and batching are real; lengths are those that a request asks for.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    characters = ["\n", *(chr(c) for c in range(32, 127))]
    vocabulary = {"<unk>": 0, "<pad>": 1} | {c: i + 2 for i, c in enumerate(characters)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", pad_token="<pad>")
    fast.chat_template = "{% for m in messages %}{{ m['content'] }}\n{% endfor %}"
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(vocabulary), hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=16_384, bos_token_id=None,
        eos_token_id=None, pad_token_id=1,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        model.lm_head.weight[:3] = 0  # special tokens and line ends are never the likeliest
    model.generation_config.eos_token_id = None
    model.save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder


class Server:
    """One engine and its HTTP endpoints."""

    def __init__(self, model: str, *, slots: int, kv_tokens: int, batch_tokens: int = 256) -> None:
        torch.set_num_threads(1)  # several engines share a host
        self.tokenizer = AutoTokenizer.from_pretrained(model)
        self.model = AutoModelForCausalLM.from_pretrained(model)
        self.name = Path(model).name
        self.kv_tokens = kv_tokens
        ends = self.model.generation_config.eos_token_id
        self.ends = ends if isinstance(ends, list) else [ends] if isinstance(ends, int) else -1
        self.board = continuous.Board()
        self.manager = continuous.manager(
            self.model, self.board, slots=slots, kv_tokens=kv_tokens, batch_tokens=batch_tokens
        )
        self.prefetching: set[str] = set()
        self.running = 0
        names = ("requests", "prompt_tokens", "cached_tokens", "output_tokens", "prefetched_tokens", "cancelled")
        self.counts = dict.fromkeys(names, 0)

    async def generate(
        self, tokens: list[int], most: int, priority: int, role: str, group: str
    ) -> AsyncGenerator[list[int]]:
        """Yield all output tokens so far, each time one is added. Leaving the loop cancels the request."""
        request = uuid.uuid4().hex
        results: asyncio.Queue[Any] = asyncio.Queue()
        self.board.arrive(request, tokens, priority, role, group)
        self.manager.register_result_handler(request, results.put_nowait)
        for other in list(self.prefetching):
            self.manager.cancel_request(other)
        self.manager.add_request(tokens, request, max_new_tokens=most, streaming=True, eos_token_id=self.ends)
        self.running += 1
        finished = False
        output = 0
        try:
            while not finished:
                result = await results.get()
                finished = result.is_finished()
                if result.error:
                    raise RuntimeError(result.error)
                output = len(result.generated_tokens)
                yield list(result.generated_tokens)
        finally:
            self.running -= 1
            if not finished:
                self.counts["cancelled"] += 1
                self.manager.cancel_request(request)
                with self.manager.output_router._lock:
                    self.manager.output_router.result_handlers.pop(request, None)
            self.counts["requests"] += 1
            self.counts["prompt_tokens"] += len(tokens)
            self.counts["output_tokens"] += output
            self.counts["cached_tokens"] += self.board.hits.pop(request, 0)

    async def chat(self, request: Request) -> Response:
        """Answer POST /v1/chat/completions."""
        try:
            asked = json.loads(await request.body())
            text = self.tokenizer.apply_chat_template(asked["messages"], tokenize=False)
            tokens = self.tokenizer.encode(text, add_special_tokens=False)
            most = int(asked.get("max_completion_tokens") or asked.get("max_tokens") or 16)
            extra = asked.get("pythia") or {}
            hint = int(asked.get("priority") or 0), str(extra.get("role", "")), str(extra.get("group", ""))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return _error(400, f"malformed request ({type(error).__name__}: {error})")
        limit = int(self.kv_tokens * 0.9)
        if not tokens or most < 1 or len(tokens) + most > limit:
            return _error(400, f"{len(tokens)} prompt and {most} output tokens; at most {limit} in all")
        outputs = self.generate(tokens, most, *hint)
        if asked.get("stream"):
            usage = bool((asked.get("stream_options") or {}).get("include_usage"))
            return StreamingResponse(self._events(outputs, usage, len(tokens)), media_type="text/event-stream")
        last: list[int] = []
        try:
            async with while_client_stays(request.receive), contextlib.aclosing(outputs):
                async for tokens_so_far in outputs:
                    last = tokens_so_far
        except RuntimeError as error:
            return _error(500, str(error))
        except ClientDisconnect:
            return Response(status_code=499)  # nobody reads it
        message = {"role": "assistant", "content": self.tokenizer.decode(last)}
        body = self._frame("chat.completion", {"message": message, "finish_reason": "length"})
        return JSONResponse({**body, "usage": _usage(len(tokens), len(last))})

    def _frame(self, kind: str, choice: dict[str, Any]) -> dict[str, Any]:
        head = {"id": uuid.uuid4().hex, "object": kind, "created": int(time.time()), "model": self.name}
        return {**head, "choices": [{"index": 0, **choice}]}

    async def _events(self, outputs: AsyncGenerator[list[int]], usage: bool, prompt: int) -> AsyncIterator[bytes]:
        kind, said, count = "chat.completion.chunk", "", 0
        async with contextlib.aclosing(outputs):
            try:
                async for tokens in outputs:
                    text = self.tokenizer.decode(tokens)
                    if len(tokens) > count:
                        count = len(tokens)
                        choice = {"delta": {"content": text[len(said) :]}, "finish_reason": None}
                        yield _event(self._frame(kind, choice))
                        said = text
            except RuntimeError as error:
                yield _event({"error": {"message": str(error)}})
                return
        yield _event(self._frame(kind, {"delta": {}, "finish_reason": "length"}))
        if usage:
            yield _event({"choices": [], "usage": _usage(prompt, count)})
        yield b"data: [DONE]\n\n"

    async def hints(self, request: Request) -> Response:
        """Answer POST /pythia/hints: values of prefixes, and a prefix to compute now."""
        try:
            asked = json.loads(await request.body())
            self.board.set_values({str(k): float(v) for k, v in asked.get("values", {}).items()})
            role = str(asked.get("prefetch", ""))
        except (ValueError, TypeError, AttributeError) as error:
            return _error(400, f"malformed hint ({error})")
        tokens = self.board.prefix.get(role)
        idle = not self.running and not self.prefetching
        if tokens and idle:
            asyncio.get_running_loop().create_task(self._prefetch(role, list(tokens)))  # kept by `prefetching`
        return JSONResponse({"prefetch": bool(tokens) and idle})

    async def _prefetch(self, role: str, tokens: list[int]) -> None:
        request = f"prefetch-{uuid.uuid4().hex}"
        self.prefetching.add(request)
        results: asyncio.Queue[Any] = asyncio.Queue()
        self.board.arrive(request, tokens, LAST, "", role)
        self.manager.register_result_handler(request, results.put_nowait)
        self.manager.add_request([*tokens, 2], request, max_new_tokens=1, eos_token_id=-1)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(results.get(), 10)
        self.prefetching.discard(request)
        self.counts["prefetched_tokens"] += len(tokens) - self.board.hits.pop(request, 0)

    async def stats(self, request: Request) -> Response:
        """Answer GET /pythia/stats; ?iterations=1 adds what each iteration took."""
        found: dict[str, Any] = {**self.counts, "preempted": self.board.preempted, "evicted_blocks": self.board.evicted}
        if request.query_params.get("iterations"):
            found["iterations"] = list(self.board.iterations)
        return JSONResponse(found)

    async def models(self, request: Request) -> Response:
        """Answer GET /v1/models and /health."""
        return JSONResponse({"object": "list", "data": [{"id": self.name, "object": "model"}]})

    def app(self) -> Starlette:
        """Return the ASGI application."""

        @contextlib.asynccontextmanager
        async def lifespan(app: Starlette) -> AsyncIterator[None]:
            yield
            await asyncio.to_thread(self.manager.stop, block=True)

        routes = [
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/v1/models", self.models),
            Route("/health", self.models),
            Route("/pythia/hints", self.hints, methods=["POST"]),
            Route("/pythia/stats", self.stats),
        ]
        return Starlette(routes=routes, lifespan=lifespan)


def _event(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"


def _usage(prompt: int, output: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}


def _error(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error": {"message": message, "type": "invalid_request_error", "code": status}}, status)
