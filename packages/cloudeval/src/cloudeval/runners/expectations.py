"""What check functions share: failing with one sentence, waiting with a deadline, and how a verdict was reached."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NoReturn


class CheckFailedError(Exception):
    """A check that the answer does not meet; the message is the reason in the verdict."""


class Checks:
    """Base of the check API.

    Attributes:
        how: How the latest observation was made: `behaviour` (something ran) or `semantics` (objects were read).
        saw_behaviour: True once anything that ran has been observed.
    """

    #: Seconds that `eventually` and readiness waits last, unless a check says otherwise.
    patience_s = 3.0
    #: Seconds of one round of the system on a machine that is not overloaded. Where rounds take longer, waits last longer in
    #: proportion, up to ten times, so that a busy machine does not turn right answers into wrong ones.
    round_s = 0.15

    def __init__(self) -> None:
        self.how = "semantics"
        self.saw_behaviour = False

    def _behaved(self) -> None:
        self.how, self.saw_behaviour = "behaviour", True

    def step(self) -> None:
        """Let the system under test go on for a moment."""
        time.sleep(0.01)

    def fail(self, reason: str) -> NoReturn:
        """End the check: the answer is wrong."""
        raise CheckFailedError(reason)

    def expect(self, condition: Any, reason: str) -> None:
        """Fail with the reason unless the condition holds."""
        if not condition:
            self.fail(reason)

    def equal(self, got: Any, wanted: Any, what: str) -> None:
        """Fail unless two values are equal."""
        if got != wanted:
            self.fail(f"{what} is {_short(got)}, expected {_short(wanted)}")

    def contains(self, text: str, part: str, what: str) -> None:
        """Fail unless a text contains a part."""
        if part not in text:
            self.fail(f"{what} lacks {_short(part)}: {_short(text)}")

    def eventually(self, probe: Callable[[], Any], what: str, timeout_s: float | None = None) -> Any:
        """Wait until the probe returns something true, and return it; fail with `what` after the time limit."""
        limit_s = timeout_s or self.patience_s
        started, rounds, stepping = time.monotonic(), 0, 0.0
        while True:
            if result := probe():
                return result
            slowness = min(10.0, max(1.0, stepping / rounds / self.round_s)) if rounds else 1.0
            if time.monotonic() - started > limit_s * slowness:
                self.fail(f"{what} within {limit_s:g} s")
            before = time.monotonic()
            self.step()
            stepping += time.monotonic() - before
            rounds += 1

    def always(self, probe: Callable[[], Any], what: str, seconds: float = 1.0) -> None:
        """Fail with `what` if the probe returns something false within the time."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if not probe():
                self.fail(what)
            self.step()

    def sleep(self, seconds: float) -> None:
        """Let the system under test run for some time."""
        self.always(lambda: True, "", seconds)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 160 else f"{text[:150]}…{text[-8:]}"
