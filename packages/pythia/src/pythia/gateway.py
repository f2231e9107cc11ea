"""The gateway: an OpenAI-compatible proxy that passes bytes through and decides who goes first, and where."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import math
import time
import zlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any, TypeVar

import httpx
import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from pythia import identifiers, templates
from pythia.dispatcher import Arrival, Dispatcher
from pythia.errors import BadRequest, EngineError, PythiaError
from pythia.metrics import Metrics
from pythia.profile import Profiles
from pythia.records import Job, Step
from pythia.replicas import Processes, hints, probe
from pythia.scale import Action, Scaler
from pythia.schedule import Replica, Scheduler
from pythia.settings import REACTIVE, Policy, Settings
from pythia.settings import Replica as ReplicaSettings

log = logging.getLogger("pythia")
T = TypeVar("T")
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

#: Paths whose requests are scheduled; everything else goes straight to a replica.
GENERATING = ("/v1/chat/completions", "/v1/completions", "/v1/responses")
HOP_BY_HOP = {
    b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te", b"trailer",
    b"transfer-encoding", b"upgrade",
}  # fmt: skip
#: Bytes of an answer that are looked at for its token counts; longer ones are counted by their events.
LOOKED_AT = 1 << 20
#: Seconds for which an idle connection to an engine is used again. Servers close idle ones after 1 s and more; a
#: request that meets the closing one would fail, or run twice if it were tried again.
REUSE_S = 0.5
#: Replicas that are tried if connecting fails; nothing was sent then.
TRIES = 3
#: Characters of a token until an engine's counts tell more.
CHARS = 4.0
TICK_S = 0.5
SAVE_S = 30.0


class _Disconnected(Exception):  # an event, not an error
    """The client has gone."""


class _Refused(Exception):
    """An answer that the gateway gives itself."""

    def __init__(self, status: int, message: str, kind: str, retry_s: float | None = None) -> None:
        super().__init__(message)
        self.status, self.kind, self.retry_s = status, kind, retry_s


class _Answer:
    """Counts an answer's tokens while it passes."""

    def __init__(self, streamed: bool, encoding: str) -> None:
        self.streamed, self.encoding = streamed, encoding
        self.kept = bytearray()
        self.events = self.size = 0

    def feed(self, chunk: bytes) -> None:
        self.size += len(chunk)
        self.events += chunk.count(b"data:")
        if len(self.kept) < LOOKED_AT:
            self.kept += chunk[: LOOKED_AT - len(self.kept)]

    def read(self) -> tuple[int, int, int, str]:
        """Return prompt tokens (0 if unknown), output tokens, cached prompt tokens, and the text."""
        data = bytes(self.kept)
        if self.encoding in ("gzip", "deflate"):
            with contextlib.suppress(zlib.error):
                data = zlib.decompressobj(zlib.MAX_WBITS | 32).decompress(data, LOOKED_AT * 8)
        elif self.encoding not in ("", "identity"):
            return 0, round(self.size / CHARS), 0, ""
        usage: dict[str, Any] = {}
        texts: list[str] = []
        pieces = 0
        lines = data.split(b"\n") if self.streamed else [b"data: " + data]
        for line in lines:
            if not line.startswith(b"data:"):
                continue
            try:
                event = msgspec.json.decode(line[5:])
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                continue
            if not isinstance(event, dict):
                continue
            found = event.get("usage") or (event.get("response") or {}).get("usage")
            usage = found if isinstance(found, dict) else usage
            text = _text(event)
            pieces += bool(text)
            texts.append(text)
        output = usage.get("completion_tokens", usage.get("output_tokens"))
        if not isinstance(output, int):
            output = (
                (pieces if self.size <= LOOKED_AT else self.events)
                if self.streamed
                else round(len("".join(texts)) / CHARS)
            )
        prompt = usage.get("prompt_tokens", usage.get("input_tokens"))
        details = usage.get("prompt_tokens_details") or {}
        cached = details.get("cached_tokens") if isinstance(details, dict) else 0
        return (
            prompt if isinstance(prompt, int) else 0,
            max(0, output),
            cached if isinstance(cached, int) else 0,
            "".join(texts),
        )


