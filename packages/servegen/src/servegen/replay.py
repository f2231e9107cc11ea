"""Replays requests against OpenAI-compatible servers: each is sent at its planned moment, whatever the server does."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import numpy as np
import prometheus_client
import pyarrow as pa
import pyarrow.parquet as pq

from servegen.errors import BadFile, BadRequest, ServerError
from servegen.prompts import PromptMaker, learn_prompts
from servegen.streams import AnswerStream
from servegen.workload import Slo

#: Version of the JSON that a replay writes.
SCHEMA = "servegen.replay/1"
QUANTILES = (0.5, 0.9, 0.95, 0.99)
#: Seconds between two looks at the event loop's own lateness.
LAG_PERIOD_S = 0.02
#: The sender is called the limit if the 99th percentile of its lateness, or of its event loop's, exceeds this.
LATE_S = 0.01
#: Seconds from the start of a replay to its first moment, for which connections are prepared.
LEAD_S = 0.2


class Record(msgspec.Struct, frozen=True):
    """One request. Times are seconds from the replay's start; None if the moment never came.

    Attributes:
        client: Its client.
        url: Server that it was sent to.
        planned_s: When it was to be sent.
        sent_s: When it was sent.
        first_s: When the first text arrived.
        last_s: When the last text arrived.
        chunks: Chunks with text.
        gaps_s: Seconds between chunks with text.
        input_asked: Input tokens that the workload asks for.
        input_counted: Input tokens that the server counted.
        output_asked: Output tokens asked for.
        output_counted: Output tokens that the server counted, or the number of chunks if it did not say.
        error: Why it failed; "" if it did not; "cancelled" if the replay was stopped before its end.
    """

    client: str
    url: str
    planned_s: float
    sent_s: float
    first_s: float | None
    last_s: float | None
    chunks: int
    gaps_s: list[float]
    input_asked: int
    input_counted: int | None
    output_asked: int
    output_counted: int
    error: str

    @property
    def per_token_s(self) -> float | None:
        """Return the mean time per output token after the first, None for answers of one token."""
        if self.first_s is None or self.last_s is None or self.output_counted < 2:
            return None
        return (self.last_s - self.first_s) / (self.output_counted - 1)


@dataclass(frozen=True)
class ReplayOptions:
    """How to replay.

    Attributes:
        urls: Base URLs of the servers, used in turn.
        model: Model name sent with each request.
        timeout_s: Seconds after which a request counts as failed.
        speed: Factor by which the workload's clock runs faster.
        metrics_port: Port of the Prometheus metrics, 0 for none.
        api_key: Sent as a bearer token, if not empty.
        body: Fields added to each request's JSON, for example {"ignore_eos": true}.
    """

    urls: tuple[str, ...]
    model: str
    timeout_s: float = 600.0
    speed: float = 1.0
    metrics_port: int = 0
    api_key: str = ""
    body: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Replay:
    """The result of a replay: its records and what is known of the sender.

    Attributes:
        records: One per request that was sent.
        planned: Requests that the workload holds.
        loop_lag_s: Lateness of the sender's event loop, sampled.
        busy: Share of one core that the sender used, 0-1.
        prompts: The prompts' alphabet and whether the server's count confirmed it.
        interrupted: Whether it was stopped before its end.
    """

    records: tuple[Record, ...]
    planned: int
    loop_lag_s: tuple[float, ...]
    busy: float
    prompts: PromptMaker
    interrupted: bool


class _Metrics:
    """Prometheus metrics of one replay, in a registry of their own."""

    def __init__(self, port: int) -> None:
        self._registry = registry = prometheus_client.CollectorRegistry()
        buckets = tuple(0.005 * 2**i for i in range(15))
        self.sent = prometheus_client.Counter("servegen_requests_sent", "Requests sent.", registry=registry)
        self.failed = prometheus_client.Counter("servegen_requests_failed", "Requests that failed.", registry=registry)
        self.open = prometheus_client.Gauge("servegen_requests_in_flight", "Requests in flight.", registry=registry)
        self.late = prometheus_client.Histogram(
            "servegen_sender_lateness_seconds", "Sent after plan.", registry=registry
        )
        self.first = prometheus_client.Histogram(
            "servegen_time_to_first_token_seconds", "From the planned moment.", buckets=buckets, registry=registry
        )
        self.between = prometheus_client.Histogram(
            "servegen_time_per_output_token_seconds", "Mean of each request.", buckets=buckets, registry=registry
        )
        self._server = None
        if port:
            try:
                self._server, _ = prometheus_client.start_http_server(port, registry=registry)
            except OSError as error:
                raise BadRequest(f"port {port} for metrics cannot be opened ({error.strerror})") from error

    def close(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()


class _Sender:
    def __init__(self, session: aiohttp.ClientSession, options: ReplayOptions, metrics: _Metrics) -> None:
        self.session, self.options, self.metrics = session, options, metrics
        self.start = 0.0
        self.records: list[Record] = []

    def now(self) -> float:
        return time.perf_counter() - self.start

    def body(self, prompt: str, tokens: int, stream: bool) -> bytes:
        fields: dict[str, Any] = {
            "model": self.options.model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": tokens,
            "stream": stream,
            **dict(self.options.body),
        }
        if stream:
            fields["stream_options"] = {"include_usage": True}
        return msgspec.json.encode(fields)

    def post(self, url: str, body: bytes) -> Any:
        headers = {"Content-Type": "application/json"}
        if self.options.api_key:
            headers["Authorization"] = f"Bearer {self.options.api_key}"
        return self.session.post(f"{url.rstrip('/')}/v1/chat/completions", data=body, headers=headers)

    async def count_tokens(self, prompt: str) -> int | None:
        url = self.options.urls[0]
        try:
            async with self.post(url, self.body(prompt, 1, stream=False)) as response:
                text = await response.read()
                if response.status != 200:
                    raise ServerError(f"{url} answered {response.status}: {text[:200].decode(errors='replace')}")
                usage = json.loads(text).get("usage") or {}
                return usage.get("prompt_tokens")
        except (TimeoutError, aiohttp.ClientError, ValueError, AttributeError) as error:
            raise ServerError(f"{url} cannot be used: {error or type(error).__name__}") from error

    async def send(self, request: dict[str, Any], url: str, body: bytes, planned_s: float) -> None:
        answer = AnswerStream()
        sent_s = self.now()
        self.metrics.sent.inc()
        self.metrics.late.observe(max(sent_s - planned_s, 0))
        self.metrics.open.inc()
        try:
            async with asyncio.timeout(self.options.timeout_s), self.post(url, body) as response:
                if response.status != 200:
                    text = (await response.read())[:200].decode(errors="replace")
                    answer.error = f"status {response.status}: {text}"
                else:
                    async for data in response.content.iter_any():
                        answer.feed(data, self.now())
                    answer.close()
        except TimeoutError:
            answer.error = f"no end after {self.options.timeout_s:g} s"
        except asyncio.CancelledError:
            answer.error = "cancelled"
        except aiohttp.ClientError as error:
            answer.error = f"{type(error).__name__}: {error}"
        finally:
            self.metrics.open.dec()
        record = Record(
            request["client"], url, planned_s, sent_s, answer.first_s, answer.last_s, answer.chunks, answer.gaps_s,
            request["input_tokens"], answer.prompt_tokens, request["output_tokens"],
            answer.chunks if answer.completion_tokens is None else answer.completion_tokens, answer.error,
        )  # fmt: skip
        self.records.append(record)
        if record.error:
            self.metrics.failed.inc()
        elif record.first_s is not None:
            self.metrics.first.observe(record.first_s - planned_s)
            self.metrics.between.observe(record.per_token_s or 0.0)


def replay_requests(
    requests: pa.Table, options: ReplayOptions, progress: Callable[[int, int, int], None] | None = None
) -> Replay:
    """Replay requests in open loop and return what happened.

    SIGINT ends the replay: requests in flight are cancelled, and the results so far are returned.

    Args:
        requests: As `export.read_requests` returns them, sorted by time.
        options: Where and how to send.
        progress: Called about twice a second with the numbers of requests sent, finished and planned.

    Raises:
        ServerError: A server cannot be reached, or refuses the first probe.
    """
    if not options.urls or options.speed <= 0:
        raise BadRequest("a replay needs at least one URL and a positive speed")
    metrics = _Metrics(options.metrics_port)
    try:
        return asyncio.run(_replay(requests, options, metrics, progress or (lambda *_: None)))
    finally:
        metrics.close()


async def _replay(
    requests: pa.Table, options: ReplayOptions, metrics: _Metrics, progress: Callable[[int, int, int], None]
) -> Replay:
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=30)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        sender = _Sender(session, options, metrics)
        for url in options.urls[1:]:
            await _Sender(session, replace(options, urls=(url,)), metrics).count_tokens("a")
        maker = await learn_prompts(sender.count_tokens)
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, stop.set)
        lags: list[float] = []
        watch = asyncio.create_task(_watch(lags, lambda: progress(sent[0], len(sender.records), requests.num_rows)))
        sent = [0]
        used = time.process_time()
        sender.start = time.perf_counter() + LEAD_S
        try:
            await _send_all(requests, options, sender, maker, stop, sent)
            busy = (time.process_time() - used) / max(sender.now(), 1e-9)
        finally:
            watch.cancel()
            loop.remove_signal_handler(signal.SIGINT)
        records = tuple(sorted(sender.records, key=lambda record: record.planned_s))
        return Replay(records, requests.num_rows, tuple(lags), busy, maker, stop.is_set())


async def _watch(lags: list[float], tick: Callable[[], None]) -> None:
    due = time.perf_counter()
    while True:
        due += LAG_PERIOD_S
        await asyncio.sleep(max(due - time.perf_counter(), 0))
        lags.append(max(time.perf_counter() - due, 0.0))
        due = max(due, time.perf_counter() - LAG_PERIOD_S)
        if len(lags) % 25 == 0:
            tick()


async def _send_all(
    requests: pa.Table,
    options: ReplayOptions,
    sender: _Sender,
    maker: PromptMaker,
    stop: asyncio.Event,
    sent: list[int],
) -> None:
    tasks: set[asyncio.Task[None]] = set()
    stopped = asyncio.create_task(stop.wait())
    index = 0
    for batch in requests.to_batches(max_chunksize=1024):
        for request in batch.to_pylist():
            planned_s = request["time_us"] / 1e6 / options.speed
            key = request.get("session")
            prompt = maker.prompt(
                request["input_tokens"],
                index if key is None else key,
                request["client"],
                request.get("shared_tokens", 0),
            )
            body = sender.body(prompt, request["output_tokens"], stream=True)
            # Waiting for the planned moment itself, not for a gap, keeps delays from adding up.
            while (left := planned_s - sender.now()) > 0 and not stop.is_set():
                await asyncio.wait({stopped}, timeout=left)
            if stop.is_set():
                break
            url = options.urls[index % len(options.urls)]
            task = asyncio.create_task(sender.send(request, url, body, planned_s))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            index += 1
            sent[0] = index
            await asyncio.sleep(0)
        if stop.is_set():
            break
    while tasks and not stop.is_set():
        await asyncio.wait({stopped, *tasks}, return_when=asyncio.FIRST_COMPLETED)
    for task in tuple(tasks):
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    stopped.cancel()


def summarize(replay: Replay, slo: Slo) -> dict[str, Any]:
    """Return the result as JSON values; docs/files.md describes them.

    Percentiles are of the requests that succeeded; the failure rate stands beside each. Goodput counts all requests.
    """
    late = [record.sent_s - record.planned_s for record in replay.records]
    clients = sorted({record.client for record in replay.records})
    counted = [r for r in replay.records if r.input_counted is not None and not r.error]
    wrong = sum(r.input_counted != r.input_asked for r in counted)
    sender: dict[str, Any] = {
        "lateness_s": _quantiles(late) or {},
        "loop_lag_s": _quantiles(replay.loop_lag_s) or {},
        "busy": round(replay.busy, 3),
    }
    limited = replay.busy > 0.9 or max(sender["lateness_s"].get("p99", 0), sender["loop_lag_s"].get("p99", 0)) > LATE_S
    return {
        "schema": SCHEMA,
        "planned": replay.planned,
        "interrupted": replay.interrupted,
        "slo": msgspec.to_builtins(slo),
        "sender": {**sender, "was_the_limit": bool(limited)},
        "prompts": {
            "alphabet": replay.prompts.alphabet,
            "added_by_server": replay.prompts.added,
            "checked": replay.prompts.checked,
            "counted": len(counted),
            "of_other_length": wrong,
            "largest_difference": max((abs((r.input_counted or 0) - r.input_asked) for r in counted), default=0),
        },
        "output_tokens_counted_by": "usage" if counted else "chunks",
        "all": _summary(replay.records, slo),
        "clients": {name: _summary([r for r in replay.records if r.client == name], slo) for name in clients},
    }


def _summary(records: Sequence[Record], slo: Slo) -> dict[str, Any]:
    finished = [r for r in records if r.error != "cancelled"]
    good = [r for r in finished if not r.error and r.first_s is not None and r.last_s is not None]
    failures = 1 - len(good) / len(finished) if finished else 0.0
    span = max((r.last_s or r.sent_s for r in records), default=0.0)
    met = [r for r in good if (r.first_s or 0) - r.planned_s <= slo.ttft_s and (r.per_token_s or 0.0) <= slo.tbt_s]
    reasons: dict[str, int] = {}
    for record in finished:
        if record.error:
            reasons[record.error] = reasons.get(record.error, 0) + 1
    values = {
        "ttft_s": [(r.first_s or 0) - r.planned_s for r in good],
        "ttft_from_sent_s": [(r.first_s or 0) - r.sent_s for r in good],
        "time_per_output_token_s": [t for r in good if (t := r.per_token_s) is not None],
        "gap_between_chunks_s": [gap for r in good for gap in r.gaps_s],
        "e2e_s": [(r.last_s or 0) - r.planned_s for r in good],
    }
    return {
        "sent": len(records),
        "cancelled": len(records) - len(finished),
        "failed": len(finished) - len(good),
        "failure_rate": failures,
        "errors": dict(sorted(reasons.items(), key=lambda item: -item[1])[:10]),
        "output_tokens": sum(r.output_counted for r in good),
        "goodput_per_s": len(met) / span if span > 0 else 0.0,
        "within_slo": len(met) / len(finished) if finished else 0.0,
        **{name: {**(_quantiles(v) or {}), "of": len(v), "failure_rate": failures} for name, v in values.items()},
    }


def _quantiles(values: Sequence[float]) -> dict[str, float] | None:
    if not len(values):
        return None
    found = np.quantile(values, QUANTILES)
    named = {f"p{100 * q:g}": float(v) for q, v in zip(QUANTILES, found, strict=True)}
    return {**named, "mean": float(np.mean(values)), "max": float(np.max(values))}


def write_records(records: Sequence[Record], path: Path) -> None:
    """Write records as Parquet."""
    pq.write_table(
        pa.Table.from_pylist([msgspec.to_builtins(r) for r in records], schema=_SCHEMA), path, compression="zstd"
    )


def read_records(path: Path) -> tuple[Record, ...]:
    """Read records that `write_records` wrote.

    Raises:
        BadFile: The file is malformed.
    """
    try:
        return tuple(msgspec.convert(pq.read_table(path).to_pylist(), list[Record]))
    except (pa.ArrowException, OSError, msgspec.ValidationError) as error:
        raise BadFile(path, f"is no file of replay records ({' '.join(str(error).split())})") from error


_SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("client", "url", "error")),
        *((name, pa.float64()) for name in ("planned_s", "sent_s", "first_s", "last_s")),
        *((name, pa.int64()) for name in ("chunks", "input_asked", "input_counted", "output_asked", "output_counted")),
        ("gaps_s", pa.list_(pa.float64())),
    ]
)
