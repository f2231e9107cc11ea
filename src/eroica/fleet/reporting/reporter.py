"""One run's reporter: looks into the run directory every second, packs what is new, sends what waits."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx
import msgspec
import psutil

from eroica.errors import InputError
from eroica.fleet.records import Beat, RunFacts, WindowOrder
from eroica.fleet.reporting.packing import Packer, Seen, aged, beat_of, keep_last, read_history, watch
from eroica.fleet.reporting.sending import Sender, client_for
from eroica.fleet.reporting.spool import Spool, has_spool
from eroica.settings import Settings
from eroica.wire.address import read_address
from eroica.wire.messages import ProfileRequest

log = logging.getLogger("eroica.fleet")

_POLL_S = 1.0
#: After this the collector is taken for gone, and not for one that is just being started again.
_GONE_S = 10.0
_GIT_S = 5.0
#: A command waits so long for an earlier run's patterns to be packed.
_CLOSING_S = 2.0
_ASK_S = 5.0


@dataclass
class _Reported:
    """The run that is reported now, how it was last, and whether all that was there then could be packed."""

    facts: RunFacts
    packer: Packer
    seen: Seen | None = None
    is_packed: bool = True


class Reporter:
    """Reports one run.

    Args:
        run: The run directory.
        job: Name of the job.
        host: This host.
        settings: Tunables.
        collector: Process id of the collector; 0: nobody writes here any more.
    """

    def __init__(self, run: Path, job: str, host: str, settings: Settings, collector: int = 0) -> None:
        self._run = run
        self._settings = settings
        self._collector = collector
        self._spool = Spool(run)
        self._client = client_for(settings)
        self._sender = Sender(self._client, self._order)
        self._identity = (job, host)
        self._next_beat = 0.0
        self._gone_at: float | None = None if collector else -_GONE_S
        self._reported: _Reported | None = None
        self._said = ""

    def work(self) -> bool:
        """Report until the run is over and everything is handed over; False if something still waits."""
        lock = self._wait_for_lock()
        if lock is None:
            return not self._collector  # by hand: whoever has the lock is at it
        try:
            while True:
                whole = self._tried()
                if whole is not None:
                    return whole
                time.sleep(_POLL_S)
        finally:
            self._client.close()
            if lock >= 0:
                os.close(lock)

    def _wait_for_lock(self) -> int | None:
        """Claim the run: whoever has it is asked to leave, or, as a neighbor that hands it over, will do so by itself.

        Without a collector it is waited for, too: nobody comes after us. None if it takes longer than patience lasts.
        """
        while (lock := self._spool.claim()) is None:
            if not self._collector:
                return None
            if self._gave_up():
                log.warning("another process has kept %s for too long; what is there waits", self._spool.root)
                return None
            if psutil.pid_exists(self._collector):
                self._spool.next.touch()
            time.sleep(_POLL_S / 5)
        self._spool.next.unlink(missing_ok=True)
        self._spool.read()
        return lock

    # ------------------------------------------------------------------ one round

    def _tried(self) -> bool | None:
        """One round: whether everything is handed over when there is no more to do, else None.

        A full disk, or one that is away for a while, costs a round.
        """
        try:
            whole = self._round()
            if whole is None and (self._gave_up() or self._spool.next.exists()):
                if self._reported is not None and self._reported.seen is not None:
                    keep_last(self._spool, self._reported.facts, self._reported.seen)
                return self._is_left()
        except OSError as error:
            self._warn(f"nothing can be reported now: {error}")
            if not self._collector or self._gave_up() or self._spool.next.exists():
                return False  # by hand: somebody waits for us
            return None
        return whole

    def _round(self) -> bool | None:
        reported = self._reported
        if reported is None:
            self._spool.belongs_to(whose(self._settings))
            reported = self._begun(facts_of(self._spool, *self._identity))
        elif self._spool.known_facts() != reported.facts:
            return self._is_left()
        seen = watch(self._spool, reported.facts)
        while seen.next_began:
            if reported.seen is not None:
                keep_last(self._spool, reported.facts, reported.seen)
            reported = self._begun(facts_of(self._spool, *self._identity, seen.next_began))
            self._next_beat = 0.0
            seen = watch(self._spool, reported.facts)
        if reported.seen is None:
            self._spool.drop_beat(reported.facts.run)  # we tell more
        reported.seen = seen
        self._once(reported, seen)
        if not reported.is_packed:
            return None if self._collector else False  # by hand: somebody waits for us
        if self._ended(seen) and self._is_done(reported.facts):
            self._hand_over_others()
            return True
        return None

    def _begun(self, facts: RunFacts) -> _Reported:
        self._reported = _Reported(facts, Packer(self._spool, facts))
        return self._reported

    def _is_left(self) -> bool:
        """Another reporter goes on, or nothing waits."""
        is_packed = self._reported is None or self._reported.is_packed
        return self._spool.next.exists() or (is_packed and self._spool.is_empty())

    def _warn(self, text: str) -> None:
        if text != self._said:  # it comes again every second
            log.warning("%s", text)
        self._said = text

    def _once(self, reported: _Reported, seen: Seen) -> None:
        """Pack and send what is there."""
        facts = reported.facts
        try:
            reported.packer.pack(seen.status, everything=self._ended(seen))
            reported.is_packed = True
        except OSError as error:
            reported.is_packed = False
            self._warn(f"something could not be packed: {error}")
        due = time.monotonic() >= self._next_beat or (self._ended(seen) and not self._is_told(facts, seen))
        while self._sender.may and (due or self._sender.has_work(self._spool)):
            beat = self._beat(facts, seen) if due else None
            sent = self._sender.send(self._spool, beat)
            if not sent.ok:
                return
            if beat is not None and sent.beat:
                self._next_beat = time.monotonic() + self._settings.fleet_report_s
                self._spool.taken(beat, seen.signature)
            due = False

    def _beat(self, facts: RunFacts, seen: Seen) -> Beat:
        beat = beat_of(facts, seen, self._spool.state(facts.run))
        return aged(beat, seen) if self._is_gone() else beat

    def _order(self, order: WindowOrder) -> None:
        """Somebody asks for a window: the collector decides, as for anybody else.

        The next beat says that it was heard of; where the collector does not take it, it is told once more.
        """
        facts, address = self._spool.known_facts(), read_address(self._run)
        if facts is None or address is None or not (self._collector and psutil.pid_exists(self._collector)):
            return  # another collector may be another run's
        state = self._spool.state(facts.run)
        if order.order in state.heard:
            return
        asked = ProfileRequest(seconds=order.seconds, reason=order.reason)
        headers = {"Authorization": f"Bearer {address.token}"}
        try:
            with httpx.Client(base_url=address.url, headers=headers, timeout=_ASK_S, trust_env=False) as client:
                answer = client.post("/v1/profile", content=msgspec.msgpack.encode(asked))
        except httpx.HTTPError as error:
            log.warning("a window that the fleet asks for was not opened: %s", type(error).__name__)
            return
        if not answer.is_success:
            log.warning("a window that the fleet asks for was not opened: it answers %d", answer.status_code)
            return
        self._spool.save_state(msgspec.structs.replace(state, heard=(*state.heard, order.order)))

    # ------------------------------------------------------------------ the end

    def _is_gone(self) -> bool:
        """The collector ended, and no other one took its place."""
        if self._gone_at is None and not psutil.pid_exists(self._collector):
            self._gone_at = time.monotonic()
        return self._gone_at is not None and time.monotonic() - self._gone_at >= _GONE_S

    def _ended(self, seen: Seen) -> bool:
        return seen.over or self._is_gone()

    def _is_told(self, facts: RunFacts, seen: Seen) -> bool:
        return self._spool.state(facts.run).told == seen.signature

    def _is_done(self, facts: RunFacts) -> bool:
        """What lies there now is told: iteration times are written after the final verdict."""
        seen = watch(self._spool, facts)
        return self._ended(seen) and self._is_told(facts, seen) and self._spool.is_empty()

    def _gave_up(self) -> bool:
        if not self._collector:  # one try for each piece is enough: somebody waits for us
            return not self._sender.may
        return self._is_gone() and time.monotonic() - (self._gone_at or 0.0) > self._settings.fleet_patience_s

    def _hand_over_others(self) -> None:
        """The service is there: what other runs beside this one could not hand over goes now."""
        mine = whose(self._settings)
        for run in sorted(path for path in self._run.parent.iterdir() if path != self._run and has_spool(path)):
            with contextlib.suppress(OSError, InputError):
                if Spool(run).is_for(mine):
                    hand_over(run, self._settings)


def hand_over(run: Path, settings: Settings, *, by_hand: bool = False) -> bool:
    """Hand over what still waits in a run directory whose job is over; False if something could not be, or is refused.

    Args:
        run: The run directory.
        settings: Where to.
        by_hand: A person asks: what was refused is tried once more, and so is a run that nobody reported.

    Raises:
        UsageError: The service's address cannot be used.
        OSError: The directory cannot be read or written.
    """
    is_new, spool = not has_spool(run), Spool(run)
    if not by_hand and spool.known_facts() is None and spool.is_empty():
        return True  # its own reporter has not begun, and must find nobody there
    lock = spool.claim()
    if lock is None:
        return True  # its own reporter is at it
    try:
        facts, whole = spool.known_facts(), True
        if by_hand:
            spool.readmit()
            if facts is None and spool.is_empty() and (is_new or (run / "verdict.json").exists()):  # nobody reported it
                spool.belongs_to(whose(settings))
                facts = facts_of(spool, run.resolve().name, "")
        if facts is not None:
            seen = watch(spool, facts)
            if seen.next_began and by_hand:
                facts = facts_of(spool, facts.job, facts.host, seen.next_began)
                seen = watch(spool, facts)
            if not seen.next_began:
                whole = _packed(spool, facts, seen)
                keep_last(spool, facts, seen)
        with client_for(settings) as client:
            sender = Sender(client)
            while sender.has_work(spool):
                sent = sender.send(spool)
                if not (sent.ok or sent.again):
                    break
        return whole and spool.is_empty() and not sender.refused
    finally:
        if lock >= 0:
            os.close(lock)


def _packed(spool: Spool, facts: RunFacts, seen: Seen) -> bool:
    """Pack all that lies in a run directory; False if something could not be."""
    packer = Packer(spool, facts)
    try:
        packer.pack(seen.status, everything=True)
    except OSError as error:  # one file costs no other
        log.warning("something in %s could not be packed: %s", spool.run, error)
        return False
    return not packer.left_out


def facts_of(spool: Spool, job: str, host: str, anew: float = 0.0) -> RunFacts:
    """The facts of the run in a spool's directory; drawn if there are none.

    Drawn also for another run, which began `anew` then (seconds since 1970), where nobody closed the one before: what
    was written until then is the earlier run's, and is not reported any more.
    """
    if not anew and (known := spool.known_facts()) is not None:
        return known
    history = None if anew else read_history(spool.run)
    began = anew or (history.began if history is not None else time.time())
    return spool.begin(job, host, commit_of(os.environ), began, since=anew)


def close_run(run: Path) -> None:
    """Another run begins in this directory: what was not packed yet is, before it is forgotten.

    Raises:
        OSError: The directory cannot be read or written.
    """
    spool = Spool(run)
    facts = spool.known_facts()
    with contextlib.ExitStack() as leaving:
        leaving.callback(spool.close_run)  # whatever could not be packed must not become the next run's
        seen = None if facts is None else watch(spool, facts)
        if facts is not None and seen is not None and not seen.next_began:
            leaving.callback(keep_last, spool, facts, seen)  # it dates pieces, so it looks whether any wait
            Packer(spool, facts, 2**62, _CLOSING_S).pack(None, everything=True)


def whose(settings: Settings) -> str:
    """A name of the service and the project that pieces are for, which tells neither."""
    return hashlib.sha256(f"{settings.fleet.rstrip('/')} {settings.fleet_token}".encode("utf-8", "replace")).hexdigest()


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
