"""The service as a process: database brought up to date, first token made, socket opened, chores beside it."""

from __future__ import annotations

import asyncio
import logging
import resource
import signal
import socket
import ssl
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import uvicorn
from starlette.requests import cookie_parser
from eroica.errors import UnavailableError, UsageError
from eroica.wire.files import write_secret
from eroica.wire.guarded_server import IsKnown, Server, config_for, header_in
from eroica.wire.network import Endpoint, is_loopback, listening
from eroica.wire.places import private_directory

from eroica_fleet.asking import COOKIE
from eroica_fleet.chores import ALERTS_S, SWEEP_S, Chores
from eroica_fleet.database import migrate, open_database
from eroica_fleet.insights.ask import FRESH_S
from eroica_fleet.patterns import PatternStore
from eroica_fleet.service import Service
from eroica_fleet.tenants import FirstTokens, first_start

log = logging.getLogger("eroica_fleet")

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
        write_secret(data / f"{name}.token", f"{token}\n".encode())


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
    config = config_for(
        service.application(),
        plan.certificate,
        plan.key,
        timeout_graceful_shutdown=_GRACE_S,
        limit_concurrency=_connections(),
    )
    server = _Server(config, lambda words: _shows_token(service, words), service.events.close)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.end)
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


class _Server(Server):
    """A guarded server that is ended by signals."""

    def __init__(self, config: uvicorn.Config, is_known: IsKnown, before: Callable[[], None]) -> None:
        super().__init__(config, is_known)
        self._before = before

    def end(self) -> None:
        """Answer what is asked, then stop."""
        self._before()  # pages that follow would hold us up
        self.should_exit = True
