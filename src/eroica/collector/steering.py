"""Choose the verdicts that become an order, and the orders that are given: a state machine without I/O.

Off unless `act_from` says from which confidence on. Never on an undetermined verdict, on one that names nobody or
everybody, or on the job's final one; one order for one fault; `act_pause_s` between two, `act_most` in a job. An order
for a standstill that comes inside the pause is held. It is given after the pause if the job has stood still since, and
if no later verdict on the same standstill names somebody else, or nobody.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection

from eroica.model.order import Action, Order
from eroica.model.verdict import Finding, Verdict
from eroica.settings import Settings

_WAYS = ("connection", "sending", "receiving")


class Steering:
    """Decides for one job.

    Args:
        job: Its name.
        settings: `act_from`, `act_pause_s`, `act_most`.
    """

    def __init__(self, job: str, settings: Settings) -> None:
        self._job = job
        self._settings = settings
        self._given: list[Order] = []
        self._held: tuple[int, Verdict] | None = None
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
        self._given = list(orders)
        ages = [(wall - at).total_seconds() for order in orders if (at := _moment(order.at)) is not None]
        if len(ages) < len(orders):  # one that does not say when may have been given just now
            ages.append(0.0)
        if ages:
            self._last_at = now - max(0.0, min(ages))

    def judged(
        self, now: float, window_id: int, verdict: Verdict, standing: Collection[int] | None = None
    ) -> Order | str | None:
        """A verdict stands.

        Args:
            now: Seconds.
            window_id: Its window.
            verdict: What it says.
            standing: Windows whose verdict on a standstill still holds; None: this one's does if it is "blocked".

        Returns:
            The order to give; why it is held back, where it is sure enough, or why the one that was held is not given
            any more; None where there is nothing to say.
        """
        stands = verdict.verdict == "blocked" if standing is None else window_id in standing
        dropped = self._reconsider(window_id, verdict) if stands else None
        finding = self._sure(window_id, verdict)
        if finding is None:
            return dropped
        order = self._order(window_id, verdict, finding)
        if any(_covers(other, order) for other in self._given):
            return dropped
        if self._count >= self._settings.act_most:
            return f"no order for window {window_id}: {self._count} have been given, the most of one job (act_most)"
        if now - self._last_at < self._settings.act_pause_s:
            why = f"no order for window {window_id}: the last one is {now - self._last_at:.0f} s old (act_pause_s)"
            if not (order.restart and stands):
                return why
            self._held = window_id, verdict
            return f"{why}; it is given after that if the job still stands"
        self._given.append(order)
        self._count, self._last_at = order.order, now
        return order

    def _reconsider(self, window_id: int, verdict: Verdict) -> str | None:
        """Forget what is held if a later verdict on the standstill does not bear it out; say so."""
        if self._held is None or _agree(verdict, self._held[1]):
            return None
        (held_id, _), self._held = self._held, None
        return f"no order for window {held_id}, which was held back: window {window_id} does not bear it out"

    @property
    def holds(self) -> bool:
        """An order waits for the end of the pause."""
        return self._held is not None

    def tick(self, now: float, standing: Collection[int]) -> Order | str | None:
        """Time passed.

        Args:
            now: Seconds, on the clock of `judged`.
            standing: Windows whose verdict on a standstill still holds; what was held for another one is forgotten.

        Returns:
            As `judged`, of the order that is held, once the pause is over.
        """
        if self._held is not None and self._held[0] not in standing:
            self._held = None
        if self._held is None or now - self._last_at < self._settings.act_pause_s:
            return None
        (window_id, verdict), self._held = self._held, None
        return self.judged(now, window_id, verdict)

    def _order(self, window_id: int, verdict: Verdict, finding: Finding) -> Order:
        """Word the next order."""
        return Order(
            job=self._job,
            order=self._count + 1,
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


def _covers(given: Order, order: Order) -> bool:
    """Return whether an order adds nothing to one before: workers or hosts in common, and no more is asked for."""
    is_same = not (set(given.workers).isdisjoint(order.workers) and set(given.hosts).isdisjoint(order.hosts))
    isolates = given.action != "avoid-path" or order.action == "avoid-path"
    return is_same and isolates and given.restart >= order.restart


def _agree(later: Verdict, earlier: Verdict) -> bool:
    """Return whether a later verdict on a standstill names somebody whom the earlier one names; surely or not."""
    one, other = later.cause, earlier.cause
    if later.verdict != "blocked" or one is None or other is None or one.scope != "some":
        return False
    if one.workers and other.workers:
        return not set(one.workers).isdisjoint(other.workers)
    return not set(one.hosts).isdisjoint(other.hosts)


def _moment(text: str) -> datetime.datetime | None:
    """When an order was given; None where that cannot be read."""
    try:
        at = datetime.datetime.fromisoformat(text)
    except ValueError:
        return None
    return at if at.tzinfo is not None else None


def _action(verdict: Verdict, finding: Finding) -> Action:
    told = verdict.communication
    places = () if told is None else (told.place, *told.further)
    found = finding.workers, finding.hosts
    kind = next((place.kind for place in places if (place.workers, place.hosts) == found), "")
    if kind in _WAYS or (finding.cause == "slow-link" and len(finding.hosts) > 1):
        return "avoid-path"  # nobody at its ends is to blame
    return "isolate-worker" if finding.workers and kind != "host" else "isolate-host"
