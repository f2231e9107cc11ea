"""One run's reporter: looks into the run directory every second, packs what is new, sends what waits."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import httpx
import msgspec

from eroica.archive.check import MOST_JSON_BYTES
from eroica.archive.load import decode_history
from eroica.errors import InputError
from eroica.fleet.records import Beat, Points, RunFacts, WindowOrder
from eroica.fleet.reporting.packing import Packer
from eroica.fleet.reporting.sending import Sender, client_for
from eroica.fleet.reporting.spool import Spool, has_spool, now
from eroica.model.history import IterationHistory
from eroica.settings import Settings
from eroica.wire.address import read_address
from eroica.wire.codec import UNDECODABLE
from eroica.wire.messages import JobStatus, ProfileRequest
from eroica.wire.places import read_private

log = logging.getLogger("eroica.fleet")

_POLL_S = 1.0
#: After this the collector is taken for gone, and not for one that is just being started again.
_GONE_S = 10.0
_GIT_S = 5.0
#: A command waits so long for an earlier run's patterns to be packed.
_CLOSING_S = 2.0
_ASK_S = 5.0
#: Stretches of iteration times, of about a second each, in which a job may still be warming up.
_FIRST_STRETCHES = 5


class Reporter:
    """Reports one run.

    Args:
        run: The run directory.
        job: Name of the job.
        host: This host.
        settings: Tunables.
        collector: Process id of the collector; 0: nobody writes here any more.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        run: Path,
        job: str,
        host: str,
        settings: Settings,
        collector: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run = run
        self._settings = settings
        self._collector = collector
        self._clock = clock
        self._spool = Spool(run)
        self._client = client_for(settings)
        self._spool.belongs_to(whose(settings))
        self._sender = Sender(self._client, self._order)
        self._identity = (job, host)
        self._next_beat = 0.0
        self._gone_at: float | None = None if collector else -_GONE_S
        self._told_the_end = False

    def work(self) -> bool:
        """Report until the run is over and everything is handed over; False if something still waits."""
        lock = self._wait_for_lock()
        if lock is None:
            return True  # the collector is gone, and whoever has the lock goes on
        try:
            facts = self._facts()
            packer = Packer(self._spool, facts, self._settings.fleet_spool_bytes)
            while not self._spool.is_knocked() and self._spool.known_facts() == facts:
                self._once(facts, packer)
                if self._is_done():
                    self._hand_over_others()
                    return True
                if self._gave_up():
                    break
                time.sleep(_POLL_S)
            return self._spool.is_empty()
        finally:
            self._client.close()
            if lock >= 0:
                os.close(lock)

    def _wait_for_lock(self) -> int | None:
        while (lock := self._spool.claim()) is None:
            if not self._collector or not _lives(self._collector):
                return None
            self._spool.knock()
            time.sleep(_POLL_S / 5)
        self._spool.settle()
        self._spool.read()
        return lock

    def _facts(self) -> RunFacts:
        job, host = self._identity
        history = self._history()
        began = history.began if history is not None else now()
        return self._spool.facts(job, host, commit_of(os.environ), began)

    # ------------------------------------------------------------------ one round

    def _once(self, facts: RunFacts, packer: Packer) -> None:
        status = self._status()
        over = (self._run / "verdict.json").exists()
        try:
            packer.pack(status, everything=over or self._is_gone())
        except OSError as error:
            log.warning("something could not be packed: %s", error)
        final = over and not self._told_the_end
        due = self._clock() >= self._next_beat or final
        while self._sender.may and (due or self._sender.has_work(self._spool)):
            beat = self._beat(facts, status, over) if due else None
            sent = self._sender.send(self._spool, beat)
            if not sent.ok:
                return
            if beat is not None and sent.beat:
                self._beaten(facts, beat)
            due = False

    def _beat(self, facts: RunFacts, status: JobStatus | None, over: bool) -> Beat:
        state = self._spool.state(facts.run)
        hosts = None
        if status is not None and _digest(status.hosts) != state.hosts:
            hosts = status.hosts
        history = self._history()
        phase = "over" if over else status.phase if status is not None else "starting"
        return Beat(
            facts=facts,
            at=now(),
            phase=phase,
            message=status.message if status is not None else "",
            iteration=status.iteration if status is not None else 0,
            mean_ms=status.mean_ms if status is not None else None,
            best_ms=(status.best_ms if status is not None else None) or best_of(history),
            workers=len(status.workers) if status is not None else 0,
            hosts=hosts,
            points=points_after(history, state.until_s),
        )

    def _beaten(self, facts: RunFacts, beat: Beat) -> None:
        state = self._spool.state(facts.run)
        self._next_beat = self._clock() + self._settings.fleet_report_s
        self._told_the_end = beat.phase == "over"
        changed = msgspec.structs.replace(
            state,
            until_s=beat.points.at_s[-1] if beat.points.at_s else state.until_s,
            hosts=_digest(beat.hosts) if beat.hosts is not None else state.hosts,
        )
        if changed != state:
            self._spool.save_state(changed)

    def _order(self, order: WindowOrder) -> None:
        """Somebody asks for a window: the collector decides, as for anybody else."""
        address = read_address(self._run)
        if address is None:
            return
        asked = ProfileRequest(seconds=order.seconds, reason=order.reason)
        headers = {"Authorization": f"Bearer {address.token}"}
        try:
            with httpx.Client(base_url=address.url, headers=headers, timeout=_ASK_S, trust_env=False) as client:
                client.post("/v1/profile", content=msgspec.msgpack.encode(asked)).raise_for_status()
        except httpx.HTTPError as error:
            log.warning("a window that the fleet asks for was not opened: %s", type(error).__name__)

    # ------------------------------------------------------------------ the end

    def _is_gone(self) -> bool:
        """The collector ended, and no other one took its place."""
        if self._gone_at is None and not _lives(self._collector):
            self._gone_at = self._clock()
        return self._gone_at is not None and self._clock() - self._gone_at >= _GONE_S

    def _is_done(self) -> bool:
        over = self._told_the_end or (self._is_gone() and not (self._run / "verdict.json").exists())
        return over and self._spool.is_empty()

    def _gave_up(self) -> bool:
        if not self._collector:  # one try for each piece is enough: somebody waits for us
            return not self._sender.may
        return self._is_gone() and self._clock() - (self._gone_at or 0.0) > self._settings.fleet_patience_s

    def _hand_over_others(self) -> None:
        """The service is there: what other runs beside this one could not hand over goes now."""
        mine = whose(self._settings)
        for run in sorted(path for path in self._run.parent.iterdir() if path != self._run and has_spool(path)):
            with contextlib.suppress(OSError, InputError):
                if Spool(run).is_for(mine):
                    hand_over(run, self._settings)

    # ------------------------------------------------------------------ what the collector wrote

    def _status(self) -> JobStatus | None:
        try:
            return msgspec.json.decode(read_private(self._run / "status.json", MOST_JSON_BYTES), type=JobStatus)
        except (OSError, *UNDECODABLE):
            return None

    def _history(self) -> IterationHistory | None:
        try:
            return decode_history(read_private(self._run / "history.json", MOST_JSON_BYTES))
        except (OSError, InputError, *UNDECODABLE):
            return None


