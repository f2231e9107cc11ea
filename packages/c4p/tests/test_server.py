"""The planner's port: what a client without the token can do, and cost."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.test_service import free_port, job_demand

from c4p.client import register
from c4p.errors import BadRequest, PlannerError
from c4p.rendezvous import Folder

TOKEN = "planner-secret-0123"
GUESSES = {
    "silence": b"",
    "half a request": b"GET / HTTP/1.1\r\nHost: c\r\n",
    "garbage": b"\x00\x01garbage\r\n\r\n",
    "no token": b"GET / HTTP/1.1\r\nHost: c\r\n\r\n",
    "a wrong token": b"GET / HTTP/1.1\r\nAuthorization: Bearer planner-guess-0123\r\n\r\n",
    "a huge body": b"PUT /jobs/x HTTP/1.1\r\nHost: c\r\nContent-Length: 60000000\r\n\r\n" + b"x" * 60_000,
    "endless headers": b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 10_000,
}


class Planning:
    def __init__(self, folder: Path) -> None:
        self.port, self.log = free_port(), folder / "log"
        argv = [sys.executable, "-m", "c4p.cli", "serve", "--port", str(self.port), "--state", str(folder / "state")]
        environ = {**os.environ, "C4P_PLANNER_TOKEN": TOKEN}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(argv, env=environ, stdout=log, stderr=log)
        until = time.monotonic() + 30
        while not self.answers():
            assert time.monotonic() < until and self.process.poll() is None, self.log.read_text()
            time.sleep(0.1)

    def answers(self) -> bool:
        with contextlib.suppress(PlannerError):
            return register(f"http://127.0.0.1:{self.port}", "job", job_demand([0, 1]))[0] > 0
        return False

    def cost(self) -> tuple[int, int, int]:
        """Descriptors, megabytes, and bytes of log."""
        pid = self.process.pid
        resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20
        return len(os.listdir(f"/proc/{pid}/fd")), resident, self.log.stat().st_size  # noqa: PTH208


@pytest.fixture(scope="module")
def planning(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Planning]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("C4P_PLANNER_TOKEN", TOKEN)
        one = Planning(tmp_path_factory.mktemp("planner"))
        yield one
        one.process.kill()
        one.process.wait(10)


@pytest.mark.parametrize("words", GUESSES.values(), ids=GUESSES.keys())
def test_a_crowd_without_the_token_costs_nothing_that_grows(words: bytes, planning: Planning) -> None:
    before, calls = planning.cost(), []
    try:
        for at in range(700):
            call = socket.socket()
            call.setblocking(False)
            call.connect_ex(("127.0.0.1", planning.port))
            calls.append(call)
            if at % 50 == 0:
                time.sleep(0.02)
        for _ in range(3):
            for call in calls:
                with contextlib.suppress(OSError):
                    call.send(words)
            assert planning.answers()
            time.sleep(0.2)
        descriptors, megabytes, logged = (now - then for now, then in zip(planning.cost(), before, strict=True))
    finally:
        for call in calls:
            call.close()
    assert descriptors < 100
    assert megabytes < 30
    assert logged == 0


def test_a_job_with_another_token_is_told_so(planning: Planning, monkeypatch: pytest.MonkeyPatch) -> None:
    for token in ("", "another-token-0123"):
        monkeypatch.setenv("C4P_PLANNER_TOKEN", token)
        with pytest.raises(PlannerError, match=r"401.*C4P_PLANNER_TOKEN"):
            register(f"http://127.0.0.1:{planning.port}", "job", job_demand([0, 1]))


def test_every_request_of_a_connection_needs_the_token(planning: Planning) -> None:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", planning.port, timeout=20)) as line:
        for headers, status in (({"Authorization": f"Bearer {TOKEN}"}, 200), ({}, 401)):
            line.request("GET", "/", headers=headers)
            kept = line.sock
            answer = line.getresponse()
            answer.read()
            assert answer.status == status and kept is not None


@pytest.mark.parametrize("token", ["", "short", "with spaces in it all", "ümlaute-und-so-weiter"])
def test_a_planner_without_a_good_token_does_not_start(token: str, tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "c4p.cli", "serve", "--port", "0", "--state", str(tmp_path / "state")]
    environ = {**os.environ, "C4P_PLANNER_TOKEN": token}
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and "--open" in done.stderr and not (tmp_path / "state").exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")
def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, 1501, 1501)
    with pytest.raises(BadRequest, match="belongs to user 1501"):
        Folder(theirs)


def test_a_folder_into_which_others_may_write_is_refused(tmp_path: Path) -> None:
    for mode in (0o1777, 0o770):
        tmp_path.chmod(mode)
        with pytest.raises(BadRequest, match=f"others may write into it .mode {mode:o}"):
            Folder(tmp_path)
