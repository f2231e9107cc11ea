"""Clients without the job's token at the controller, and files that another user has put into the job's folder."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.conftest import environment
from trainmover.cli import ControllerProcess, ask, check_folder, main
from trainmover.errors import UsageError, WireError

TOKEN = "secret" * 5
FEW_FILES = 256
FEW = 80  # connections that are silent or within a handshake, and what a controller needs by itself
CROWD = 400


class Running:
    """A controller with few descriptors."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stderr = folder / "stderr"
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (FEW_FILES, hard))
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "trainmover.controller", "--folder", str(folder)],
                env=environment(TRAINMOVER_TOKEN=TOKEN), stderr=self.stderr.open("wb"),
            )  # fmt: skip
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        file, deadline = folder / "controller.json", time.monotonic() + 60
        while not file.exists():
            assert self.process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        self.address = json.loads(file.read_text())["address"]
        self.port = int(self.address.rpartition(":")[2])

    def cost(self) -> tuple[int, int, int]:
        """Descriptors, megabytes, and bytes of log."""
        pid = self.process.pid
        resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20
        logged = (self.folder / "controller.log").stat().st_size + self.stderr.stat().st_size
        return len(os.listdir(f"/proc/{pid}/fd")), resident, logged  # noqa: PTH208

    def answers(self) -> bool:
        with contextlib.suppress(WireError):
            return "status" in ask(
                {"TRAINMOVER_CONTROLLER": self.address, "TRAINMOVER_TOKEN": TOKEN}, {"ask": "status"}
            )
        return False


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Running]:
    one = Running(folder)
    try:
        yield one
    finally:
        one.process.terminate()
        one.process.wait(20)


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("controller")) as one:
        yield one


def line(content: object) -> bytes:
    return json.dumps(content).encode() + b"\n"


GUESSES = {
    "silence": b"",
    "a byte": b" ",
    "a blob of a terabyte": line({"blob": 10**12}) + b"\0" * 60_000,
    "deep nesting": b"[" * 60_000,
    "an endless line": b"x" * 60_000,
    "a wrong token": line({"kind": "operator", "token": "guess", "version": 3}),
    "an odd token": b'{"token": "\xc3\xbc"}\n',
    "half of a pair": b'{"token": "\\ud800"}\n',
    "a list of tokens": line({"kind": "operator", "token": [TOKEN], "version": 3}),
    "another protocol": b"GET / HTTP/1.1\r\n\r\n",
}


def crowd(port: int, words: bytes) -> list[socket.socket]:
    calls = []
    for at in range(CROWD):
        call = socket.socket()
        call.setblocking(False)
        call.connect_ex(("127.0.0.1", port))
        calls.append(call)
        if at % 50 == 0:
            time.sleep(0.02)
    for _ in range(4):
        for call in calls:
            with contextlib.suppress(OSError):
                call.send(words)
        time.sleep(0.2)
    return calls


def test_no_first_words_end_the_controller(controller: Running) -> None:
    for words in GUESSES.values():
        with socket.create_connection(("127.0.0.1", controller.port), timeout=5) as call, contextlib.suppress(OSError):
            call.sendall(words)
    assert controller.answers()


@pytest.mark.parametrize("name", ["silence", "a blob of a terabyte", "an endless line", "a wrong token"])
def test_strangers_cost_the_controller_nothing_that_grows_and_it_goes_on_answering(
    name: str, controller: Running
) -> None:
    words = GUESSES[name]
    assert controller.answers()
    before, most = controller.cost(), controller.cost()
    calls = crowd(controller.port, words)
    try:
        end = time.monotonic() + 20
        while not controller.answers():
            assert time.monotonic() < end, "the controller is deaf"
        for _ in range(10):
            most = tuple(map(max, most, controller.cost()))  # type: ignore[assignment]
            time.sleep(0.05)
    finally:
        for call in calls:
            call.close()
    descriptors, megabytes, logged = (now - then for now, then in zip(most, before, strict=True))
    assert descriptors < FEW
    assert megabytes < 40
    assert logged == 0
    assert controller.answers()


def test_a_controller_without_a_token_does_not_start(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "trainmover.controller", "--folder", str(tmp_path)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2 and "TRAINMOVER_TOKEN" in done.stderr


def test_the_log_ends_at_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trainmover import controller as module
    from trainmover.state_machine import Timeouts

    monkeypatch.setattr(module, "MOST_LOG_BYTES", 1000)
    one = module.Controller(tmp_path, TOKEN, Timeouts())
    for _ in range(1000):
        one._say("something happened")
    assert (tmp_path / "controller.log").stat().st_size < 1200
    assert "this log is full" in (tmp_path / "controller.log").read_text()
    one._log.close()


# -- the token's file -------------------------------------------------------------------------------------------------


def test_the_token_is_the_users_alone_and_a_new_job_replaces_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ControllerProcess, "_start", lambda _self: "127.0.0.1:1")
    monkeypatch.delenv("TRAINMOVER_TOKEN", raising=False)
    folder, other = tmp_path / "job", tmp_path / "other"
    folder.mkdir(mode=0o700)
    other.write_text("planted")
    (folder / "token").symlink_to(other)
    for _ in range(2):
        with ControllerProcess(folder, "127.0.0.1", 0, {}) as one:
            file = folder / "token"
            assert file.read_text() == one.environment["TRAINMOVER_TOKEN"] != other.read_text()
            assert stat.S_IMODE(file.lstat().st_mode) == 0o600 and not file.is_symlink()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")
def test_a_folder_that_another_user_has_planted_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "trainmover-job"
    folder.mkdir(mode=0o777)
    token = folder / "token"
    token.touch()
    token.chmod(0o666)
    for path in (folder, token):
        os.chown(path, 1501, 1501)
    done = CliRunner().invoke(main, ("run", "--folder", str(folder), "torchrun", "train.py"))
    assert done.exit_code == 1 and "belongs to user 1501" in done.output
    assert token.read_bytes() == b"" and sorted(folder.iterdir()) == [token]
    done = CliRunner().invoke(main, ("status", "--folder", str(folder)))
    assert done.exit_code == 1 and "belongs to user 1501" in done.output


@pytest.mark.parametrize("mode", [0o1777, 0o770])
def test_a_folder_into_which_others_may_write_is_refused(mode: int, tmp_path: Path) -> None:
    tmp_path.chmod(mode)
    with pytest.raises(UsageError, match="other users may write"):
        check_folder(tmp_path)


@pytest.mark.parametrize("planted", ["link", "mode"])
def test_a_token_file_that_is_not_the_users_alone_is_refused(
    planted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRAINMOVER_TOKEN", raising=False)
    token = tmp_path / "token"
    (tmp_path / "other").write_text("known")
    (tmp_path / "other").chmod(0o600)
    if planted == "link":
        token.symlink_to(tmp_path / "other")
    else:
        token.write_text("known")
        token.chmod(0o640)
    for words in (("status",), ("status", "--join", "127.0.0.1:9"), ("move", "--from", "a")):
        done = CliRunner().invoke(main, (*words, "--folder", str(tmp_path)))
        assert done.exit_code == 1 and f"{token} is not yours alone" in done.output
