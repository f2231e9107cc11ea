"""Replays requests against OpenAI-compatible servers: each is sent at its planned moment, whatever the server does."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import numpy as np
import prometheus_client
import pyarrow as pa
import pyarrow.parquet as pq

from servegen.errors import BadRequest, ServerError
from servegen.pool import Floats
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
#: Share of a core from which the sender is called the limit, too.
MOST_BUSY = 0.9
#: The error of requests that were in flight when a replay was stopped.
CANCELLED = "cancelled"
#: Seconds from the start of a replay to its first moment, for which connections are prepared.
LEAD_S = 0.2


class Record(msgspec.Struct, frozen=True):
    """One request. Times are seconds from the replay's start; None if the moment never came."""

    client: str  #: Its client
    url: str  #: Server that it was sent to
    planned_s: float  #: When it was to be sent
    sent_s: float  #: When it was sent
    first_s: float | None  #: When the first text arrived
    last_s: float | None  #: When the last text arrived
    chunks: int  #: Chunks with text
    gaps_s: list[float]  #: Seconds between chunks with text
    input_asked: int  #: Input tokens that the workload asks for
    input_counted: int | None  #: Input tokens that the server counted
    output_asked: int  #: Output tokens asked for
    output_counted: int  #: Output tokens that the server counted, or the number of chunks if it did not say
    error: str  #: Why it failed; "" if it did not; "cancelled" if the replay was stopped before its end

    @property
    def per_token_s(self) -> float | None:
        """Return the mean time per output token after the first, None for answers of one token."""
        if self.first_s is None or self.last_s is None or self.output_counted < 2:
            return None
        return (self.last_s - self.first_s) / (self.output_counted - 1)


@dataclass(frozen=True)
class ReplayOptions:
    """How to replay."""

    urls: tuple[str, ...]  #: Base URLs of the servers, used in turn
    model: str  #: Model name sent with each request
    timeout_s: float = 600.0  #: Seconds after which a request counts as failed
    speed: float = 1.0  #: Factor by which the workload's clock runs faster
    metrics_port: int = 0  #: Port of the Prometheus metrics, 0 for none
    api_key: str = ""  #: Sent as a bearer token, if not empty
    body: tuple[tuple[str, Any], ...] = ()  #: Fields added to each request's JSON, for example {"ignore_eos": true}


@dataclass(frozen=True)
class Replay:
    """The result of a replay: its records and what is known of the sender."""

    records: tuple[Record, ...]  #: One per request that was sent
    planned: int  #: Requests that the workload holds
    loop_lag_s: tuple[float, ...]  #: Lateness of the sender's event loop, sampled
    busy: float  #: Share of one core that the sender used, 0-1
    prompts: PromptMaker  #: The prompts' alphabet and whether the server's count confirmed it
    interrupted: bool  #: Whether it was stopped before its end


