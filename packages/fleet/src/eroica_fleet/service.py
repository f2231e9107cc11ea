"""The service: doors, who answers behind each, and the process around them."""

from __future__ import annotations

import asyncio
import logging
import resource
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import sqlalchemy as sa
from eroica.errors import UnavailableError, UsageError
from eroica.fleet.records import Receipt
from eroica.wire.address import Endpoint, is_loopback, listening
from eroica.wire.guarded_server import Server, header_in
from eroica.wire.places import private_directory, write_whole
from starlette.applications import Starlette
from starlette.requests import cookie_parser
from starlette.responses import Response

from eroica_fleet import queries
from eroica_fleet.administration import Administration
from eroica_fleet.alerts import metrics
from eroica_fleet.asking import COOKIE, REPORT_BYTES, Ask, Door, Forbidden, Gate, answer, problem
from eroica_fleet.chores import ALERTS_S, SWEEP_S, Chores, sweep, vacuum
from eroica_fleet.database import migrate, open_database
from eroica_fleet.insights import FRESH_S, Asked
from eroica_fleet.intake import Busy, Ready, Writer, WrongVersion, decode_batch, prepare
from eroica_fleet.pages import Events, Pages
from eroica_fleet.pieces import PatternStore
from eroica_fleet.queries import patterns_file, table_file
from eroica_fleet.tenants import Callers, FirstTokens, first_start, note

log = logging.getLogger("eroica_fleet")

#: Batches that are unpacked and checked at the same time.
_PREPARED_AT_ONCE = 4
_UPGRADE = 426


class Service:
    """What jobs report to and people look at.

    Args:
        engine: The database, up to date.
        store: Where patterns lie.
        fresh_s: Insights that are younger are not worked out anew, seconds.
    """

    def __init__(self, engine: sa.Engine, store: PatternStore, fresh_s: float = FRESH_S) -> None:
        self.engine = engine
        self.store = store
        self.callers = Callers(engine)
        self.asked = Asked(engine, fresh_s)
        self.events = Events()
        self._administration = Administration(self.callers)
        self._pages = Pages(self.callers)
        self._writer = Writer(engine)
        self._preparing = asyncio.Semaphore(_PREPARED_AT_ONCE)

    def application(self) -> Starlette:
        """The ASGI application."""
        gate = Gate(self.engine, self.callers)
        return Starlette(routes=[gate.route(door) for door in self.doors()])

    def close(self) -> None:
        """Enter what waits, and let go of the database."""
        self._writer.close()
        self.engine.dispose()

    def doors(self) -> Sequence[Door]:
        """All there are."""
        return (
            Door("/v1/reports", "POST", "report", self._report, REPORT_BYTES, at_once=True),
            Door("/v1/runs", "GET", "read", _told(queries.list_runs)),
            Door("/v1/runs/{run_id:int}", "GET", "read", _told(queries.course)),
            Door("/v1/runs/{run_id:int}/windows/{window_id:int}", "GET", "read", _told(queries.one_verdict)),
            Door("/v1/runs/{run_id:int}/windows/{window_id:int}/standstill", "GET", "read", _standstill),
            Door("/v1/alerts", "GET", "read", _told(queries.alert_lines)),
            Door("/v1/tables/{name}", "GET", "read", table_file),
            Door("/v1/events", "GET", "read", self.events.follow, at_once=True),
            Door("/metrics", "GET", "read", lambda ask: metrics(ask, self.asked.insights(ask.caller))),
            *self.asked.doors(),
            Door("/v1/runs/{run_id:int}/windows/{window_id:int}/patterns", "GET", "read", self._patterns),
            Door("/v1/sweep", "POST", "operate", self._sweep),
            *self._administration.doors(),
            *self._pages.doors(),
            Door("/healthz", "GET", None, self._health),
        )

    async def _report(self, ask: Ask) -> Response:
        """Take a batch; answered when it is on disk."""
        if ask.caller.project_id is None:
            raise Forbidden("the operator's token reports nothing; use one of a project")
        async with self._preparing:
            try:
                ready = await asyncio.to_thread(self._prepared, ask.body, ask.caller.project_id)
            except WrongVersion as error:
                return problem(_UPGRADE, str(error))
        try:
            entered = await asyncio.wrap_future(self._writer.submit(ready))
        except Busy:
            return problem(503, "too many reports wait to be stored", {"retry-after": "2"})
        for path in entered.obsolete:
            await asyncio.to_thread(self._remove, path)
        return _packed(entered.receipt)

    def _prepared(self, body: bytes, project_id: int) -> Ready:
        return prepare(decode_batch(body), project_id, self.store)

    def _remove(self, path: str) -> None:
        try:
            self.store.remove(path)
        except OSError as error:
            log.warning("a file of patterns stays behind: %s", error)

    def _patterns(self, ask: Ask) -> Response:
        return patterns_file(ask, self.store)

    def _sweep(self, ask: Ask) -> Response:
        """Remove what is due, and give its room back to the disk."""
        swept = sweep(ask.engine, self.store)
        vacuum(ask.engine)
        note(ask.engine, ask.caller, "swept", str(swept), ask.address)
        return answer(swept)

    def _health(self, ask: Ask) -> Response:
        """Whether the database answers."""
        with ask.engine.connect() as connection:
            connection.execute(sa.select(sa.literal(1)))
        return answer({"ok": True})


