"""Runs one role as a process: config, key, link, SOCKS or exit, status page, signals, clean shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

from prifi.adversaries import MISBEHAVIOURS
from prifi.client import Client
from prifi.config import Config, read_config
from prifi.errors import BadConfig, Unsafe
from prifi.identity import RELAY, Identity, read_key
from prifi.relay import Relay
from prifi.socks import Exit, Pipes, SocksServer
from prifi.transport import Driver, dial, listen
from prifi.trustee import Trustee

log = logging.getLogger("prifi")


@dataclass(frozen=True, slots=True)
class Options:
    """How to run a role: the options of its command."""

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
    make: Any = {"relay": Relay, "client": Client, "trustee": Trustee, **MISBEHAVIOURS}[options.misbehave or role]
    uvloop.run(_live(role, make(identity, config.roster, config.parameters), config, identity, options))


async def _live(role: str, machine: Any, config: Config, identity: Identity, options: Options) -> None:
    """Run a role's machine from start to end."""
    loop = asyncio.get_running_loop()
    over: asyncio.Future[str] = loop.create_future()  # why the role ends; empty after a signal

    def end(reason: str = "") -> None:
        if not over.done():
            over.set_result(reason)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    loop.set_exception_handler(lambda _, context: _crashed(context, end))
    async with contextlib.AsyncExitStack() as stack:
        pipes = Pipes(machine.streams) if role != "trustee" else None
        host, port = options.listen or config.relay
        own_ports = {port} | ({options.status[1]} if options.status else set())
        far_end = Exit(pipes, config.allow, own_ports) if pipes is not None and role == "relay" else None
        on_stream = far_end.take if far_end else pipes.take if pipes is not None else None
        driver = Driver(machine, options.delay_s, options.loss, on_stream, end)
        if options.status is not None:
            from prifi.status import application, serve  # half of the start-up time, and not always wanted

            page = application(role, lambda: machine.status, loop.time)
            stack.push_async_callback(await serve(page, *options.status))
        log.info("%s runs", identity.name)
        if far_end is not None and pipes is not None:
            server = await listen(driver, identity, config.roster, host, port, config.udp)
            stack.callback(server.close)
            pipes.poke = driver.poke
            pipes.start(far_end.reap())
            stack.push_async_callback(driver.end)
            stack.push_async_callback(pipes.close)
            await over
            driver.do(machine.stop())
        else:
            link = loop.create_task(dial(driver, identity, config.roster, *config.relay, config.udp))
            link.add_done_callback(
                lambda task: None if task.cancelled() else _crashed({"exception": task.exception()}, end)
            )
            stack.callback(link.cancel)
            stack.push_async_callback(driver.end)
            if pipes is not None:
                socks = SocksServer(pipes, lambda: bool(machine.status.epoch))
                stack.push_async_callback(socks.close)
                await socks.start(*options.socks)
            await over
    if over.result():
        raise Unsafe(over.result())


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