class _Metrics:
    """Prometheus metrics of one replay, in a registry of their own."""

    def __init__(self, port: int) -> None:
        registry = prometheus_client.CollectorRegistry()
        buckets = tuple(0.005 * 2**i for i in range(15))

        def seconds(name: str, text: str) -> prometheus_client.Histogram:
            return prometheus_client.Histogram(f"servegen_{name}_seconds", text, buckets=buckets, registry=registry)

        self.sent = prometheus_client.Counter("servegen_requests_sent", "Requests sent.", registry=registry)
        self.failed = prometheus_client.Counter("servegen_requests_failed", "Requests that failed.", registry=registry)
        self.open = prometheus_client.Gauge("servegen_requests_in_flight", "Requests in flight.", registry=registry)
        self.late = seconds("sender_lateness", "Sent after plan.")
        self.first = seconds("time_to_first_token", "From the planned moment.")
        self.between = seconds("time_per_output_token", "Mean of each request.")
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
    """Sends requests and keeps their records."""

    def __init__(self, session: aiohttp.ClientSession, options: ReplayOptions, metrics: _Metrics) -> None:
        self.session, self.options, self.metrics = session, options, metrics
        self.start = 0.0
        self.sent = 0
        self.records: list[Record] = []
        self.lags: list[float] = []
        self.stop = asyncio.Event()

    def now(self) -> float:
        return time.perf_counter() - self.start

    def body(self, prompt: str, tokens: int, **fields: Any) -> bytes:
        messages = [{"role": "user", "content": prompt}]
        asked = {"model": self.options.model, "messages": messages, "max_tokens": tokens, **fields}
        return msgspec.json.encode({**asked, **dict(self.options.body)})

    def post(self, url: str, body: bytes) -> Any:
        headers = {"Content-Type": "application/json"}
        if self.options.api_key:
            headers["Authorization"] = f"Bearer {self.options.api_key}"
        return self.session.post(f"{url.rstrip('/')}/v1/chat/completions", data=body, headers=headers)

    async def count_tokens(self, prompt: str, url: str = "") -> int | None:
        """Return how many tokens a server counts in a prompt, None if it does not say."""
        url = url or self.options.urls[0]
        try:
            async with self.post(url, self.body(prompt, 1, stream=False)) as response:
                text = await response.read()
                if response.status != 200:
                    raise ServerError(f"{url} answered {response.status}: {text[:200].decode(errors='replace')}")
                return (json.loads(text).get("usage") or {}).get("prompt_tokens")
        except (TimeoutError, aiohttp.ClientError, ValueError, AttributeError) as error:
            raise ServerError(f"{url} cannot be used: {error or type(error).__name__}") from error

    async def send(self, request: dict[str, Any], url: str, body: bytes, planned_s: float) -> None:
        answer = AnswerStream()
        sent_s = self.now()
        self.metrics.sent.inc()
        self.metrics.late.observe(max(sent_s - planned_s, 0))
        try:
            with self.metrics.open.track_inprogress():
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
            answer.error = CANCELLED
        except aiohttp.ClientError as error:
            answer.error = f"{type(error).__name__}: {error}"
        record = Record(
            client=request["client"],
            url=url,
            planned_s=planned_s,
            sent_s=sent_s,
            first_s=answer.first_s,
            last_s=answer.last_s,
            chunks=answer.chunks,
            gaps_s=answer.gaps_s,
            input_asked=request["input_tokens"],
            input_counted=answer.prompt_tokens,
            output_asked=request["output_tokens"],
            output_counted=answer.chunks if answer.completion_tokens is None else answer.completion_tokens,
            error=answer.error,
        )
        self.records.append(record)
        if record.error:
            self.metrics.failed.inc()
        elif record.first_s is not None:
            self.metrics.first.observe(record.first_s - planned_s)
            self.metrics.between.observe(record.per_token_s or 0.0)

    async def send_all(self, requests: pa.Table, maker: PromptMaker) -> None:
        """Send requests at their planned moments until all have ended, or until `stop` is set."""
        tasks: set[asyncio.Task[None]] = set()
        stopped = asyncio.create_task(self.stop.wait())
        for request in (row for batch in requests.to_batches(max_chunksize=1024) for row in batch.to_pylist()):
            planned_s = request["time_us"] / 1e6 / self.options.speed
            session, shared = request.get("session"), request.get("shared_tokens", 0)
            key = self.sent if session is None else session
            prompt = maker.prompt(request["input_tokens"], key, request["client"], shared)
            body = self.body(prompt, request["output_tokens"], stream=True, stream_options={"include_usage": True})
            # Waiting for the planned moment itself, not for a gap, keeps delays from adding up.
            while (left := planned_s - self.now()) > 0 and not self.stop.is_set():
                await asyncio.wait({stopped}, timeout=left)
            if self.stop.is_set():
                break
            url = self.options.urls[self.sent % len(self.options.urls)]
            task = asyncio.create_task(self.send(request, url, body, planned_s))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            self.sent += 1
            await asyncio.sleep(0)
        while tasks and not self.stop.is_set():
            await asyncio.wait({stopped, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        for task in tuple(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        stopped.cancel()

    async def watch(self, tick: Callable[[], None]) -> None:
        """Sample the event loop's own lateness for ever."""
        due = time.perf_counter()
        while True:
            due += LAG_PERIOD_S
            await asyncio.sleep(max(due - time.perf_counter(), 0))
            self.lags.append(max(time.perf_counter() - due, 0.0))
            due = max(due, time.perf_counter() - LAG_PERIOD_S)
            if len(self.lags) % 25 == 0:
                tick()


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
            await sender.count_tokens("a", url)
        maker = await learn_prompts(sender.count_tokens)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, sender.stop.set)
        tick = lambda: progress(sender.sent, len(sender.records), requests.num_rows)  # noqa: E731
        watch = asyncio.create_task(sender.watch(tick))
        used = time.process_time()
        sender.start = time.perf_counter() + LEAD_S
        try:
            await sender.send_all(requests, maker)
            busy = (time.process_time() - used) / max(sender.now(), 1e-9)
        finally:
            watch.cancel()
            loop.remove_signal_handler(signal.SIGINT)
        records = tuple(sorted(sender.records, key=lambda record: record.planned_s))
        return Replay(records, requests.num_rows, tuple(sender.lags), busy, maker, sender.stop.is_set())


def summarize(replay: Replay, slo: Slo) -> dict[str, Any]:
    """Return the result as JSON values; docs/files.md describes them.

    Percentiles are of the requests that succeeded; the failure rate stands beside each. Goodput counts all requests.
    """
    lateness = _quantiles([record.sent_s - record.planned_s for record in replay.records])
    lag = _quantiles(replay.loop_lag_s)
    limited = replay.busy > MOST_BUSY or max(lateness.get("p99", 0), lag.get("p99", 0)) > LATE_S
    counted = [r for r in replay.records if r.input_counted is not None and not r.error]
    differences = [abs((r.input_counted or 0) - r.input_asked) for r in counted]
    clients: dict[str, list[Record]] = {}
    for record in sorted(replay.records, key=lambda record: record.client):
        clients.setdefault(record.client, []).append(record)
    return {
        "schema": SCHEMA,
        "planned": replay.planned,
        "interrupted": replay.interrupted,
        "slo": msgspec.to_builtins(slo),
        "sender": {"lateness_s": lateness, "loop_lag_s": lag, "busy": replay.busy, "was_the_limit": bool(limited)},
        "prompts": {
            "alphabet": replay.prompts.alphabet,
            "added_by_server": replay.prompts.added,
            "checked": replay.prompts.checked,
            "counted": len(counted),
            "of_other_length": sum(difference > 0 for difference in differences),
            "largest_difference": max(differences, default=0),
        },
        "output_tokens_counted_by": "usage" if counted else "chunks",
        "all": _summary(replay.records, slo),
        "clients": {name: _summary(records, slo) for name, records in clients.items()},
    }


def _summary(records: Sequence[Record], slo: Slo) -> dict[str, Any]:
    finished = [r for r in records if r.error != CANCELLED]
    good = [r for r in finished if not r.error]
    planned, sent, first, last, per_token = (
        np.array([getattr(r, name) for r in good], float)
        for name in ("planned_s", "sent_s", "first_s", "last_s", "per_token_s")
    )
    failures = 1 - len(good) / len(finished) if finished else 0.0
    span = max((r.last_s or r.sent_s for r in records), default=0.0)
    met = int(((first - planned <= slo.ttft_s) & ~(per_token > slo.tbt_s)).sum())
    values = {
        "ttft_s": first - planned,
        "ttft_from_sent_s": first - sent,
        "time_per_output_token_s": per_token[~np.isnan(per_token)],
        "gap_between_chunks_s": [gap for r in good for gap in r.gaps_s],
        "e2e_s": last - planned,
    }
    return {
        "sent": len(records),
        "cancelled": len(records) - len(finished),
        "failed": len(finished) - len(good),
        "failure_rate": failures,
        "errors": dict(Counter(r.error for r in finished if r.error).most_common(10)),
        "output_tokens": sum(r.output_counted for r in good),
        "goodput_per_s": met / span if span > 0 else 0.0,
        "within_slo": met / len(finished) if finished else 0.0,
        **{name: {**_quantiles(v), "of": len(v), "failure_rate": failures} for name, v in values.items()},
    }


def _quantiles(values: Sequence[float] | Floats) -> dict[str, float]:
    if not len(values):
        return {}
    found = np.quantile(values, QUANTILES)
    named = {f"p{100 * q:g}": float(v) for q, v in zip(QUANTILES, found, strict=True)}
    return {**named, "mean": float(np.mean(values)), "max": float(np.max(values))}


def write_records(records: Sequence[Record], path: Path) -> None:
    """Write records as Parquet; `files.read_rows(path, Record)` reads them."""
    texts, counts = ("client", "url", "error"), ("chunks", "input_asked", "input_counted", "output_asked")
    kinds = {**dict.fromkeys(texts, pa.string()), **dict.fromkeys((*counts, "output_counted"), pa.int64())}
    kinds["gaps_s"] = pa.list_(pa.float64())
    schema = pa.schema([(name, kinds.get(name, pa.float64())) for name in Record.__struct_fields__])
    pq.write_table(pa.Table.from_pylist(msgspec.to_builtins(records), schema=schema), path, compression="zstd")