def _text(event: Mapping[str, Any]) -> str:
    """Return the text of an answer or of one of its events."""
    if isinstance(event.get("delta"), str):
        return str(event["delta"])
    choices = event.get("choices")
    if not isinstance(choices, list):
        return ""
    found = []
    for choice in choices:
        if isinstance(choice, dict):
            part = choice.get("delta") or choice.get("message") or choice
            text = (
                (part.get("content") or part.get("text") or part.get("reasoning_content"))
                if isinstance(part, dict)
                else None
            )
            calls = part.get("tool_calls") if isinstance(part, dict) else None
            found.append(text if isinstance(text, str) else json.dumps(calls) if calls else "")
    return "".join(found)


class Gateway:
    """One gateway process."""

    def __init__(self, settings: Settings, profiles: Profiles | None = None) -> None:
        self.settings = settings
        acting = msgspec.structs.replace(settings, policy=REACTIVE) if settings.dry_run else settings
        self.profiles = profiles or Profiles.load(Path(settings.profiles), settings.idle_s)
        self.dispatcher = Dispatcher(acting, self.profiles)
        self.scheduler = self.dispatcher.scheduler
        self.policy: Policy = acting.policy
        self.shadow = Scheduler(settings.policy, settings)
        self.metrics = Metrics()
        timeout = httpx.Timeout(connect=settings.connect_s, read=settings.read_s, write=settings.read_s, pool=None)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=200, keepalive_expiry=REUSE_S)
        self.client = httpx.AsyncClient(timeout=timeout, limits=limits, trust_env=False)
        self.processes = Processes(self.client)
        self.scaler = Scaler(acting)
        self.futures: dict[int, asyncio.Future[Replica]] = {}
        self.chars: dict[str, float] = {}
        self.history: deque[dict[str, Any]] = deque(maxlen=2000)
        self.loads: deque[tuple[float, float, float, float]] = deque(maxlen=1200)
        self.started = time.monotonic()
        self.tasks: set[asyncio.Task[Any]] = set()
        self.log_file = Path(settings.log).open("ab", buffering=0) if settings.log else None  # noqa: SIM115
        for model, described in settings.models.items():
            for replica in described.replicas:
                self._add(replica.url.rstrip("/"), model, replica, "ready")

    def _add(self, url: str, model: str, described: ReplicaSettings, state: str) -> Replica:
        replica = Replica(url, model, described.slots, described.kv_tokens, described.kind, state)
        self.scheduler.add(replica)
        self.shadow.add(replica)
        return replica

    @property
    def now(self) -> float:
        """Seconds since the gateway began."""
        return time.monotonic() - self.started

    # -- life ---------------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """Run the background work while the server runs; save what was learned at its end."""
        ticking = asyncio.create_task(self._tick_forever())
        try:
            yield
        finally:
            ticking.cancel()
            await asyncio.gather(ticking, return_exceptions=True)
            for task in list(self.tasks):
                task.cancel()
            await asyncio.gather(*self.tasks, return_exceptions=True)
            await self.processes.stop_all()
            await self.client.aclose()
            self._save()
            if self.log_file:
                self.log_file.close()

    def _save(self) -> None:
        try:
            self.profiles.save(Path(self.settings.profiles))
        except PythiaError as error:
            log.error("%s", error)

    def spawn(self, work: Any) -> None:
        """Run a coroutine beside the requests."""
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("background work failed: %r", task.exception())

    async def _tick_forever(self) -> None:
        saved = self.now
        while True:
            await asyncio.sleep(TICK_S)
            try:
                await self._tick()
                if self.now - saved >= SAVE_S:
                    saved = self.now
                    self._save()
            except Exception:
                log.exception("the gateway's clock failed once; it goes on")

    async def _tick(self) -> None:
        now = self.now
        self._send_values(self.dispatcher.expire(now), now)
        self.spawn(probe(lambda: list(self.scheduler.replicas.values()), self.client))
        for name in self.processes.ended({r.name for r in self.scheduler.replicas.values() if r.state == "starting"}):
            log.error("engine %s has ended by itself", name)
            self.scheduler.remove(name)
            self.shadow.remove(name)
        projected = self.dispatcher.projected()
        if self.policy.scale != "off":
            for action in self.scaler.decide(self.scheduler, projected, now):
                self._scale(action)
        self.pump()
        self._measure(projected, now)

    def _measure(self, projected: Mapping[str, float], now: float) -> None:
        replicas = self.scheduler.replicas.values()
        running = sum(len(r.active) for r in replicas)
        self.metrics.replicas.clear()
        for model in self.settings.models:
            mine = [r for r in replicas if r.model == model]
            waiting = sum(j.model == model for j in self.scheduler.waiting.values())
            self.metrics.actual.labels(model).set(waiting + sum(len(r.active) for r in mine))
            self.metrics.expected.labels(model).set(sum(v for k, v in projected.items() if self.queue_of(k) == model))
            for state in ("starting", "ready", "draining", "sick"):
                self.metrics.replicas.labels(model, state).set(sum(r.state == state for r in mine))
        size = sum(r.kv_tokens for r in replicas)
        used = sum(r.reserved for r in replicas) / size if size else 0.0
        self.loads.append((now, running + len(self.scheduler.waiting), used, sum(projected.values())))

    def _scale(self, action: Action) -> None:
        log.info("%s %s: %s", action.kind, action.name, action.reason)
        launch = self.settings.models[action.model].launch
        if action.kind == "start" and launch is not None:
            placeholder = self._add(action.name, action.model, launch.replica, "starting")
            self.spawn(self._start(action, placeholder))
        elif action.kind == "stop":
            self.scheduler.remove(action.name)
            self.shadow.remove(action.name)
            self.spawn(self.processes.stop(action.name))

    async def _start(self, action: Action, replica: Replica) -> None:
        launch = self.settings.models[action.model].launch
        assert launch is not None
        try:
            await self.processes.start(action.name, launch)
        except EngineError as error:
            log.error("%s", error)
            await asyncio.sleep(5.0)  # not at once again
            self.scheduler.remove(action.name)
            self.shadow.remove(action.name)
            return
        replica.state = "ready"
        self.pump()

    def url(self, replica: Replica) -> str:
        """Return where a replica listens."""
        found = self.processes.running.get(replica.name)
        return found[1] if found else replica.name

    # -- requests -----------------------------------------------------------------------------------------------------

    def queue_of(self, model: str) -> str:
        """Return the configured model that serves a requested one."""
        return (
            model
            if model in self.settings.models
            else "*"
            if "*" in self.settings.models
            else next(iter(self.settings.models))
        )

    def pump(self) -> None:
        """Dispatch what can be dispatched."""
        for job, replica in self.scheduler.take(self.now):
            future = self.futures.pop(job.number, None)
            if future is None or future.done():
                self.scheduler.finish(job)
            else:
                future.set_result(replica)
        self.metrics.waiting.set(len(self.scheduler.waiting))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1003})
            return
        sent = False

        async def sending(message: MutableMapping[str, Any]) -> None:
            nonlocal sent
            if message["type"] == "http.response.start":
                sent = True
                self.metrics.requests.labels(f"{message['status'] // 100}xx").inc()
            await send(message)

        try:
            await self._serve(scope, receive, sending)
        except _Disconnected:
            self.metrics.requests.labels("gone").inc()
        except _Refused as refused:
            if not sent:
                await _refuse(sending, refused)
        except BadRequest as error:
            await _refuse(sending, _Refused(400, str(error), "invalid_request_error"))

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in scope["headers"]}
        generating = scope["method"] == "POST" and scope["path"].rstrip("/") in GENERATING
        body = await self._body(receive, headers)
        plain = generating and not headers.get("content-encoding")
        fields = identifiers.members(body) if plain else None
        ids = identifiers.find(fields or {}, headers) if generating else None
        now = self.now
        model = _string(fields, "model")
        queue = self.queue_of(model)
        prompt = round(len(body) / self.chars.get(model, CHARS)) if generating else 0
        most = (
            _number(fields, "max_completion_tokens")
            or _number(fields, "max_tokens")
            or _number(fields, "max_output_tokens")
        )
        arrival: Arrival | None = None
        if ids is not None:
            tenant = self.profiles.tenant(headers.get("authorization", headers.get("x-api-key", "")).encode())
            arrival = self.dispatcher.arrive(ids, tenant, queue, prompt, most, now)
            job = arrival.job
            for name, value in (("role", job.role_group), ("group", job.group)):
                job.tags[name] = self._name(value)
        else:
            job = self.dispatcher.plain(queue, prompt, most, now)
        if self.policy.route == "prefix" or self.policy.order == "las":
            job.chain = _chain(body)
        if self.settings.dry_run:
            self._would(job, arrival)
        step: Step | None = None
        gone = asyncio.create_task(_until_gone(receive))
        try:
            step = await self._forward(scope, send, body, fields, job, arrival, gone, generating)
        finally:
            gone.cancel()
            if arrival is not None:
                self._depart(arrival, step)
            else:
                self.scheduler.cancel(job)
            self.futures.pop(job.number, None)
            self._gauge(job.replica)
            self.pump()

    def _name(self, key: str) -> str:
        """Return the salted name under which an engine knows a prefix."""
        return hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8, key=self.profiles.salt).hexdigest()

    async def _body(self, receive: Receive, headers: Mapping[str, str]) -> bytes:
        most = self.settings.most_body_bytes
        too_large = _Refused(413, f"the body exceeds {most:,} bytes (most_body_bytes)", "invalid_request_error")
        with contextlib.suppress(ValueError):
            if int(headers.get("content-length", "0")) > most:
                raise too_large
        chunks: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _Disconnected
            chunks.append(message.get("body", b""))
            size += len(chunks[-1])
            if size > most:
                raise too_large
            if not message.get("more_body"):
                return b"".join(chunks)

    async def _place(self, job: Job, gone: asyncio.Task[None], generating: bool) -> Replica:
        """Wait for a replica."""
        if not any(r.model == job.model and r.state != "sick" for r in self.scheduler.replicas.values()) and (
            self.settings.models[job.model].launch is None or self.policy.scale == "off"
        ):
            raise _Refused(503, f"no engine for model {job.model!r} answers; is it running?", "engine_unavailable", 2)
        if not generating:
            ready = self.scheduler.ready(job.model) or list(self.scheduler.replicas.values())
            job.replica = min(ready, key=lambda r: len(r.active)).name
            return self.scheduler.replicas[job.replica]
        if len(self.scheduler.waiting) >= self.settings.most_waiting:
            raise _Refused(503, "too many requests wait (most_waiting)", "overloaded", 5)
        waits_s = self._first_wait_s(job)
        if self.scheduler.hopeless(job, waits_s):
            message = f"a first step would wait {waits_s:.0f} s, the limit is {self.settings.limit_s:g} s"
            raise _Refused(429, message, "overloaded", waits_s - self.settings.limit_s)
        future: asyncio.Future[Replica] = asyncio.get_running_loop().create_future()
        self.futures[job.number] = future
        self.scheduler.submit(job)
        self.pump()
        replica = await _or_gone(future, gone)
        self.metrics.wait.observe(self.now - job.arrived)
        self._gauge(replica.name)
        return replica

    def _first_wait_s(self, job: Job) -> float:
        """Return how long a first step would wait behind those that wait already."""
        slots = sum(r.slots for r in self.scheduler.ready(job.model))
        ahead = sum(j.first for j in self.scheduler.waiting.values() if j.model == job.model)
        return ahead * self.dispatcher.retention.step_s / slots if slots else 0.0

    async def _forward(
        self, scope: Scope, send: Send, body: bytes, fields: dict[str, msgspec.Raw] | None, job: Job,
        arrival: Arrival | None, gone: asyncio.Task[None], generating: bool,
    ) -> Step | None:  # fmt: skip
        """Send a request to a replica and pass its answer on; another replica is tried if one cannot be reached."""
        for attempt in range(1, TRIES + 1):
            replica = await self._place(job, gone, generating)
            request = self._request(scope, body, fields, replica, job, arrival)
            if arrival is not None:
                self.prefetch(arrival)
            try:
                response = await _or_gone(self.client.send(request, stream=True), gone)
                break
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                replica.state = "sick"
                log.warning("replica %s cannot be reached (%s)", replica.name, type(error).__name__)
                self.scheduler.finish(job)
                if attempt == TRIES:
                    raise _Refused(502, "the engine cannot be reached", "engine_unavailable", 2) from error
            except httpx.TimeoutException as error:
                message = f"the engine sent nothing for {self.settings.read_s:g} s (read_s)"
                raise _Refused(504, message, "engine_timeout") from error
            except httpx.HTTPError as error:
                message = f"the engine broke the connection before it answered ({type(error).__name__})"
                raise _Refused(502, message, "engine_error") from error
        try:
            answer = await _or_gone(self._pass(response, send, job), gone)
        finally:
            await asyncio.shield(response.aclose())
        if answer is None or response.status_code >= 300 or not generating:
            return None
        return await self._step(answer, body, fields, job, arrival)

    def _request(
        self,
        scope: Scope,
        body: bytes,
        fields: dict[str, msgspec.Raw] | None,
        replica: Replica,
        job: Job,
        arrival: Arrival | None,
    ) -> httpx.Request:
        url = httpx.URL(self.url(replica))
        if fields is not None and arrival is not None:
            score = self.scheduler.score(job)
            add = {} if self.settings.dry_run else hints(replica.kind, score, arrival.prediction, job, fields)
            remove = (identifiers.MEMBER,) if self.settings.strip and identifiers.MEMBER in fields else ()
            if add or remove:
                body = identifiers.rewrite(fields, remove, add)
            if add:
                self.metrics.hints.labels(replica.kind).inc()
        named = b",".join(v for k, v in scope["headers"] if k.lower() == b"connection").lower()
        drop = HOP_BY_HOP | {b"host", b"content-length"} | {name.strip() for name in named.split(b",")}
        if self.settings.strip:
            drop |= {name.encode() for name in (*identifiers.HEADERS, identifiers.FINAL_HEADER)}
        headers = [(k, v) for k, v in scope["headers"] if k.lower() not in drop]
        headers.append((b"Host", url.netloc))
        if body or scope["method"] in ("POST", "PUT", "PATCH"):
            headers.append((b"Content-Length", str(len(body)).encode()))
        target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
        extensions = {"target": target, "timeout": self.client.timeout.as_dict()}
        return httpx.Request(scope["method"], url, headers=headers, content=body or None, extensions=extensions)

    async def _pass(self, response: httpx.Response, send: Send, job: Job) -> _Answer | None:
        """Pass an answer on, each chunk at once; return what was counted, or None if it was cut off."""
        headers = [(k, v) for k, v in response.headers.raw if k.lower() not in HOP_BY_HOP]
        await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
        streamed = response.headers.get("content-type", "").startswith("text/event-stream")
        answer = _Answer(streamed, response.headers.get("content-encoding", ""))
        first = True
        try:
            async for chunk in response.aiter_raw():
                if first:
                    first = False
                    job.tags["first"] = str(self.now)
                    self.metrics.ttft.observe(self.now - job.arrived)
                answer.feed(chunk)
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        except httpx.HTTPError as error:
            # No clean end: without a last chunk the server cuts the connection, as the engine did.
            log.warning("replica %s broke an answer off (%s)", job.replica, type(error).__name__)
            if streamed and not answer.encoding:
                message = {"error": {"message": "the engine broke the answer off", "type": "engine_error", "code": 502}}
                event = b"\n\ndata: " + json.dumps(message).encode() + b"\n\n"
                with contextlib.suppress(Exception):
                    await send({"type": "http.response.body", "body": event, "more_body": True})
            return None
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        return answer

    async def _step(
        self, answer: _Answer, body: bytes, fields: dict[str, msgspec.Raw] | None, job: Job, arrival: Arrival | None
    ) -> Step | None:
        learned = arrival is not None
        prompt, output, cached, found = await asyncio.to_thread(self._look, answer, fields if learned else None)
        if prompt and job.prompt:
            model = _string(fields, "model")
            if model in self.chars or len(self.chars) < 256:
                ratio = len(body) / prompt
                self.chars[model] = self.chars.get(model, ratio) * 0.9 + ratio * 0.1
        self.metrics.prompt.inc(prompt or job.prompt)
        self.metrics.cached.inc(cached)
        if arrival is None:
            return None
        ids = arrival.ids
        return Step(
            ids.workflow_type_id, ids.workflow_id, ids.agent_id, round(job.arrived, 6), output, prompt or job.prompt,
            round(self.now - job.arrived, 6), job.model, arrival.tenant, ids.final, *found,
        )  # fmt: skip

    def _look(
        self, answer: _Answer, fields: dict[str, msgspec.Raw] | None
    ) -> tuple[int, int, int, tuple[templates.Pieces, templates.Pieces]]:
        """Count an answer and hash its lines and the prompt's; runs in a thread."""
        prompt, output, cached, text = answer.read()
        if fields is None or not self.settings.templates:
            return prompt, output, cached, ((), ())
        pieces = templates.pieces(_prompt_texts(fields), self.profiles.salt)
        return prompt, output, cached, (pieces, templates.pieces([text], self.profiles.salt))

    def _depart(self, arrival: Arrival, step: Step | None) -> None:
        now, job, prediction = self.now, arrival.job, arrival.prediction
        changes = len(self.profiles.changes)
        values = self.dispatcher.depart(arrival, step, now)
        if not self.settings.dry_run:
            self._send_values(values, now)
        label = self._label(arrival)
        for workflow, reason in self.profiles.changes[changes:]:
            log.warning(
                "workflow %r has changed (%s); it is served reactively until it is known again", workflow, reason
            )
            self.metrics.changes.labels(label[0]).inc()
        if step is None:
            return
        self.metrics.steps.labels(*label).inc()
        if prediction.bound is not None:
            self.metrics.bounds.labels(label[0]).inc()
            self.metrics.missed.labels(label[0]).inc(step.output_tokens > prediction.bound)
        if arrival.place and arrival.place - 1 < len(arrival.run.hoped):
            hoped = arrival.run.hoped[arrival.place - 1]
            if hoped[2] > 0:
                self.metrics.hits.labels(label[0], str(hoped[0] == arrival.ids.agent_id).lower()).inc()
        if self.log_file:
            bare = msgspec.structs.replace(step, pieces=(), answer=())
            self.log_file.write(msgspec.json.encode(bare) + b"\n")
        first = float(job.tags.get("first", now))
        self.history.append(
            {"run": self._name(arrival.run.key)[:8], "type": label[0], "role": label[1], "replica": job.replica,
             "arrived": job.arrived, "dispatched": job.dispatched, "first": first, "ended": now}
        )  # fmt: skip

    def _label(self, arrival: Arrival) -> tuple[str, str]:
        """Return names for metrics; workflow types with few runs, which clients may invent, are "other"."""
        profile = self.profiles.of(arrival.run)
        if profile is None or profile.thin:
            return "other", "other"
        role = arrival.ids.agent_id if arrival.ids.agent_id in profile.lengths else "other"
        return arrival.ids.workflow_type_id, role

    def _gauge(self, name: str) -> None:
        replica = self.scheduler.replicas.get(name)
        if replica is not None:
            self.metrics.in_flight.labels(name).set(len(replica.active))
            self.metrics.reserved.labels(name).set(replica.reserved)

    def _would(self, job: Job, arrival: Arrival | None) -> None:
        """Say what the configured policy would have done."""
        full = [r for r in self.shadow.ready(job.model) if not r.fits(job, self.settings.epsilon)]
        chosen = self.shadow.choose(job)
        self.metrics.dry.labels("wait" if chosen is None else "send").inc()
        send = f"send to {chosen.name}, priority {self.scheduler.score(job):.2f}" if chosen else "wait"
        if arrival is None:
            log.info("dry run: no identifiers; would %s; %d replicas are full", send, len(full))
            return
        p = arrival.prediction
        following = f"{p.next_role or 'the end'} next ({p.next_probability:.0%})" if p.on_path else "no prediction"
        names = self._label(arrival)
        log.info("dry run: %s %s, bound %s, %s; would %s; %d full", *names, p.bound, following, send, len(full))

    def _send_values(self, groups: set[str], now: float) -> None:
        """Tell this package's engines which prefixes are worth keeping."""
        if self.policy.cache != "pythia" or not groups:
            return
        values = {self._name(group): round(self.dispatcher.retention.value(group, now), 4) for group in groups}
        for replica in self.scheduler.replicas.values():
            if replica.kind == "pythia" and replica.state == "ready":
                self.spawn(self._post(replica, {"values": values}))

    def prefetch(self, arrival: Arrival) -> None:
        """Ask an idle engine to compute the prefix of the role that probably comes next."""
        following = self.dispatcher.next_prefix(arrival) if self.policy.prefetch else None
        if following is None:
            return
        group, model = following
        for replica in self.scheduler.ready(model):
            if replica.kind == "pythia" and 2 * len(replica.active) < replica.slots:
                self.spawn(self._post(replica, {"prefetch": self._name(group)}))

    async def _post(self, replica: Replica, hint: Mapping[str, object]) -> None:
        with contextlib.suppress(httpx.HTTPError):  # a hint may be lost
            await self.client.post(f"{self.url(replica)}/pythia/hints", json=hint, timeout=2.0)

    # -- own pages ----------------------------------------------------------------------------------------------------

    async def metrics_page(self, request: Request) -> Response:
        """Answer GET /metrics."""
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4")

    async def state(self, request: Request) -> Response:
        """Answer GET /pythia/state: replicas, loads and the latest requests."""
        return JSONResponse(self.snapshot())

    async def mark(self, request: Request) -> Response:
        """Answer POST /pythia/replicas {"url": ..., "state": "sick" | "ready"}, from this host only."""
        if request.client is None or request.client.host not in ("127.0.0.1", "::1"):
            return JSONResponse({"error": "only from this host"}, 403)
        try:
            asked = json.loads(await request.body())
            replica = self.scheduler.replicas[str(asked["url"]).rstrip("/")]
            if asked["state"] not in ("sick", "ready"):
                raise KeyError(asked["state"])
        except (ValueError, KeyError, TypeError) as error:
            return JSONResponse({"error": f"give url and state of a replica ({error})"}, 400)
        replica.state = "ready" if asked["state"] == "ready" else "held"
        self.pump()
        return JSONResponse({"url": replica.name, "state": replica.state})

    def snapshot(self) -> dict[str, Any]:
        """Return what the page shows."""
        replicas = [
            {"name": r.name, "model": r.model, "state": r.state, "active": len(r.active), "slots": r.slots,
             "reserved": r.reserved, "kv_tokens": r.kv_tokens, "alpha": round(r.alpha, 4)}
            for r in self.scheduler.replicas.values()
        ]  # fmt: skip
        slots = max((r.slots for r in self.scheduler.replicas.values()), default=0)
        return {
            "now": self.now, "policy": msgspec.to_builtins(self.policy), "dry_run": self.settings.dry_run,
            "replicas": replicas, "waiting": len(self.scheduler.waiting),
            "worst_first_wait_s": self.scheduler.worst_wait,
            "epsilon": self.settings.epsilon, "alpha": self.settings.alpha(slots),
            "needed_runs_for_bound": math.ceil(1 / self.settings.alpha(slots)) - 1,
            "loads": list(self.loads), "steps": list(self.history),
        }  # fmt: skip


