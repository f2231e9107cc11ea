"""Shared by check functions: failing with one sentence, waiting with a deadline, HTTP, and how a verdict was reached."""

import contextlib
import http.client
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

#: Bytes that are read of an answer's body; the rest is cut off.
BODY_BYTES = 1 << 20


class CheckFailedError(Exception):
    """A check that the answer does not meet; the message is the reason in the verdict."""


@dataclass(frozen=True)
class Response:
    """An HTTP answer; status 0 means that no connection came about."""

    status: int
    text: str
    headers: dict[str, str]


def request(
    host: str,
    port: int,
    path: str = "/",
    *,
    method: str = "GET",
    headers: dict[str, str] | None = None,
    body: str | None = None,
    timeout_s: float = 2,
    has_body: bool = True,
) -> Response:
    """Send one HTTP request; without `has_body` only status and headers are read. A connection that fails gives status 0."""
    connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    try:
        connection.request(method, path, body=body, headers=headers or {})
        answer = connection.getresponse()
        names = {key.lower() for key, _ in answer.getheaders()}
        found = {key: ",".join(answer.headers.get_all(key, [])) for key in names}
        data = answer.read(BODY_BYTES) if has_body else b""
        if has_body and answer.length and len(data) < BODY_BYTES:
            raise http.client.IncompleteRead(data, answer.length)
        return Response(answer.status, data.decode(errors="replace").strip(), found)
    except (OSError, http.client.HTTPException) as error:
        return Response(0, f"no answer: {error}", {})
    finally:
        connection.close()


def listens(host: str, port: int, timeout_s: float = 0.2) -> bool:
    """Return True if a TCP connection comes about."""
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout_s):
        return True
    return False


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
        self.expect(got == wanted, f"{what} is {_short(got)}, expected {_short(wanted)}")

    def contains(self, text: str, part: str, what: str) -> None:
        """Fail unless a text contains a part."""
        self.expect(part in text, f"{what} lacks {_short(part)}: {_short(text)}")

    def eventually(
        self, probe: Callable[[], Any], what: str | Callable[[], str], timeout_s: float | None = None
    ) -> Any:
        """Wait until the probe returns something true, and return it; fail with `what` after the time limit."""
        limit_s = timeout_s or self.patience_s
        started, rounds, stepping = time.monotonic(), 0, 0.0
        while not (result := probe()):
            slowness = min(10.0, max(1.0, stepping / rounds / self.round_s)) if rounds else 1.0
            if time.monotonic() - started > limit_s * slowness:
                reason = what() if callable(what) else what
                self.fail(f"{reason} within {limit_s:g} s")
            before = time.monotonic()
            self.step()
            stepping, rounds = stepping + time.monotonic() - before, rounds + 1
        return result

    def always(self, probe: Callable[[], Any], what: str, seconds: float = 1.0) -> None:
        """Fail with `what` if the probe returns something false within the time."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.expect(probe(), what)
            self.step()

    def sleep(self, seconds: float) -> None:
        """Let the system under test run for some time."""
        self.always(lambda: True, "", seconds)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 160 else f"{text[:150]}…{text[-8:]}"
