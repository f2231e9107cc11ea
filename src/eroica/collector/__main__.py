"""`python -m eroica.collector`: the collector of one job, started by `eroica run` or by the first agent."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import socket
from pathlib import Path

import uvicorn

from eroica.collector.service import Collector
from eroica.collector.store import Address, Store
from eroica.collector.windows import Analyze
from eroica.model.verdict import Verdict
from eroica.settings import Settings, load_settings
from eroica.wire.places import places, private_directory


def _analyze(job: str, order: Analyze, settings: Settings) -> Verdict:
    from eroica.pipeline import analyze

    return analyze(
        job,
        order.window,
        order.patterns,
        baseline=order.baseline,
        expected_workers=order.expected_workers,
        notes=order.notes,
        settings=settings,
    )


class _Server(uvicorn.Server):
    """uvicorn without its own signal handling: the collector ends when the job does."""

    def install_signal_handlers(self) -> None:
        """Leave signals alone."""


async def _serve(job: str, run: Path, settings: Settings) -> None:
    store = Store(run)
    token = secrets.token_urlsafe(32)
    collector = Collector(job, store, settings, token, _analyze)
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    config = uvicorn.Config(collector.application(), log_config=None, access_log=False, lifespan="off")
    server = _Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, collector.end_job)
    while not server.started and not serving.done():
        await asyncio.sleep(0.01)
    store.announce(Address(url=f"http://127.0.0.1:{listener.getsockname()[1]}", token=token, pid=os.getpid()))
    try:
        await collector.run()
        await collector.bid_farewell()
    finally:
        store.sign_off()
        server.should_exit = True
        await serving


def main() -> None:
    """Serve the job named by the environment until it ends."""
    where = places(os.environ)
    private_directory(where.run / "log")
    logging.basicConfig(
        filename=where.run / "log" / "collector.log", level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s"
    )
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(5)
    try:
        asyncio.run(_serve(where.job, where.run, load_settings()))
    except Exception:  # last words of a process without a terminal
        logging.exception("the collector failed")
        raise


if __name__ == "__main__":
    main()
