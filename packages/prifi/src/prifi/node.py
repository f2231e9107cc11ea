"""Runs one role as a process: config, key, link, SOCKS or exit, status page, signals, clean shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

from prifi.adversaries import MISBEHAVIOURS
from prifi.client import Client
from prifi.config import Config, read_config
from prifi.errors import BadConfig, PrifiError, Unsafe
from prifi.identity import RELAY, Identity, read_key
from prifi.relay import Relay
from prifi.socks import Exit, Pipes, SocksServer, parse_networks
from prifi.transport import Driver, dial, listen
from prifi.trustee import Trustee

log = logging.getLogger("prifi")


@dataclass(frozen=True, slots=True)
class Options:
    """How to run a role.

    Attributes:
        config: Path of the network's config file.
        key: Path of the member's key file.
        socks: Where a client listens for SOCKS.
        status: Where the status page is served; None: nowhere.
        listen: Where the relay listens; None: at its address of the config.
        delay_s: Injected one-way delay.
        loss: Injected loss.
        misbehave: Name of a misbehaviour; empty: honest.
    """

    config: Path
    key: Path
    socks: tuple[str, int] = ("127.0.0.1", 1080)
    status: tuple[str, int] | None = None
    listen: tuple[str, int] | None = None
    delay_s: float = 0.0
    loss: float = 0.0
    misbehave: str = ""


def run(role: str, options: Options) -> None:
    """Run a role until SIGTERM or SIGINT, or until it stops itself.

    Raises:
        PrifiError: The role cannot start, or has stopped for safety.
    """
    config, identity = read_config(options.config), read_key(options.key)
    place = {"relay": (RELAY,), "trustee": config.roster.trustees, "client": config.roster.clients}[role]
    if identity.name not in place:
        raise BadConfig(f"{options.key} is the key of {identity.name}, which is no {role} of {options.config}")
    if config.roster.keys[identity.name] != identity.public:
        raise BadConfig(f"{options.key} and {options.config} are of different networks")
    work = {"relay": _relay, "trustee": _trustee, "client": _client}[role]
    uvloop.run(work(config, identity, options))


def make_role(usual: Callable[..., Any], config: Config, identity: Identity, misbehave: str) -> Any:
    """Return the role's machine, honest unless a misbehaviour is asked for."""
    make = MISBEHAVIOURS[misbehave] if misbehave else usual
    return make(identity, config.roster, config.parameters)


@contextlib.asynccontextmanager
async def _life(
    role: str, machine: Any, options: Options, on_stream: Any, name: str
) -> AsyncIterator[tuple[Driver, asyncio.Future[str]]]:
    """A driver from start to end; the future gets the reason of the end, empty after a signal."""
    loop = asyncio.get_running_loop()
    over: asyncio.Future[str] = loop.create_future()

    def end(reason: str = "") -> None:
        if not over.done():
            over.set_result(reason)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    loop.set_exception_handler(lambda _, context: _crashed(context, end))
    driver = Driver(machine, options.delay_s, options.loss, on_stream, end)
    end_page = None
    if options.status is not None:
        from prifi.status import application, serve  # half of the start-up time, and not always wanted

        end_page = await serve(application(role, lambda: machine.status, loop.time), *options.status)
    log.info("%s runs", name)
    try:
        yield driver, over
        reason = await over
    finally:
        await driver.end()
        if end_page is not None:
            await end_page()
    if reason:
        raise Unsafe(reason)


def _crashed(context: dict[str, Any], end: Callable[[str], None]) -> None:
    """A mistake of the program ends the role; its text may hold secrets and is not shown."""
    error = context.get("exception")
    if isinstance(error, OSError):
        return
    place = ""
    if error is not None and error.__traceback__ is not None:
        last = error.__traceback__
        while last.tb_next is not None:
            last = last.tb_next
        place = f" in {Path(last.tb_frame.f_code.co_filename).name}:{last.tb_lineno}"
    end(f"an internal error ({type(error).__name__}{place}); please report it")


async def _relay(config: Config, identity: Identity, options: Options) -> None:
    machine = make_role(Relay, config, identity, options.misbehave)
    pipes = Pipes(machine.streams)
    host, port = options.listen or config.relay
    own_ports = {port} | ({options.status[1]} if options.status else set())
    far_end = Exit(pipes, parse_networks(config.allow), own_ports)
    async with _life("relay", machine, options, far_end.take, identity.name) as (driver, over):
        server = await listen(driver, identity, config.roster, host, port, config.udp)
        pipes.poke = driver.poke
        reaper = asyncio.ensure_future(far_end.reap())
        await asyncio.wait([over])
        driver.do(machine.stop())
        await asyncio.sleep(0.05)
        reaper.cancel()
        await pipes.close()
        server.close()


async def _trustee(config: Config, identity: Identity, options: Options) -> None:
    machine = make_role(Trustee, config, identity, options.misbehave)
    async with _life("trustee", machine, options, None, identity.name) as (driver, over):
        await _linked(driver, config, identity, over)


async def _client(config: Config, identity: Identity, options: Options) -> None:
    machine = make_role(Client, config, identity, options.misbehave)
    pipes = Pipes(machine.streams)
    socks = SocksServer(pipes, lambda: bool(machine.status.epoch))
    async with _life("client", machine, options, pipes.take, identity.name) as (driver, over):
        await socks.start(*options.socks)
        await _linked(driver, config, identity, over)
        await socks.close()


async def _linked(driver: Driver, config: Config, identity: Identity, over: asyncio.Future[str]) -> None:
    """Keep the link to the relay until the role is over."""
    link = asyncio.ensure_future(dial(driver, identity, config.roster, *config.relay, config.udp))
    waited: set[asyncio.Future[Any]] = {over, link}
    await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
    if link.done() and not link.cancelled():
        error = link.exception()
        if isinstance(error, PrifiError):
            raise error
    link.cancel()
    await asyncio.gather(link, return_exceptions=True)
