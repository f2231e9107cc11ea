"""The gateway: an OpenAI-compatible proxy that passes bytes through and decides who goes first, and where."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from prometheus_client import generate_latest
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from yarl import URL

from pythia import bodies
from pythia.bodies import CHARS, Answer, Counts, chain, decoded, prompt_texts, while_client_stays
from pythia.dispatcher import Arrival, Dispatcher
from pythia.errors import EngineError, PythiaError, Refused
from pythia.metrics import Metrics
from pythia.profile import Profiles
from pythia.records import Job, Step
from pythia.replicas import Processes, hints, probe
from pythia.schedule import Action, Replica, Scaler, Scheduler
from pythia.settings import REACTIVE, Policy, Settings
from pythia.settings import Replica as ReplicaSettings
from pythia.templates import Pieces, pieces

log = logging.getLogger("pythia")
#: Paths whose requests are scheduled; everything else goes straight to a replica.
GENERATING = ("/v1/chat/completions", "/v1/completions", "/v1/responses")
#: Headers of one connection; `expect` is answered by our own server.
HOP_BY_HOP = {
    b"connection", b"expect", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te",
    b"trailer", b"transfer-encoding", b"upgrade",
}  # fmt: skip
#: Headers of a request that are not passed on.
DROPPED = HOP_BY_HOP | {b"content-length", b"host", *bodies.HEADERS.values(), bodies.FINAL_HEADER}
#: Headers that the HTTP client would add by itself.
OWN_HEADERS = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
#: Seconds for which an idle connection to an engine is used again. Servers close idle ones after 1 s and more; a
#: request that meets the closing one would fail, or run twice if it were tried again.
REUSE_S = 0.5
#: Replicas that are tried if connecting fails; nothing was sent then.
TRIES = 3
#: Bytes of a prompt and its answer from which on they are read in a thread, so that other requests do not wait; also
#: the longest line of an answer's head.
LONG = 1 << 16
TICK_S = 0.5
SAVE_S = 30.0


@dataclass(eq=False)
class _Exchange:
    """A request on its way; `fields` are the members of its body, if it is a scheduled one in JSON."""

    scope: Scope
    body: bytes
    fields: dict[str, msgspec.Raw]
    generating: bool
    job: Job
    arrival: Arrival | None


class Gateway:
    """One gateway process."""

    def __init__(self, settings: Settings, profiles: Profiles | None = None) -> None:
        self.settings = settings
        acting = msgspec.structs.replace(settings, policy=REACTIVE) if settings.dry_run else settings
        self.profiles = profiles or Profiles.load(Path(settings.profiles), settings.idle_s)
        self.dispatcher = Dispatcher(acting, self.profiles)
        self.scheduler = self.dispatcher.scheduler
        self.policy: Policy = acting.policy
        self.shadow = Scheduler(settings.policy, settings)  # what a dry run would have done, with the same replicas
        self.shadow.replicas = self.scheduler.replicas
        self.metrics = Metrics()
        self.processes = Processes()
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
                self._add(replica.url.rstrip("/"), model, replica)

    def _add(self, name: str, model: str, described: ReplicaSettings, state: str = "ready") -> Replica:
        replica = Replica(name, model, described.slots, described.kv_tokens, described.kind, state, url=name)
        self.scheduler.replicas[name] = replica
        return replica

    @property
    def now(self) -> float:
        """Seconds since the gateway began."""
        return time.monotonic() - self.started

    # -- life ---------------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """Run the background work while the server runs; save what was learned at its end."""
        s = self.settings
        self.client = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=REUSE_S), cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=s.connect_s, sock_read=s.read_s),
            skip_auto_headers=OWN_HEADERS, auto_decompress=False, max_line_size=LONG, max_field_size=LONG,
        )  # fmt: skip
        self.spawn(self._tick_forever())
        try:
            yield
        finally:
            for task in list(self.tasks):
                task.cancel()
            await asyncio.gather(*self.tasks, return_exceptions=True)
            await self.processes.stop_all()
            await self.client.close()
            await self._save()
            if self.log_file:
                self.log_file.close()

    async def _save(self) -> None:
        try:
            await asyncio.to_thread(self.profiles.write, self.profiles.encode(), Path(self.settings.profiles))
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
                self._tick()
                if self.now - saved >= SAVE_S:
                    saved = self.now
                    await self._save()
            except Exception:
                log.exception("the gateway's clock failed once; it goes on")

    def _tick(self) -> None:
        now = self.now
        self._send_values(self.dispatcher.expire(now), now)
        replicas = list(self.scheduler.replicas.values())
        self.spawn(probe(replicas, self.client))
        for name in self.processes.ended({r.name for r in replicas if r.state == "starting"}):
            log.error("engine %s has ended by itself", name)
            self.scheduler.replicas.pop(name, None)
        for workflow, reason in self.profiles.changes:
            log.warning("workflow %r has changed (%s); served reactively until it is known again", workflow, reason)
            self.metrics.changes.labels(workflow).inc()
        self.profiles.changes.clear()
        projected = self.dispatcher.projected()
        if self.policy.scale != "off":
            for action in self.scaler.decide(self.scheduler, projected, now):
                self._scale(action)
        self.pump()
        size = sum(r.kv_tokens for r in replicas)
        used = sum(r.reserved for r in replicas) / size if size else 0.0
        running = sum(len(r.active) for r in replicas)
        self.loads.append((now, running + len(self.scheduler.waiting), used, sum(projected.values())))

    def _scale(self, action: Action) -> None:
        log.info("%s %s: %s", action.kind, action.name, action.reason)
        if action.kind == "start":
            self.spawn(self._start(action))
        elif action.kind == "stop":
            self.scheduler.replicas.pop(action.name, None)
            self.spawn(self.processes.stop(action.name))

    async def _start(self, action: Action) -> None:
        launch = self.settings.models[action.model].launch
        assert launch is not None
        replica = self._add(action.name, action.model, launch.replica, "starting")
        try:
            replica.url = await self.processes.start(action.name, launch, self.client)
        except EngineError as error:
            log.error("%s", error)
            await asyncio.sleep(5.0)  # not at once again
            self.scheduler.replicas.pop(action.name, None)
            return
        replica.state = "ready"
        self.pump()

    # -- requests -----------------------------------------------------------------------------------------------------

    def queue_of(self, model: str) -> str:
        """Return the configured model that serves a requested one."""
        known = self.settings.models
        return model if model in known else "*" if "*" in known else next(iter(known))

    def pump(self) -> None:
        """Dispatch what can be dispatched."""
        for job, replica in self.scheduler.take(self.now):
            future = self.futures.pop(job.number, None)
            if future is None or future.done():
                self.scheduler.finish(job)
            else:
                future.set_result(replica)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        try:
            await self._serve(scope, receive, send)
        except ClientDisconnect:
            self.metrics.requests.labels("gone").inc()
        except Refused as refused:
            told = {"message": str(refused), "type": refused.kind, "code": refused.status}
            headers = {"retry-after": str(max(1, math.ceil(refused.retry_s)))} if refused.retry_s is not None else None
            self.metrics.requests.labels(f"{refused.status // 100}xx").inc()
            await JSONResponse({"error": told}, refused.status, headers)(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        generating = scope["method"] == "POST" and scope["path"].rstrip("/") in GENERATING
        body = await self._body(Request(scope, receive))
        readable = generating and b"content-encoding" not in headers
        fields = (decoded(body, dict[str, msgspec.Raw]) or {}) if readable else {}
        ids = bodies.find(fields, headers) if generating else None
        model = decoded(fields.get("model", b""), str) or ""
        prompt = round(len(body) / self.chars.get(model, CHARS)) if generating else 0
        names = ("max_completion_tokens", "max_tokens", "max_output_tokens")
        limits = (decoded(fields.get(name, b""), int) for name in names)
        most = next((max(0, limit) for limit in limits if limit), None)
        arrival: Arrival | None = None
        if ids is not None:
            tenant = self.profiles.tenant(headers.get(b"authorization", headers.get(b"x-api-key", b"")))
            arrival = self.dispatcher.arrive(ids, tenant, self.queue_of(model), prompt, most, self.now)
        job = arrival.job if arrival else self.dispatcher.plain(self.queue_of(model), prompt, most, self.now)
        if self.policy.route == "prefix":
            job.chain = chain(body)
        if self.settings.dry_run:
            self._would(job, arrival)
        x = _Exchange(scope, body, fields, generating, job, arrival)
        step: Step | None = None
        try:
            async with while_client_stays(receive):
                answer = await self._forward(x, send)
            if answer is not None:
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                self.scheduler.finish(job)  # its slot is free while the answer is read
                self.pump()
                step = await self._read(answer, x) if generating and answer.status < 300 else None
        finally:
            if arrival is not None:
                self._depart(arrival, step)
            else:
                self.scheduler.finish(job)
            self.futures.pop(job.number, None)
            self.pump()

    def _name(self, key: str) -> str:
        """Return the salted name under which an engine knows a prefix."""
        return hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8, key=self.profiles.salt).hexdigest()

    async def _body(self, request: Request) -> bytes:
        body, most = bytearray(), self.settings.most_body_bytes
        async for chunk in request.stream():
            body += chunk
            if len(body) > most:
                raise Refused(f"the body exceeds {most:,} bytes (most_body_bytes)", 413)
        return bytes(body)

    async def _place(self, job: Job, generating: bool) -> Replica:
        """Wait for a replica."""
        mine = [r for r in self.scheduler.replicas.values() if r.model == job.model]
        starts = self.settings.models[job.model].launch is not None and self.policy.scale != "off"
        if not starts and all(r.state == "sick" for r in mine):
            raise Refused(f"no engine for model {job.model!r} answers; is it running?", 503, "engine_unavailable", 2)
        if not generating and mine:
            return min(mine, key=lambda r: (r.state != "ready", len(r.active)))
        if len(self.scheduler.waiting) >= self.settings.most_waiting:
            raise Refused("too many requests wait (most_waiting)", 503, "overloaded", 5)
        if job.first and self.settings.refuse_beyond_limit:
            slots = sum(r.slots for r in self.scheduler.ready(job.model))
            ahead = sum(j.first for j in self.scheduler.waiting.values() if j.model == job.model)
            waits_s = ahead * self.dispatcher.retention.step_s / slots if slots else 0.0
            if waits_s > self.settings.limit_s:
                message = f"a first step would wait {waits_s:.0f} s, the limit is {self.settings.limit_s:g} s"
                raise Refused(message, 429, "overloaded", waits_s - self.settings.limit_s)
        future: asyncio.Future[Replica] = asyncio.get_running_loop().create_future()
        self.futures[job.number] = future
        self.scheduler.submit(job)
        self.pump()
        replica = await future
        self.metrics.wait.observe(self.now - job.arrived)
        return replica

    async def _forward(self, x: _Exchange, send: Send) -> Answer | None:
        """Send a request to a replica and pass its answer on; another replica is tried if one cannot be reached.

        Returns:
            The answer, if it was complete.
        """
        for attempt in range(1, TRIES + 1):
            replica = await self._place(x.job, x.generating)
            if x.arrival is not None:
                self.prefetch(x.arrival)
            try:
                async with self._request(x, replica) as response:
                    return await self._pass(response, send, x.job)
            except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
                replica.state = "sick"
                log.warning("replica %s cannot be reached (%s)", replica.name, type(error).__name__)
                self.scheduler.finish(x.job)
                if attempt == TRIES:
                    raise Refused("the engine cannot be reached", 502, "engine_unavailable", 2) from error
            except TimeoutError as error:
                message = f"the engine sent nothing for {self.settings.read_s:g} s (read_s)"
                raise Refused(message, 504, "engine_timeout") from error
            except aiohttp.ClientError as error:
                message = f"the engine broke the connection before it answered ({type(error).__name__})"
                raise Refused(message, 502, "engine_error") from error
        return None

    def _request(self, x: _Exchange, replica: Replica) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        body, scope = x.body, x.scope
        if x.fields and x.arrival is not None:
            add: dict[str, object] = {}
            if not self.settings.dry_run:
                score = self.scheduler.score(x.job)
                add = hints(replica.kind, score, x.arrival.prediction, x.job, x.fields, self._name)
            remove = (bodies.MEMBER,) if bodies.MEMBER in x.fields else ()
            if add or remove:
                body = bodies.rewrite(x.fields, remove, add)
            if add:
                self.metrics.hints.labels(replica.kind).inc()
        named = b",".join(v for k, v in scope["headers"] if k == b"connection").lower()
        drop = DROPPED | {name.strip() for name in named.split(b",")}
        try:
            headers = [(k.decode(), v.decode()) for k, v in scope["headers"] if k not in drop]
            query = b"?" + scope["query_string"] if scope["query_string"] else b""
            url = URL(replica.url + (scope["raw_path"] + query).decode(), encoded=True)
        except ValueError as error:
            raise Refused(f"the target or a header cannot be passed on ({error})") from error
        return self.client.request(scope["method"], url, headers=headers, data=body or None, allow_redirects=False)

    async def _pass(self, response: aiohttp.ClientResponse, send: Send, job: Job) -> Answer | None:
        """Pass an answer on, each chunk at once; return what was counted, or None if it was cut off."""
        streamed = response.headers.get("content-type", "").startswith("text/event-stream")
        answer = Answer(response.status, streamed, response.headers.get("content-encoding", ""))
        headers = [(k, v) for k, v in response.raw_headers if k.lower() not in HOP_BY_HOP]
        self.metrics.requests.labels(f"{response.status // 100}xx").inc()
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        try:
            async for chunk in response.content.iter_any():
                if not answer.size:
                    job.first_byte = self.now
                    self.metrics.ttft.observe(self.now - job.arrived)
                answer.feed(chunk)
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        except (aiohttp.ClientError, TimeoutError) as error:
            # No clean end: without a last chunk the server cuts the connection, as the engine did.
            log.warning("replica %s broke an answer off (%s)", job.replica, type(error).__name__)
            if streamed and not answer.encoding:
                message = {"error": {"message": "the engine broke the answer off", "type": "engine_error", "code": 502}}
                event = b"\n\ndata: " + json.dumps(message).encode() + b"\n\n"
                await send({"type": "http.response.body", "body": event, "more_body": True})
            return None
        return answer

    async def _read(self, answer: Answer, x: _Exchange) -> Step | None:
        """Count an answer's tokens; return the completed step of a run, if it is one."""
        job, arrival = x.job, x.arrival
        arguments = answer, x.fields if arrival is not None else {}
        long = len(x.body) + answer.size > LONG
        counts, *found = await asyncio.to_thread(self._look, *arguments) if long else self._look(*arguments)
        prompt = counts.prompt or job.prompt
        model = decoded(x.fields.get("model", b""), str) or ""
        if counts.prompt and (model in self.chars or len(self.chars) < 256):
            ratio = len(x.body) / counts.prompt
            self.chars[model] = self.chars.get(model, ratio) * 0.9 + ratio * 0.1
        self.metrics.prompt.inc(prompt)
        self.metrics.cached.inc(counts.cached)
        if arrival is None:
            return None
        ids = arrival.ids
        return Step(
            ids.workflow_type_id, ids.workflow_id, ids.agent_id, round(job.arrived, 6), counts.output, prompt,
            round(self.now - job.arrived, 6), job.model, arrival.run.type_key[0], ids.final, *found,
        )  # fmt: skip

    def _look(self, answer: Answer, fields: dict[str, msgspec.Raw]) -> tuple[Counts, Pieces, Pieces]:
        """Count an answer, and hash its lines and those of the prompt in `fields`."""
        counts, salt = answer.read(), self.profiles.salt
        said = [counts.text] if fields else []
        return counts, pieces(prompt_texts(fields), salt), pieces(said, salt)

    def _depart(self, arrival: Arrival, step: Step | None) -> None:
        now, job, prediction = self.now, arrival.job, arrival.prediction
        self._send_values(self.dispatcher.depart(arrival, step, now), now)
        if step is None:
            return
        workflow, role = self._label(arrival)
        self.metrics.steps.labels(workflow, role).inc()
        if prediction.bound is not None:
            self.metrics.bounds.labels(workflow).inc()
            self.metrics.missed.labels(workflow).inc(step.output_tokens > prediction.bound)
        if arrival.place and arrival.place - 1 < len(arrival.run.hoped):
            expected, _, on_path = arrival.run.hoped[arrival.place - 1]
            if on_path:
                self.metrics.hits.labels(workflow, str(expected == arrival.ids.agent_id).lower()).inc()
        if self.log_file:
            bare = msgspec.structs.replace(step, pieces=(), answer=())
            self.log_file.write(msgspec.json.encode(bare) + b"\n")
        self.history.append(
            {"run": self._name(arrival.run.key)[:8], "role": role, "replica": job.replica, "arrived": job.arrived,
             "first": job.first_byte if job.first_byte >= 0 else now, "ended": now}
        )  # fmt: skip

    def _label(self, arrival: Arrival) -> tuple[str, str]:
        """Return names for metrics; workflow types with few runs, which clients may invent, are "other"."""
        profile = self.profiles.of(arrival.run)
        if profile is None or profile.thin:
            return "other", "other"
        role = arrival.ids.agent_id if arrival.ids.agent_id in profile.lengths else "other"
        return arrival.ids.workflow_type_id, role

    def _would(self, job: Job, arrival: Arrival | None) -> None:
        """Say what the configured policy would have done."""
        full = sum(not r.fits(job, self.settings.epsilon) for r in self.shadow.ready(job.model))
        chosen = self.shadow.choose(job)
        self.metrics.dry.labels("wait" if chosen is None else "send").inc()
        would = f"send to {chosen.name}, priority {self.scheduler.score(job):.2f}" if chosen else "wait"
        what = "no identifiers"
        if arrival is not None:
            p = arrival.prediction
            following = f"{p.next_role or 'the end'} next ({p.next_probability:.0%})" if p.on_path else "no prediction"
            what = f"{' '.join(self._label(arrival))}, bound {p.bound}, {following}"
        log.info("dry run: %s; would %s; %d replicas are full", what, would, full)

    def _send_values(self, groups: set[str], now: float) -> None:
        """Tell this package's engines which prefixes are worth keeping."""
        if self.policy.cache != "pythia" or not groups:
            return
        mine = [r for r in self.scheduler.replicas.values() if r.kind == "pythia" and r.state == "ready"]
        if mine:
            values = {self._name(group): round(self.dispatcher.retention.value(group, now), 4) for group in groups}
            for replica in mine:
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
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):  # a hint may be lost
            async with self.client.post(f"{replica.url}/pythia/hints", json=hint, timeout=aiohttp.ClientTimeout(2.0)):
                pass

    # -- own pages ----------------------------------------------------------------------------------------------------

    async def metrics_page(self, request: Request) -> Response:
        """Answer GET /metrics."""
        m, waiting, expected = self.metrics, self.scheduler.waiting.values(), self.dispatcher.projected().items()
        m.waiting.set(len(waiting))
        for gauge in (m.in_flight, m.reserved, m.replicas):
            gauge.clear()
        for model in self.settings.models:
            mine = [r for r in self.scheduler.replicas.values() if r.model == model]
            for r in mine:
                m.in_flight.labels(r.name).set(len(r.active))
                m.reserved.labels(r.name).set(r.reserved)
            m.actual.labels(model).set(sum(j.model == model for j in waiting) + sum(len(r.active) for r in mine))
            m.expected.labels(model).set(sum(v for k, v in expected if self.queue_of(k) == model))
            for state in ("starting", "ready", "draining", "sick", "held"):
                m.replicas.labels(model, state).set(sum(r.state == state for r in mine))
        return Response(generate_latest(m.registry), media_type="text/plain; version=0.0.4")

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


def app(gateway: Gateway, page: Callable[[Request], Awaitable[Response]]) -> ASGIApp:
    """Return the ASGI application: own pages, and the gateway for every other path."""
    routes = [
        Route("/metrics", gateway.metrics_page),
        Route("/pythia/state", gateway.state),
        Route("/pythia/replicas", gateway.mark, methods=["POST"]),
        Route("/pythia", page),
    ]
    pages = Starlette(routes=routes, lifespan=gateway.lifespan)
    own = {route.path for route in routes}

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        passed = scope["type"] == "http" and scope["path"] not in own
        await (gateway if passed else pages)(scope, receive, send)

    return serve
