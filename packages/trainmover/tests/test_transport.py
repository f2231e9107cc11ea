"""Connections: who is turned away, and how those that stay are brought back to a message boundary."""

import errno
import socket
import threading
import time

import pytest

from trainmover.errors import LinkError, LinkLostError, MismatchError, RefusedError
from trainmover.transport import Hello, Link, Listener, Traffic, Wake, dial, drain, pump

SECOND = 1.0


def pair() -> tuple[Link, Link]:
    listener = Listener("127.0.0.1", "secret", lambda _hello: "")
    one = dial(listener.address, Hello("secret", "collective", "0", 0, 1, 0), SECOND)
    other = listener.take("collective", "0", 0, 1, Wake(), time.monotonic() + SECOND)
    listener.close()
    return one, other


def both(first, second) -> None:
    thread = threading.Thread(target=first)
    thread.start()
    second()
    thread.join(5)
    assert not thread.is_alive()


class Troubled:
    """A listening socket of which the next call fails, as with too many open files."""

    def __init__(self, real: socket.socket) -> None:
        self.real, self.n_failures = real, 1

    def accept(self) -> tuple[socket.socket, object]:
        if self.n_failures:
            self.n_failures -= 1
            raise OSError(errno.EMFILE, "too many open files")
        return self.real.accept()

    def __getattr__(self, name: str) -> object:
        return getattr(self.real, name)


def test_a_call_that_could_not_be_taken_is_not_the_last_one() -> None:
    listener = Listener("127.0.0.1", "secret", lambda _hello: "")
    troubled = Troubled(listener._front._listener)
    listener._front._listener = troubled  # type: ignore[assignment]
    for source in (1, 2, 3):
        dial(listener.address, Hello("secret", "collective", "0", 0, source, 0), SECOND).close()
    assert troubled.n_failures == 0
    listener.close()


def test_a_wrong_token_and_a_wrong_role_are_turned_away_with_the_reason() -> None:
    listener = Listener("127.0.0.1", "secret", lambda hello: "wrong role" if hello.target != 3 else "")
    for token, target, words in (("guess", 3, "token"), ("secret", 2, "wrong role")):
        with pytest.raises(RefusedError, match=words):
            dial(listener.address, Hello(token, "collective", "0", 0, 1, target), SECOND)
    listener.close()


def test_after_an_interruption_within_a_message_both_ends_come_back_to_a_boundary() -> None:
    one, other = pair()
    wake, sent = Wake(), memoryview(bytes(range(256)) * 40_000)
    traffic = Traffic(one)
    traffic.sends(7, 1, sent.nbytes)
    traffic.push(sent)
    wake.set()
    with pytest.raises(LinkError, match="a recovery has begun"):
        pump([traffic], wake, time.monotonic() + SECOND)
    assert one.out_body > 0
    wake.clear()
    both(lambda: drain([one], 5, wake, time.monotonic() + 5), lambda: drain([other], 5, Wake(), time.monotonic() + 5))
    got, message = bytearray(5), Traffic(other)
    message.expects(0, 1, 5)
    message.into(memoryview(got))
    answer = Traffic(one)
    answer.sends(0, 1, 5)
    answer.push(memoryview(b"clean"))
    both(lambda: pump([answer], wake, time.monotonic() + 5), lambda: pump([message], Wake(), time.monotonic() + 5))
    assert got == b"clean"


def test_members_in_different_collectives_are_told_so_and_a_closed_connection_is_a_lost_peer() -> None:
    one, other = pair()
    traffic = Traffic(one)
    traffic.sends(1, 1, 0)
    pump([traffic], Wake(), time.monotonic() + SECOND)
    wrong = Traffic(other)
    wrong.expects(2, 1, 0)
    with pytest.raises(MismatchError, match="the same collectives in the same order"):
        pump([wrong], Wake(), time.monotonic() + SECOND)
    one.close()
    late = Traffic(other)
    late.expects(3, 1, 0)
    with pytest.raises(LinkLostError) as lost:
        pump([late], Wake(), time.monotonic() + SECOND)
    assert lost.value.peer == 1