async def _or_gone(work: Awaitable[T], gone: asyncio.Task[None]) -> T:
    """Await something, but give it up once the client has gone."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait([task, gone], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise _Disconnected
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _refuse(send: Send, refused: _Refused) -> None:
    error = {"message": str(refused), "type": refused.kind, "code": refused.status}
    body = json.dumps({"error": error}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if refused.retry_s is not None:
        headers.append((b"retry-after", str(max(1, math.ceil(refused.retry_s))).encode()))
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def _string(fields: Mapping[str, msgspec.Raw] | None, name: str) -> str:
    raw = (fields or {}).get(name)
    try:
        return msgspec.json.decode(raw, type=str) if raw is not None else ""
    except msgspec.MsgspecError:
        return ""


def _number(fields: Mapping[str, msgspec.Raw] | None, name: str) -> int | None:
    raw = (fields or {}).get(name)
    try:
        return max(0, msgspec.json.decode(raw, type=int)) if raw is not None else None
    except msgspec.MsgspecError:
        return None


def _prompt_texts(fields: Mapping[str, msgspec.Raw]) -> list[str]:
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
        if name in fields:
            with contextlib.suppress(msgspec.MsgspecError, RecursionError):
                walk(msgspec.json.decode(fields[name]))
    return texts


def _chain(body: bytes) -> tuple[int, ...]:
    """Return hashes of a body's prefixes, one per 512 bytes."""
    digest = hashlib.blake2b(digest_size=8)
    chain = []
    for at in range(0, min(len(body), 512 * 256) - 511, 512):
        digest.update(body[at : at + 512])
        chain.append(int.from_bytes(digest.digest(), "big"))
    return tuple(chain)


def app(gateway: Gateway, page: Callable[[Request], Awaitable[Response]] | None = None) -> Starlette:
    """Return the ASGI application."""
    routes = [
        Route("/metrics", gateway.metrics_page),
        Route("/pythia/state", gateway.state),
        Route("/pythia/replicas", gateway.mark, methods=["POST"]),
    ]
    if page is not None:
        routes.append(Route("/pythia", page))
    application = Starlette(routes=routes, lifespan=gateway.lifespan)
    application.router.default = gateway
    application.router.redirect_slashes = False
    return application
