"""Clients without the job's token at a member's data port: they cost the training process nothing that grows."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trainmover.errors import LinkLostError, RefusedError
from trainmover.transport import Hello, Listener, Wake, dial

FEW = 34  # trainmover.admission: MOST_PENDING that are kept, AT_ONCE that are looked at; and the pipe to the crowd
CROWD = """
import resource, socket, sys, time
port, words, seconds = int(sys.argv[1]), bytes.fromhex(sys.argv[2]), float(sys.argv[3])
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
calls = []
for at in range(800):
    call = socket.socket(); call.setblocking(False); call.connect_ex(("127.0.0.1", port)); calls.append(call)
    if at % 50 == 0: time.sleep(0.02)
end = time.monotonic() + seconds
while time.monotonic() < end:
    for call in calls:
        try: words and call.send(words)
        except OSError: pass
    time.sleep(0.3)
"""
GUESSES = {
    "silence": b"",
    "a byte": b" ",
    "half a greeting": b'{"token": "',
    "deep nesting": b"[" * 4000 + b"\n",
    "no end of line": b"x" * 8192,
    "another protocol": b"GET / HTTP/1.1\r\n\r\n",
    "a wrong token": json.dumps(Hello("guess", "copy", "g", 0, 1, 0).__dict__).encode() + b"\n",
    "a token that is no text": b'{"token":1,"purpose":"x","group":"g","generation":0,"source":0,"target":0}\n',
    "half of a pair": b'{"token":"\\ud800","purpose":"x","group":"g","generation":0,"source":0,"target":0}\n',
    "no UTF-8": b"\xff\xfe\n",
}
AWAKE = Wake()


def cost() -> tuple[int, int, int]:
    """Threads, descriptors and kilobytes of this process."""
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd")), resident  # noqa: PTH208


@pytest.fixture(scope="module")
def listener() -> Iterator[Listener]:
    one = Listener("127.0.0.1", "secret", lambda _hello: "")
    yield one
    one.close()


def greeted(listener: Listener, source: int) -> None:
    """A member gets in."""
    end = time.monotonic() + 20
    while True:
        try:
            ours = dial(listener.address, Hello("secret", "collective", "0", 0, source, 0), 5.0)
            break
        except (LinkLostError, RefusedError):
            assert time.monotonic() < end
            time.sleep(0.1)
    theirs = listener.take("collective", "0", 0, source, AWAKE, time.monotonic() + 20)
    ours.close()
    theirs.close()


def test_no_first_words_end_a_listener(listener: Listener) -> None:
    for words in GUESSES.values():
        with socket.create_connection(listener.address, timeout=5) as call, contextlib.suppress(OSError):
            call.sendall(words)
    greeted(listener, 4)


@pytest.mark.parametrize("name", ["silence", "half a greeting", "no end of line", "a wrong token"])
def test_strangers_cost_a_member_no_thread_no_memory_and_few_descriptors(
    name: str, listener: Listener, capfd: pytest.CaptureFixture[str]
) -> None:
    words = GUESSES[name]
    greeted(listener, 1)
    before = most = cost()
    with subprocess.Popen([sys.executable, "-c", CROWD, str(listener.address[1]), words[:4096].hex(), "1"]) as crowd:
        while crowd.poll() is None:
            most = tuple(map(max, most, cost()))  # type: ignore[assignment]
            time.sleep(0.01)
            greeted(listener, 2)
    threads, descriptors, kilobytes = (now - then for now, then in zip(most, before, strict=True))
    assert threads == 0
    assert descriptors <= FEW
    assert kilobytes < 2048
    assert capfd.readouterr().err == ""
    greeted(listener, 3)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    words=st.one_of(
        st.binary(max_size=300),
        st.fixed_dictionaries(
            {"token": st.one_of(st.text(), st.none(), st.integers())},
            optional={name: st.one_of(st.text(), st.integers()) for name in list(Hello.__dataclass_fields__)[1:]},
        ).map(lambda fields: json.dumps(fields).encode()),
    )
)
def test_no_first_line_ends_the_listener(words: bytes, listener: Listener) -> None:
    with socket.create_connection(listener.address, timeout=5) as call:
        call.sendall(words + b"\n")
        with contextlib.suppress(ConnectionError):
            call.recv(100)
    assert "trainmover-listener" in [thread.name for thread in threading.enumerate()]


def test_a_listener_without_a_token_lets_nobody_in() -> None:
    listener = Listener("127.0.0.1", "", lambda _hello: "")
    with pytest.raises(RefusedError, match="token"):
        dial(listener.address, Hello("", "collective", "0", 0, 1, 0), 5.0)
    listener.close()
