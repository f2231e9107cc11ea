"""A job is its user's alone: what it leaves and has open, who can reach it, and what garbage does to it."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from neighbors import EROICA, NEIGHBOR, Job, as_neighbor, environment, request, say, watched

from eroica.wire.address import read_address
from eroica.wire.beat import FILE_BYTES, MAGIC, BeatWriter
from support.fixtures import let_others_in

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    root = tmp_path_factory.mktemp("job")
    root.chmod(0o755)  # the neighbor gets as far as Eroica itself lets them
    for above in root.parents:
        if above.stat().st_uid == os.getuid() and above.is_relative_to(root.parents[1]):
            above.chmod(0o755)
    one = Job(root)
    with watched(one):
        yield one


def everything(job: Job) -> list[Path]:
    roots = [job.where.run, job.where.runtime.parent, job.where.scratch.parent]
    return [path for root in roots for path in (root, *root.rglob("*"))]


@pytest.mark.jobs
def test_every_file_and_directory_of_a_job_is_its_users_alone_whatever_the_umask(job: Job) -> None:
    names = {path.name for path in everything(job)}
    assert {"collector.json", "status.json", "agent-here.log", "collector.log", "agent.lock", "run"} <= names
    assert any(name.endswith(".beat") for name in names)
    for path in everything(job):
        with contextlib.suppress(FileNotFoundError):  # a draft
            facts = path.lstat()
            assert not facts.st_mode & 0o077 and facts.st_uid == os.getuid(), path
            assert not stat.S_ISLNK(facts.st_mode), path


@pytest.mark.jobs
def test_the_token_stands_in_collector_json_and_nowhere_else(job: Job) -> None:
    token = job.address.token
    assert len(token) >= 32
    for path in job.where.run.rglob("*"):
        if path.is_file() and path.parent.name != "hosts" and path.name != "collector.json":
            assert token.encode() not in path.read_bytes(), path
    for entry in Path("/proc").glob("[0-9]*"):
        for name in ("cmdline", "environ"):
            with contextlib.suppress(OSError):
                assert token.encode() not in (entry / name).read_bytes(), entry


@pytest.mark.jobs
def test_the_collector_of_one_host_listens_on_loopback_only(job: Job) -> None:
    sockets = {str(each.readlink()) for each in Path(f"/proc/{job.address.pid}/fd").iterdir() if each.is_symlink()}
    listening = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                listening.append(fields[1])
    assert listening == [f"0100007F:{job.port:04X}"]


@pytest.mark.jobs
@pytest.mark.root
@needs_root
def test_another_user_can_neither_read_nor_change_nor_signal_anything(job: Job) -> None:
    targets = [path for path in everything(job) if path not in (job.where.run.parent,)]
    for path in targets:
        act = path.iterdir if path.is_dir() else path.read_bytes
        assert "Permission" in as_neighbor(lambda act=act: list(act())), path
    for directory in (path for path in targets if path.is_dir()):
        assert "Permission" in as_neighbor((directory / "planted").touch), directory
    for pid in job.processes():
        assert "Permission" in as_neighbor(Path(f"/proc/{pid}/environ").read_bytes)
        assert "not permitted" in as_neighbor(lambda pid=pid: os.kill(pid, 0))


@pytest.mark.jobs
def test_garbage_at_the_port_leaves_the_job_watched_and_the_log_short(job: Job) -> None:
    log, token = job.where.run / "log" / "collector.log", job.address.token
    before = log.stat().st_size
    say(job.port, os.urandom(50_000), 1.0)
    say(job.port, b"GET / HTTP/1.1\r\n" + b"X: " + b"y" * 200_000, 1.0)
    say(job.port, request("GET", "/v1/windows/" + "9" * 5000 + "/failures"))
    say(job.port, request("GET", "/", more={"Upgrade": "websocket", "Connection": "upgrade"}), 1.0)
    say(job.port, request("POST", "/v1/report") * 20 + b"\0" * 1000, 1.0)
    assert log.stat().st_size == before  # strangers write nothing into it
    nested = b"\x83\xa4host\xa1a\xa3pid\x01\xa1z" + b"\x91" * 300_000 + b"\x01"
    for path, body, wanted in (
        ("/v1/report", nested, b"400"),
        ("/v1/report", b"\x82\xa4host\xa2\xff\xfe\xa3pid\x01", b"400"),
        ("/v1/report", b"\xdd\xff\xff\xff\xff", b"400"),
        ("/v1/report", b"\0" * 2_000_100, b"413"),
        ("/v1/patterns", os.urandom(1000), b"400"),
    ):
        assert say(job.port, request("POST", path, token, body))[9:12] == wanted, (path, body[:20])
    job.moves_on()


@pytest.mark.jobs
def test_idle_and_slow_strangers_keep_no_agent_out(job: Job) -> None:
    with contextlib.ExitStack() as stack:
        for number in range(200):
            line = stack.enter_context(socket.create_connection(("127.0.0.1", job.port), timeout=5))
            if number % 2:
                with contextlib.suppress(OSError):
                    line.sendall(b"POST /v1/report HTTP/1.1\r\nHost: c\r\nContent-Length: 1000000\r\n")
        job.moves_on()
        until = time.monotonic() + 5  # who spoke is answered and closed when its turn comes
        while (held := len(list(Path(f"/proc/{job.address.pid}/fd").iterdir()))) >= 120 and time.monotonic() < until:
            time.sleep(0.1)
        assert held < 120


@pytest.mark.jobs
def test_garbage_among_the_beat_files_leaves_the_workers_watched(job: Job) -> None:
    runtime = job.where.runtime
    elsewhere = job.root / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kept").write_text("kept")
    (runtime / "link").symlink_to(elsewhere)
    (runtime / "away.beat").symlink_to("/etc/passwd")
    os.mkfifo(runtime / "pipe.beat")
    (runtime / "short.beat").write_bytes(b"x")
    (runtime / os.fsdecode(b"\xff\x1b[31m.beat")).write_bytes(b"x")
    deep = MAGIC + (3000).to_bytes(4, sys.byteorder) + b"[" * 3000
    (runtime / "7.beat").write_bytes(deep.ljust(FILE_BYTES, b"\0"))
    writers = []
    for number, wrong in enumerate(({"pid": 1}, {"pid": 2**70}, {"host": "\ud800"}, {"global_rank": 2**80})):
        facts = {"global_rank": 9, "pid": os.getpid(), "world_size": 2, "host": "h", **wrong}
        writer = BeatWriter.create(runtime, facts)
        writer.path.rename(runtime / f"{facts['pid'] if number else 2}.beat")
        writers.append(writer)
    for fifo in runtime.glob("*.ask"):
        handle = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
        os.write(handle, os.urandom(4096))
        os.close(handle)
    time.sleep(0.6)  # one scan
    job.moves_on()
    assert [worker["worker"]["global_rank"] for worker in job.status()["workers"]] == [0]
    assert b"\x1b" not in (job.where.run / "log" / "agent-here.log").read_bytes()
    for writer in writers:  # their shared memory was there to be read until now
        writer.close()


@pytest.mark.jobs
def test_in_the_end_the_job_was_watched_its_directories_are_gone_and_nothing_else_is(job: Job) -> None:
    _, told = job.end()
    assert job.process.returncode == 0, told
    assert (job.where.run / "verdict.json").stat().st_mode & 0o777 == 0o600
    assert not job.where.runtime.exists() and not job.where.scratch.exists()
    assert (job.root / "elsewhere" / "kept").read_text() == "kept"
    assert not (job.desk / "planted").exists()  # nothing was imported from the working directory


# ---------------------------------------------------------------------- others were here first


@pytest.mark.jobs
@pytest.mark.root
@needs_root
def test_a_directory_that_another_user_made_first_is_not_used_and_the_job_runs_all_the_same(tmp_path: Path) -> None:
    let_others_in(tmp_path)
    memory, trap = tmp_path / "memory", tmp_path / "trap"
    for place in (memory, trap):
        place.mkdir()
        place.chmod(0o1777)
    planted = memory / f"eroica-{os.getuid()}"
    assert as_neighbor(lambda: planted.mkdir(mode=0o777)) == ""
    assert as_neighbor(lambda: (planted / "ours@here").symlink_to(trap)) == ""
    assert as_neighbor(lambda: (planted / "theirs@here").mkdir(mode=0o777)) == ""
    assert as_neighbor(lambda: (planted / "theirs@here" / "run").write_text(f"{trap}\n")) == ""
    done = subprocess.run(
        [EROICA, "run", "--", sys.executable, "-c", "import eroica; eroica.step(); print('trained')"],
        env=environment(tmp_path), cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert "unwatched" in done.stderr and "belongs to another user" in done.stderr
    assert not list(trap.iterdir()) and sorted(path.name for path in planted.iterdir()) == ["ours@here", "theirs@here"]
    status = subprocess.run(
        [EROICA, "status"], env=environment(tmp_path), capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "no job" in status.stdout


@pytest.mark.jobs
@pytest.mark.root
@needs_root
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv to start programs as another user")
def test_jobs_of_two_users_with_one_name_in_one_place_do_not_meet(tmp_path: Path) -> None:
    let_others_in(tmp_path)
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    theirs = tmp_path / "theirs"
    # reading rights only, for an interpreter that lies in our home; they make the test harder, not easier
    rights = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
    neighbor = ("setpriv", f"--reuid={NEIGHBOR}", f"--regid={NEIGHBOR}", "--clear-groups", *rights)
    common = {"EROICA_RUNTIME_DIR": str(shared), "EROICA_SCRATCH_DIR": str(shared), "TMPDIR": str(shared)}
    for place in (theirs, theirs / "desk"):
        place.mkdir()
        os.chown(place, NEIGHBOR, NEIGHBOR)
    mine, other = Job(tmp_path / "mine", **common), Job(theirs, neighbor, **common)
    with watched(mine, other):
        for one in (mine, other):
            assert one.process.poll() is None, one.end()
            one.moves_on()
            assert len(one.status()["workers"]) == 1
        pids = [one.status()["workers"][0]["worker"]["pid"] for one in (mine, other)]
        assert pids[0] != pids[1]
        assert mine.address.token != other.address.token
        assert read_address(mine.where.run, "here") is not None and read_address(other.where.run, "here") is None
        assert say(mine.port, request("GET", "/v1/status", other.address.token)).startswith(b"HTTP/1.1 401")
        owners = {path.name: path.stat().st_uid for path in shared.iterdir()}
        assert owners == {f"eroica-{uid}": uid for uid in (os.getuid(), NEIGHBOR)}
    assert (mine.process.returncode, other.process.returncode) == (0, 0)
