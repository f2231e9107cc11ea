"""Batches to the service: sent until it says that it keeps them, with growing pauses, never in a hurry."""

from __future__ import annotations

import logging
import random
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import httpx
import msgspec

from eroica import __version__
from eroica.errors import InputError, UsageError
from eroica.fleet.records import OURS, Batch, Beat, Piece, Receipt, WindowOrder
from eroica.fleet.reporting.spool import KeptBeat, Spool
from eroica.settings import Settings
from eroica.wire.address import is_loopback
from eroica.wire.codec import decode_message

log = logging.getLogger("eroica.fleet")

#: Pieces and bytes of one request.
_PIECES, _BYTES = 64, 8_000_000
#: First and longest pause after a failure, before jitter, seconds.
_FIRST_S, _LONGEST_S = 1.0, 60.0
_TIMEOUT_S = 30.0
_TOO_LONG, _NO_BATCH = 413, 400


class Sent(NamedTuple):
    """What became of a request.

    Attributes:
        ok: The service has answered with a receipt.
        beat: It has taken the beat.
        again: It is there, and may take less than it was sent.
    """

    ok: bool
    beat: bool = False
    again: bool = False


def address_of(settings: Settings) -> str:
    """The service's base URL.

    Raises:
        UsageError: It is none, or the token would travel in clear beyond this host.
    """
    parts = urlsplit(settings.fleet)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError("setting fleet is no address; it is like https://fleet.example:8470")
    if parts.scheme == "http" and not is_loopback(parts.hostname) and not settings.fleet_plain_http:
        raise UsageError("the fleet's token would travel in clear over http://; use https://, or set fleet_plain_http")
    return settings.fleet.rstrip("/")


def client_for(settings: Settings, timeout_s: float = _TIMEOUT_S) -> httpx.Client:
    """A client of the service.

    Raises:
        UsageError: Address or certificate authority cannot be used.
    """
    base = address_of(settings)
    try:
        trust = ssl.create_default_context(cafile=settings.fleet_ca or None)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"setting fleet_ca {settings.fleet_ca!r} cannot be used: {error}") from None
    headers = {"Authorization": f"Bearer {settings.fleet_token}", "User-Agent": f"eroica/{__version__}"}
    return httpx.Client(base_url=base, headers=headers, verify=trust, timeout=timeout_s, follow_redirects=False)


class Sender:
    """Hands a spool's pieces over.

    Args:
        client: Of the service.
        ordered: Told of windows that somebody asks for.
        clock: Seconds, monotonic.

    Attributes:
        refused: Pieces that the service will never take.
    """

    def __init__(
        self,
        client: httpx.Client,
        ordered: Callable[[WindowOrder], None] = lambda order: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._ordered = ordered
        self._clock = clock
        self._failures = 0
        self._complaint = ""
        self._most = _PIECES
        self._doubts_beat = False
        self._stuck: set[Path] = set()
        self.refused = 0
        self.not_before = 0.0

    @property
    def may(self) -> bool:
        """The pause after the last failure is over."""
        return self._clock() >= self.not_before

    def has_work(self, spool: Spool) -> bool:
        """Something waits that may be sent."""
        return not spool.is_empty(self._stuck)

    def send(self, spool: Spool, beat: Beat | None = None) -> Sent:
        """Send a batch of what waits, and a beat; after a refusal the pieces alone, to find out what is refused.

        Last beats of runs that are over go when no piece waits any more: what comes later may be about them.
        """
        waiting = spool.waiting(self._most, _BYTES, self._stuck)
        beat = None if waiting and self._doubts_beat else beat
        kept = spool.kept_beat() if beat is None and not waiting else None
        batch = Batch(pieces=tuple(piece for _, piece in waiting), beat=beat if kept is None else kept.aged())
        receipt = self._post(batch, spool, waiting, kept)
        if isinstance(receipt, Sent):
            return receipt
        if kept is not None:
            spool.taken(kept.beat, kept.told)
            spool.drop_beat(kept.beat.facts.run)
        taken = set(receipt.taken)
        why = {refusal.name: refusal.why for refusal in receipt.refused}
        for path, piece in waiting:
            if piece.name in taken:
                path.unlink(missing_ok=True)
            elif piece.name in why:
                self._refuse(spool, path, why[piece.name])
        for order in receipt.orders if kept is None else ():  # nobody opens windows for a run that is over
            self._ordered(order)
        self.not_before = self._clock() + min(receipt.pause_s, _LONGEST_S)
        return Sent(True, beat is not None)

    def _post(
        self, batch: Batch, spool: Spool, waiting: list[tuple[Path, Piece]], kept: KeptBeat | None
    ) -> Receipt | Sent:
        body = msgspec.msgpack.encode(batch)
        try:
            answer = self._client.post("/v1/reports", content=body, headers={"content-type": "application/msgpack"})
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            self._failed(f"no connection ({type(error).__name__})")
            return Sent(False)
        is_ours = OURS in answer.headers
        if waiting and (answer.status_code == _TOO_LONG or (answer.status_code == _NO_BATCH and is_ours)):
            self._halve(answer, spool, waiting if batch.beat is None else [], is_ours)
            return Sent(False, again=True)
        if kept is not None and answer.status_code == _NO_BATCH and is_ours:
            log.warning("the service refuses the last beat of a run: %s", answer.text[:200])
            spool.drop_beat(kept.beat.facts.run)
            return Sent(False, again=True)
        if not answer.is_success:
            asked = answer.headers.get("retry-after", "")
            asked_s = min(float(asked[:6]), _LONGEST_S) if asked.isascii() and asked.isdigit() else 0.0
            self._failed(f"it answers {answer.status_code}: {answer.text[:200]}", asked_s)
            return Sent(False)
        try:
            receipt = decode_message(answer.content, Receipt)
        except InputError as error:
            self._failed(f"its answer is none: {error}")
            return Sent(False)
        if self._complaint:
            log.info("the fleet is reached again")
        self._failures, self._complaint = 0, ""
        self._most = min(2 * self._most, _PIECES)
        self._doubts_beat = False
        return receipt

    def _halve(self, answer: httpx.Response, spool: Spool, guilty: list[tuple[Path, Piece]], is_ours: bool) -> None:
        """Something in the batch is not to be had at all: smaller ones without the beat, until a piece stands alone.

        One that something on the way to the service finds too long waits until the next process, and lets others pass.
        There is no pause: each try sends less, or puts one piece aside.
        """
        self._doubts_beat = True
        if len(guilty) == 1 and is_ours:
            self._refuse(spool, guilty[0][0], answer.text[:500])
        elif len(guilty) == 1:
            self._stuck.add(guilty[0][0])
        self._most = max(1, len(guilty) // 2) if guilty else self._most
        self._complain(f"it answers {answer.status_code}: {answer.text[:200]}")

    def _refuse(self, spool: Spool, path: Path, why: str) -> None:
        spool.refuse(path, why)
        self.refused += 1

    def _failed(self, why: str, asked_s: float = 0.0) -> None:
        pause_s = min(_FIRST_S * 2**self._failures, _LONGEST_S) * random.uniform(0.5, 1.0)
        self._failures = min(self._failures + 1, 10)
        self.not_before = self._clock() + max(pause_s, asked_s)
        self._complain(why)

    def _complain(self, why: str) -> None:
        if why != self._complaint:
            self._complaint = why
            log.warning("nothing could be handed over to the fleet: %s; it waits in %s", why, "fleet/outbox")
