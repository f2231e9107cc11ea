"""`python -m eroica.collector`: the collector of one job, started by `eroica run` or by the first agent."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import sys
import time
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from eroica.archive.store import Store
from eroica.collector.fleet import Reporting
from eroica.collector.listening_sockets import Doors, former_door, former_inside, named_door
from eroica.collector.orders import Orders
from eroica.collector.pages import Pages
from eroica.collector.resume import read_history
from eroica.collector.scraping import Scraping
from eroica.collector.service import Collector
from eroica.collector.windows import Analyze
from eroica.errors import EroicaError
from eroica.model.verdict import Verdict
from eroica.settings import Settings, load_settings
from eroica.wire.logs import log_to
from eroica.wire.places import Places, places, private_directory

if TYPE_CHECKING:
    from eroica.collector.telemetry import Telemetry
    from eroica.collector.trainjob import TrainJob
    from eroica.collector.webhook import Webhook

#: What the last verdict may take to be sent: `eroica run` waits for a second more than `FAREWELL_S` for us to end.
PARTING_S = 2.5


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
        doubted=order.doubted,
    )


async def _unless(event: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Do the work to its end; False if the event came first."""
    working, waiting = asyncio.ensure_future(work), asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({working, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
        return working.done()
    finally:
        working.cancel()
        waiting.cancel()


def _webhook(job: str, collector: Collector, settings: Settings) -> Webhook | None:
    """Make the webhook that tells verdicts, if an address is set; its HTTP client is only loaded then."""
    if not settings.webhook_url:
        return None
    from eroica.collector.webhook import Webhook

    webhook = Webhook(job, settings, collector.windows.note)
    webhook.resume(collector.windows.verdicts)
    collector.listeners.append(webhook.judged)
    return webhook


def _telemetry(where: Places, collector: Collector, settings: Settings) -> Telemetry | None:
    """Start the export to OpenTelemetry, if an endpoint is set; its SDK is only loaded then."""
    if not settings.otlp_endpoint:
        return None
    try:
        from eroica.collector.telemetry import Telemetry

        telemetry = Telemetry(where.job, where.host, settings.otlp_endpoint, collector.status, collector.pace.history)
    except ImportError as error:
        extra = "otel-grpc" if "grpc" in (error.name or "") else "otel"
        collector.windows.note(f"otlp_endpoint: OpenTelemetry is missing ({error.name}); pip install 'eroica[{extra}]'")
        return None
    except Exception as error:  # noqa: BLE001 - its SDK reads variables of the user's; a job is watched without it
        collector.windows.note(f"otlp_endpoint: OpenTelemetry does not start: {type(error).__name__}: {error}"[:300])
        return None
    telemetry.start()
    collector.listeners.append(telemetry.judged)
    return telemetry


def _trainjob(collector: Collector, settings: Settings) -> TrainJob | None:
    """The Kubeflow TrainJob that this is, if it shall be told."""
    if not settings.trainjob_status:
        return None
    from eroica.collector.trainjob import TrainJob

    trainjob = TrainJob(os.environ, collector.status, collector.windows.note)
    trainjob.start()
    collector.listeners.append(trainjob.judged)
    return trainjob


def _orders(where: Places, collector: Collector, settings: Settings, resumed: bool) -> Orders | None:
    """Make the giver of orders, if a command or an address is set; None without either."""
    if not (settings.on_verdict or settings.on_verdict_url):
        return None
    orders = Orders(
        where.job,
        where.run,
        settings,
        collector.windows.note,
        time.monotonic,
        lambda: collector.standing,
        lambda: collector.lapsed,
    )
    if resumed:
        orders.resume()
    collector.listeners.append(orders.judged)
    return orders


async def _serve(where: Places, settings: Settings) -> None:
    died = os.environ.get("EROICA_RESUME")
    door = named_door(os.environ) or (former_door(where.run, where.host) if died else None)
    former = former_inside(where.run, where.host) if died else None
    token = secrets.token_urlsafe(32) if door is None else door[1]
    page = secrets.token_urlsafe(32) if former is None else former[1]
    collector = Collector(where.job, Store(where.run), settings, token, _analyze, page=page)
    if died:
        collector.resume(read_history(where.run, died))
    webhook = _webhook(where.job, collector, settings)
    orders = _orders(where, collector, settings, bool(died))
    told = [webhook, orders, _telemetry(where, collector, settings), _trainjob(collector, settings)]
    pages = Pages(where.run, settings, collector.windows.note)
    if settings.pages:
        collector.listeners.append(pages.judged)
    metrics = Scraping(
        collector, settings, where.run, where.host, token, lambda: webhook.counts if webhook is not None else {}
    )
    collector.listeners.append(metrics.judged)
    doors = Doors(collector, where.run, where.host, token, metrics)
    reporting = Reporting(where, settings, collector.windows.note, lambda: collector.is_home)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, collector.interrupt)
    try:
        await doors.open(door and door[0], former and former[0])
        if await _unless(doors.elsewhere, collector.run()):
            partings = [one.close(PARTING_S) for one in told if one is not None]
            farewells = (collector.bid_farewell(), pages.close(PARTING_S), reporting.close(PARTING_S), *partings)
            for failure in filter(None, await asyncio.gather(*farewells, return_exceptions=True)):
                logging.error("the job's end: %r", failure)
            collector.save_status()  # what could not be sent is a note in it
    finally:
        await doors.close()
    if collector.interrupted:
        sys.exit(128 + signal.SIGTERM)


def main() -> None:
    """Serve the job named by the environment until it ends."""
    os.umask(0o077)  # what we write is the user's alone
    where = places(os.environ)
    for directory in (where.run, where.run / "log"):
        private_directory(directory)
    log_to(where.run / "log" / "collector.log")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        asyncio.run(_serve(where, load_settings()))
    except EroicaError as error:
        logging.error("the collector cannot listen: %s", error)
        sys.exit(1)
    except Exception:  # last words of a process without a terminal
        logging.exception("the collector failed")
        raise


if __name__ == "__main__":
    main()
