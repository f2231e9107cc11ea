"""Choose the verdicts that become an order, and the orders that are given: a state machine without I/O.

Off unless `act_from` says from which confidence on. Never on an undetermined verdict, on one that names nobody or
everybody, or on the job's final one; one order for one fault; `act_pause_s` between two, `act_most` in a job.
"""

from __future__ import annotations

import datetime

from eroica.model.order import Action, Order
from eroica.model.verdict import Finding, Verdict
from eroica.settings import Settings

_WAYS = ("connection", "sending", "receiving", "link")


class Steering:
    """Decides for one job.

    Args:
        job: Its name.
        settings: `act_from`, `act_pause_s`, `act_most`.
    """

    def __init__(self, job: str, settings: Settings) -> None:
        self._job = job
        self._settings = settings
        self._given: list[tuple[frozenset[int], frozenset[str]]] = []
        self._last_at = float("-inf")
        self._count = 0

    def resume(self, now: float, orders: list[Order], wall: datetime.datetime) -> None:
        """A collector before this one has given these: neither repeated, nor followed sooner than by its own.

        Args:
            now: Seconds, on the clock of `judged`.
            orders: In the order in which they were given.
            wall: The time of day at `now`, with its zone.
        """
        self._count = max((order.order for order in orders), default=0)
        self._given = [(frozenset(order.workers), frozenset(order.hosts)) for order in orders]
        ages = [(wall - at).total_seconds() for order in orders if (at := _moment(order.at)) is not None]
        if len(ages) < len(orders):  # one that does not say when may have been given just now
            ages.append(0.0)
        if ages:
            self._last_at = now - max(0.0, min(ages))

    def judged(self, now: float, window_id: int, verdict: Verdict) -> Order | str | None:
        """A verdict stands.

        Returns:
            The order to give; why it is held back, where it is sure enough; None where there is nothing to order.
        """
        finding = self._sure(window_id, verdict)
        if finding is None:
            return None
        place = frozenset(finding.workers), frozenset(finding.hosts)
        if any(self._same(place, other) for other in self._given):
            return None
        if self._count >= self._settings.act_most:
            return f"no order for window {window_id}: {self._count} have been given, the most of one job (act_most)"
        if now - self._last_at < self._settings.act_pause_s:
            return f"no order for window {window_id}: the last one is {now - self._last_at:.0f} s old (act_pause_s)"
        self._given.append(place)
        self._count, self._last_at = self._count + 1, now
        return Order(
            job=self._job,
            order=self._count,
            action=_action(verdict, finding),
            workers=finding.workers,
            hosts=finding.hosts,
            restart=verdict.verdict == "blocked",
            confidence=finding.confidence,
            cause=finding.cause,
            found_by=verdict.found_by,
            window=window_id,
            summary=verdict.summary,
            at=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds"),
        )

    def _sure(self, window_id: int, verdict: Verdict) -> Finding | None:
        finding = verdict.cause
        if self._settings.act_from <= 0 or not window_id or verdict.verdict not in ("slow", "blocked"):
            return None
        if finding is None or finding.scope != "some" or finding.confidence < self._settings.act_from:
            return None
        return finding if finding.workers or finding.hosts else None

    @staticmethod
    def _same(one: tuple[frozenset[int], frozenset[str]], other: tuple[frozenset[int], frozenset[str]]) -> bool:
        """Return whether two verdicts are of the same trouble: workers or hosts in common."""
        return bool(one[0] & other[0] or one[1] & other[1])


def _moment(text: str) -> datetime.datetime | None:
    """When an order was given; None where that cannot be read."""
    try:
        at = datetime.datetime.fromisoformat(text)
    except ValueError:
        return None
    return at if at.tzinfo is not None else None


def _action(verdict: Verdict, finding: Finding) -> Action:
    told = verdict.communication
    if told is not None and told.place.kind in _WAYS and not finding.workers:
        return "isolate-host" if told.place.kind == "link" else "avoid-path"
    if told is not None and told.place.kind == "host":
        return "isolate-host"
    return "isolate-worker" if finding.workers else "isolate-host"
