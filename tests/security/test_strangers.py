"""Strangers at the collector's port, in crowds: descriptors, log and verdict stay as they would be without them."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from neighbors import Job, await_true, request, say, watched

from eroica.wire.guarded_server import MAX_SILENT, MAX_STRANGERS

pytestmark = pytest.mark.jobs

FEW = 256
CROWD = """
import os, resource, socket, sys, time
port, seconds, words = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3].encode().decode("unicode_escape").encode()
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
end, made = time.monotonic() + seconds, 0
while time.monotonic() < end:
    calls = []
    for _ in range(600):
        call = socket.socket(); call.setblocking(False); call.connect_ex(("127.0.0.1", port)); calls.append(call)
    time.sleep(0.05)
    for call in calls:
        try:
            if words: call.send(words)
        except OSError: pass
        call.close()
    made += len(calls)
    time.sleep(0.1)
print(made)
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (FEW, hard))  # of the job, which inherits it
    try:
        one = Job(tmp_path_factory.mktemp("crowded"))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    with watched(one):
        yield one


def descriptors(job: Job) -> int:
    return len(list(Path(f"/proc/{job.address.pid}/fd").iterdir()))


def log_bytes(job: Job) -> int:
    return sum(path.stat().st_size for path in (job.where.run / "log").iterdir())


@contextlib.contextmanager
def crowd(job: Job, words: str = "", seconds: float = 3.0) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-c", CROWD, str(job.port), str(seconds), words], stdout=subprocess.PIPE
    )
    try:
        yield process
    finally:
        out, _ = process.communicate(timeout=60)
        assert int(out) > 2000


@pytest.mark.parametrize("words", ["", "GET / HTTP/1.1\\r\\nHost: c\\r\\n\\r\\n"])
def test_a_crowd_takes_neither_descriptors_nor_log_nor_the_place_of_those_with_the_token(words: str, job: Job) -> None:
    before, most, answers = log_bytes(job), 0, []
    asked = request("GET", "/v1/status", job.address.token)
    with crowd(job, words) as process:
        while process.poll() is None:
            most = max(most, descriptors(job))
            with contextlib.suppress(OSError):
                answers.append(say(job.port, asked)[9:12])
    assert b"200" in answers
    assert most < FEW - 50 and log_bytes(job) < before + 2000
    job.moves_on()


def test_only_so_many_read_the_events_however_fast_they_come(job: Job) -> None:
    asked = request("GET", "/v1/events", job.address.token).replace(b"Connection: close", b"Accept: */*")
    calls = [socket.create_connection(("127.0.0.1", job.port), timeout=10) for _ in range(60)]
    try:
        for call in calls:
            call.sendall(asked)
        statuses = [call.recv(12)[9:12] for call in calls]
        assert (statuses.count(b"200"), statuses.count(b"503")) == (32, 28)
    finally:
        for call in calls:
            call.close()


def unfinished(job: Job) -> bytes:
    head = request("POST", "/v1/report", job.address.token).replace(b"Content-Length: 0", b"Content-Length: 10000")
    with socket.create_connection(("127.0.0.1", job.port), timeout=10) as line:
        line.sendall(head)
    return b"HTTP/1.1 404"


@pytest.mark.parametrize(
    "ask",
    [
        lambda job: say(job.port, request("GET", "/v1/jobs/%0a%1b[2J", job.address.token)),
        lambda job: say(job.port, request("GET", f"/v1/workers/{'9' * 5000}", job.address.token)),
        lambda job: say(job.port, request("GET", f"/v1/jobs/{'..%2f' * 20}etc", job.address.token)),
        unfinished,
    ],
)
def test_an_odd_request_with_the_token_is_refused_without_a_stack(ask: Callable[[Job], bytes], job: Job) -> None:
    before = log_bytes(job)
    assert ask(job)[9:12] in (b"404", b"400")
    await_true(lambda: descriptors(job) < 40)
    assert log_bytes(job) < before + 1000
    job.moves_on()


def test_in_the_end_there_is_a_verdict(job: Job) -> None:
    job.end()
    assert job.process.returncode == 0
    assert (job.where.run / "verdict.json").exists()
    await_true((job.where.run / "index.html").exists, 120)  # drawn by a process that gives way to all others
    assert log_bytes(job) < 10_000, os.listdir(job.where.run / "log")  # noqa: PTH208
    assert MAX_STRANGERS + MAX_SILENT < FEW
