"""`python -m eroica.collector`: the collector of one job, started by `eroica run` or by the first agent."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import sys
from collections.abc import Coroutine, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from eroica.archive.store import Store
from eroica.collector.child_processes import Pages, Reporting
from eroica.collector.ledger import read_history
from eroica.collector.listening_sockets import Doors, former_door, former_inside, named_door
from eroica.collector.service import Collector
from eroica.collector.windows import Analyze
from eroica.errors import EroicaError
from eroica.model.verdict import Verdict
from eroica.settings import Settings, load_settings
from eroica.wire.logs import log_to
from eroica.wire.places import Places, places, private_directory

if TYPE_CHECKING:
    from eroica.collector.telemetry import Telemetry

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


class _Told(Protocol):
    async def close(self, patience_s: float) -> None: ...


def _listeners(where: Places, collector: Collector, settings: Settings) -> Iterator[_Told]:
    """Make what is told of verdicts, as far as settings ask for it; clients and SDKs are only loaded then."""
    note, listen = collector.windows.ledger.note, collector.listeners.append
    if settings.webhook_url:
        from eroica.collector.webhook import Webhook

        webhook = Webhook(where.job, settings, note, counts=collector.messages)
        webhook.notices.resume(collector.windows.ledger.verdicts)
        listen(webhook.judged)
        yield webhook
    if settings.otlp_endpoint and (telemetry := _telemetry(where, collector, settings)) is not None:
        listen(telemetry.judged)
        yield telemetry
    if settings.trainjob_status:
        from eroica.collector.trainjob import TrainJob

        trainjob = TrainJob(os.environ, collector.status, note)
        listen(trainjob.judged)
        yield trainjob
    if settings.pages:
        pages = Pages(where.run, note)
        listen(pages.judged)
        yield pages
    if settings.fleet:
        roll = collector.windows.roll  # there are workers, and as far as their agents know, the verdict is made here
        yield Reporting(where, note, lambda: bool(roll) and not roll.waiting(collector.clock()))


def _telemetry(where: Places, collector: Collector, settings: Settings) -> Telemetry | None:
    """The export to OpenTelemetry; None, and a note, where it cannot be."""
    try:
        from eroica.collector.telemetry import Telemetry

        return Telemetry(where.job, where.host, settings.otlp_endpoint, collector.status, collector.pace.history)
    except ImportError as error:
        extra = "otel-grpc" if "grpc" in (error.name or "") else "otel"
        why = f"is missing ({error.name}); pip install 'eroica[{extra}]'"
    except Exception as error:  # noqa: BLE001 - its SDK reads variables of the user's; a job is watched without it
        why = f"does not start: {type(error).__name__}: {error}"[:250]
    collector.windows.ledger.note(f"otlp_endpoint: OpenTelemetry {why}")
    return None


async def _serve(where: Places, settings: Settings) -> None:
    died = os.environ.get("EROICA_RESUME")
    door = named_door(os.environ) or (former_door(where.run, where.host) if died else None)
    former = former_inside(where.run, where.host) if died else None
    token = secrets.token_urlsafe(32) if door is None else door[1]
    page = secrets.token_urlsafe(32) if former is None else former[1]
    collector = Collector(where.job, Store(where.run), settings, token, _analyze, page=page)
    if died:
        collector.resume(read_history(where.run, died))
    told = list(_listeners(where, collector, settings))
    doors = Doors(collector, where.host)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, collector.interrupt)
    try:
        await doors.open(door and door[0], former and former[0])
        if await _unless(doors.elsewhere, collector.run()):
            closing = collector.parts.call_async("close", PARTING_S)
            farewells = (collector.bid_farewell(), closing, *(one.close(PARTING_S) for one in told))
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