def hand_over(run: Path, settings: Settings, *, refused: bool = False) -> bool:
    """Hand over what still waits in a run directory whose job is over; False if something could not be, or is refused.

    Args:
        run: The run directory.
        settings: Where to.
        refused: Try what was refused once more, too.

    Raises:
        UsageError: The service's address cannot be used.
        OSError: The directory cannot be read or written.
    """
    spool = Spool(run)
    lock = spool.claim()
    if lock is None:
        return True  # its own reporter is at it
    try:
        facts = spool.known_facts()
        if facts is not None:
            Packer(spool, facts, settings.fleet_spool_bytes).pack(None, everything=True)
        if refused:
            spool.readmit()
        with client_for(settings) as client:
            sender = Sender(client)
            while sender.has_work(spool) and sender.send(spool).ok:
                pass
        return spool.is_empty() and not sender.refused
    finally:
        if lock >= 0:
            os.close(lock)


def close_run(run: Path) -> None:
    """Another run begins in this directory: what was not packed yet is, before it is forgotten.

    Raises:
        OSError: The directory cannot be read or written.
    """
    if not has_spool(run):
        return
    spool = Spool(run)
    facts = spool.known_facts()
    try:
        if facts is not None:
            Packer(spool, facts, 2**62, _CLOSING_S).pack(None, everything=True)
    finally:  # whatever could not be packed must not become the next run's
        spool.close_run()


def whose(settings: Settings) -> str:
    """A name of the service and the project that pieces are for, which tells neither."""
    return hashlib.sha256(f"{settings.fleet.rstrip('/')} {settings.fleet_token}".encode("utf-8", "replace")).hexdigest()


def points_after(history: IterationHistory | None, until_s: float, most: int = 5000) -> Points:
    """Stretches that ended after a moment, the first `most` of them."""
    if history is None:
        return Points()
    first = next((at for at, end_s in enumerate(history.at_s) if end_s > until_s), len(history.at_s))
    return Points(**{name: getattr(history, name)[first : first + most] for name in Points.__struct_fields__})


def best_of(history: IterationHistory | None) -> float | None:
    """Milliseconds that a fifth of a run's stretches stayed below, without its first ones; None for a short run."""
    means = sorted(history.mean_ms[_FIRST_STRETCHES:]) if history is not None else []
    return means[len(means) // 5] if means else None


def commit_of(environ: Mapping[str, str]) -> str:
    """Revision of the training code: `EROICA_FLEET_COMMIT`, else that of the working directory; "" if unknown."""
    given = environ.get("EROICA_FLEET_COMMIT", "")
    if given:
        return given[:100]
    try:
        asked = ["git", "rev-parse", "--short=12", "HEAD"]
        found = subprocess.run(asked, capture_output=True, timeout=_GIT_S, check=True, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError):
        return ""
    return found.stdout.decode("ascii", "replace").strip()[:100]


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _digest(hosts: tuple[str, ...]) -> str:
    return hashlib.sha256("\n".join(hosts).encode("utf-8", "replace")).hexdigest()[:16]