def _told(question: Callable[[Ask], object]) -> Callable[[Ask], Response]:
    """A question as a handler that answers in JSON."""
    return lambda ask: answer(question(ask))


def _standstill(ask: Ask) -> Response:
    return Response(queries.one_standstill(ask), media_type="application/json")


def _packed(receipt: Receipt) -> Response:
    return Response(msgspec.msgpack.encode(receipt), media_type="application/msgpack")


#: Requests that are being answered when we are told to end may take so long, seconds.
_GRACE_S = 10
#: Connections of clients with a token, and descriptors that everything else needs.
_MOST_CONNECTIONS, _OTHER_FILES = 4096, 400
#: A page waits at most so long for a thread that works out insights, each time that it was at the database, seconds.
_SWITCH_S = 0.0005


class Plan(NamedTuple):
    """How to serve.

    Attributes:
        listen: Where.
        data: Our own directory: the first token, and by default database and patterns.
        database: URL, "" for SQLite in `data`.
        patterns: URL or directory, "" for one in `data`.
        certificate: PEM file with the certificate chain, None for plain HTTP.
        key: PEM file with its key.
        plain: Plain HTTP is meant even where others may listen: something before us speaks TLS.
        alerts_s: Pause between two looks for alerts, seconds.
        sweep_s: Pause between two sweeps of what is to go, seconds.
    """

    listen: Endpoint
    data: Path
    database: str = ""
    patterns: str = ""
    certificate: Path | None = None
    key: Path | None = None
    plain: bool = False
    alerts_s: float = ALERTS_S
    sweep_s: float = SWEEP_S


def check(plan: Plan) -> None:
    """Find out before anything is made.

    Raises:
        UsageError: Tokens would travel in clear, or certificate and key do not fit together.
    """
    if (plan.certificate is None) != (plan.key is None):
        raise UsageError("--tls-cert and --tls-key go together")
    if plan.certificate is not None and plan.key is not None:
        try:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(plan.certificate, plan.key)
        except (OSError, ssl.SSLError) as error:
            raise UsageError(f"certificate and key cannot be used: {error}") from None
    elif not is_loopback(plan.listen.host) and not plan.plain:
        raise UsageError(
            f"tokens would travel in clear to {plan.listen.host}; give --tls-cert and --tls-key, or --plain-http where "
            "a proxy before the service speaks TLS"
        )


def make_service(plan: Plan) -> tuple[Service, bool]:
    """The service, and whether this is its very first start: then its first tokens lie in `data`.

    Raises:
        EroicaError: Database or place for patterns cannot be used.
        OSError: `data` cannot be written.
    """
    private_directory(plan.data)
    engine = open_database(plan.database or f"sqlite:///{plan.data.absolute() / 'fleet.db'}")
    migrate(engine)
    store = PatternStore(plan.patterns or str(plan.data.absolute() / "patterns"))
    tokens = first_start(engine, lambda made: _write_down(plan.data, made))
    return Service(engine, store, min(FRESH_S, plan.alerts_s)), tokens is not None


def _write_down(data: Path, made: FirstTokens) -> None:
    for name, token in made._asdict().items():
        write_whole(data / f"{name}.token", f"{token}\n".encode(), on_disk=True)


def serve(plan: Plan, ready: Callable[[str, bool], None]) -> None:
    """Serve until SIGTERM or SIGINT.

    Args:
        plan: How.
        ready: Told our URL, and whether this is the first start, once we listen.

    Raises:
        EroicaError: We cannot begin.
    """
    check(plan)
    sys.setswitchinterval(_SWITCH_S)
    try:
        listener = listening(plan.listen)
    except OSError as error:
        raise UnavailableError(f"cannot listen at {plan.listen.host}:{plan.listen.port}: {error.strerror}") from None
    with listener:
        try:
            service, is_first = make_service(plan)
        except OSError as error:
            raise UnavailableError(f"--data {plan.data} cannot be used: {error}") from None
        chores = Chores(service.engine, service.store, service.asked, plan.alerts_s, plan.sweep_s)
        try:
            asyncio.run(_run(service, plan, listener, lambda url: ready(url, is_first)))
        finally:
            chores.close()
            service.close()


async def _run(service: Service, plan: Plan, listener: socket.socket, ready: Callable[[str], None]) -> None:
    host, port = listener.getsockname()[:2]
    url = Endpoint(host, port).url
    server = Server(
        service.application(),
        lambda words: _shows_token(service, words),
        plan.certificate,
        plan.key,
        timeout_graceful_shutdown=_GRACE_S,
        limit_concurrency=_connections(),
    )

    def end() -> None:
        """Answer what is asked, then stop."""
        service.events.close()  # pages that follow would hold us up
        server.should_exit = True

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started and not serving.done():
        await asyncio.sleep(0.01)
    if server.started:
        ready(url.replace("http://", "https://") if plan.certificate else url)
    await serving


def _connections() -> int:
    """Allow as many descriptors as the host does, and return how many of them may be connections."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return _MOST_CONNECTIONS if most < 0 else max(min(_MOST_CONNECTIONS, most - _OTHER_FILES), most // 2)


def _shows_token(service: Service, words: bytes) -> bool:
    """Whether the first words of a connection carry a token or cookie that was given out."""
    given = header_in(words, b"authorization").decode("latin-1")
    cookies: dict[str, str] = cookie_parser(header_in(words, b"cookie").decode("latin-1"))
    return service.callers.is_given_out(given.partition(" ")[2], cookies.get(COOKIE, ""))
