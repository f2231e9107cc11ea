"""What others may have put where we write and read, and what hostile bytes and names do to us."""

from __future__ import annotations

import logging
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from neighbors import NEIGHBOR

from eroica.errors import InputError
from eroica.model.pattern import WorkerPattern
from eroica.model.words import line
from eroica.settings import Settings, load_settings
from eroica.wire.codec import decode_record, plain
from eroica.wire.logs import log_to
from eroica.wire.places import (
    places,
    private_directory,
    private_file,
    read_private,
    write_private,
    write_whole,
)

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
OURS = f"eroica-{os.getuid()}"


@pytest.fixture(params=[0o000, 0o022, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


def test_what_is_made_is_private_from_the_start_under_every_umask(tmp_path: Path, umask: int) -> None:
    made = private_directory(tmp_path / "a" / "b" / OURS / "job@host")
    write_private(made / "file", b"x")
    write_whole(made / "whole", b"x")
    for path in (*made.parents[:3], made):
        assert mode(path) == 0o700
    assert mode(made / "file") == mode(made / "whole") == 0o600


def test_a_directory_of_ours_that_was_open_to_others_is_closed_and_a_users_own_stays_as_it_is(tmp_path: Path) -> None:
    loose, run = tmp_path / OURS / "job@host", tmp_path / "run"
    loose.mkdir(parents=True)
    run.mkdir()
    for path in (loose.parent, loose, run):
        path.chmod(0o755)
    private_directory(loose)
    private_directory(run)
    assert (mode(loose.parent), mode(loose), mode(run)) == (0o700, 0o700, 0o755)


def test_a_directory_that_everybody_may_write_into_is_refused(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    run.chmod(0o1777)
    with pytest.raises(PermissionError, match="everybody may write"):
        private_directory(run)
    run.chmod(0o777)
    with pytest.raises(PermissionError, match="sticky"):
        private_directory(run / OURS / "job@host")
    run.chmod(0o1777)
    private_directory(run / OURS / "job@host")


def test_a_volume_of_a_pod_is_used_though_it_has_no_sticky_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o777)
    monkeypatch.setattr(Path, "is_mount", lambda path: path == tmp_path)
    assert mode(private_directory(tmp_path / OURS / "job@host").parent) == 0o700
    (tmp_path / "below").mkdir()
    (tmp_path / "below").chmod(0o777)
    with pytest.raises(PermissionError, match="sticky"):
        private_directory(tmp_path / "below" / OURS / "job@host")


@pytest.mark.root
@needs_root
def test_a_volume_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "is_mount", lambda path: path == tmp_path)
    tmp_path.chmod(0o777)
    os.chown(tmp_path, NEIGHBOR, NEIGHBOR)
    with pytest.raises(PermissionError, match="sticky"):
        private_directory(tmp_path / OURS / "job@host")


@pytest.mark.root
@needs_root
@pytest.mark.parametrize("planted", ["", "job@host"])
def test_a_directory_of_another_user_is_refused(tmp_path: Path, planted: str) -> None:
    for kind in (OURS, "eroica-report"):
        place = tmp_path / kind / planted
        place.mkdir(parents=True, mode=0o777)
        os.chown(place, NEIGHBOR, NEIGHBOR)
        with pytest.raises(PermissionError, match="another user"):
            private_directory(tmp_path / kind / "job@host")


def _link(path: Path, target: Path) -> None:
    path.symlink_to(target)


def _second_name(path: Path, target: Path) -> None:
    path.hardlink_to(target)


def _pipe(path: Path, target: Path) -> None:
    os.mkfifo(path)


def _foreign(path: Path, target: Path) -> None:
    path.write_bytes(b"theirs")
    os.chown(path, NEIGHBOR, NEIGHBOR)


@pytest.mark.parametrize(
    "plant", [_link, _second_name, _pipe, pytest.param(_foreign, marks=[pytest.mark.root, needs_root])]
)
def test_nothing_is_written_to_what_was_planted_and_nothing_read_from_it(
    tmp_path: Path, plant: Callable[[Path, Path], None]
) -> None:
    target, path = tmp_path / "target", tmp_path / "file"
    target.write_bytes(b"before")
    plant(path, target)
    with pytest.raises(OSError):
        write_private(path, b"ours")
    if plant is not _second_name:
        with pytest.raises(OSError):
            read_private(path)
    assert target.read_bytes() == b"before"


def test_a_draft_that_was_planted_is_not_written_into(tmp_path: Path) -> None:
    target, path = tmp_path / "target", tmp_path / "operator.token"
    target.write_bytes(b"before")
    for plant in (_link, _second_name):
        plant(tmp_path / f".operator.token.{os.getpid()}", target)
        write_whole(path, b"ours")
        assert (target.read_bytes(), path.read_bytes()) == (b"before", b"ours")


def test_a_file_that_is_larger_than_expected_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 100)
    assert read_private(tmp_path / "file", 100) == b"x" * 100
    with pytest.raises(OSError, match="more than 99"):
        read_private(tmp_path / "file", 99)


def test_an_older_file_that_others_could_read_is_closed_before_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("old\n")
    path.chmod(0o666)
    os.close(private_file(path, os.O_WRONLY | os.O_APPEND))
    assert mode(path) == 0o600 and path.read_text() == "old\n"


# ---------------------------------------------------------------------- bytes and names


@pytest.mark.parametrize(
    "data",
    [
        zlib.compress(b"\x81\xa1z" + b"\x91" * 300_000 + b"\x01"),
        zlib.compress(b"\0" * 50_000_000),
        zlib.compress(msgspec.msgpack.encode({"worker": {"global_rank": 1}, "functions": "x"}))[:-3],
        os.urandom(500),
    ],
)
def test_bytes_that_are_no_record_end_in_one_error_that_callers_know(data: bytes) -> None:
    with pytest.raises(InputError):
        decode_record(data, WorkerPattern)


def test_names_that_are_no_text_can_be_sent_all_the_same() -> None:
    name = os.fsdecode(b"caf\xe9" + b"x" * 1000)
    assert len(msgspec.msgpack.encode(plain(name))) < 600
    where = places({"EROICA_HOST": name, "EROICA_JOB": "j"})
    assert msgspec.msgpack.encode(where.host) and where.log("agent").parent == where.run / "log"


def test_a_host_name_with_slashes_names_no_other_place() -> None:
    where = places({"EROICA_HOST": "../../etc/x", "EROICA_JOB": "j", "EROICA_RUN_DIR": "/r"})
    assert where.log("agent").parent == Path("/r/log") and ".." not in where.runtime.parts


def test_escape_sequences_reach_neither_terminal_nor_log(tmp_path: Path) -> None:
    hostile = "worker\x1b[2J\x9b1m\r\n2026-01-01 ERROR forged\u202e\u2028line"
    assert line(hostile).isprintable() and "forged" in line("  " + hostile)[2:]
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    for handler in handlers:
        root.removeHandler(handler)
    loud = {name: logging.getLogger(name).level for name in ("httpx", "uvicorn.error", "asyncio", "h11")}
    try:
        log_to(tmp_path / "log")
        logging.warning("%s refused", hostile)
        logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
        logging.getLogger("httpx").info("a header: Bearer secret")
    finally:
        for handler in root.handlers[:]:
            root.removeHandler(handler)
            handler.stream.close()  # type: ignore[attr-defined]
        for handler in handlers:
            root.addHandler(handler)
        root.setLevel(level)
        for name, before in loud.items():
            logging.getLogger(name).setLevel(before)
    written = (tmp_path / "log").read_text(encoding="utf-8")
    assert mode(tmp_path / "log") == 0o600
    assert written.count("\n") == 1 and written.rstrip("\n").isprintable() and "forged" in written


@pytest.mark.root
@needs_root
def test_settings_that_a_stranger_left_where_everybody_may_write_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "eroica.toml"
    path.write_text("window_s = 1\n")
    os.chown(path, NEIGHBOR, NEIGHBOR)
    assert load_settings(environ={}, directory=tmp_path).window_s == 1  # a colleague's, in a directory of ours
    tmp_path.chmod(0o1777)
    assert load_settings(environ={}, directory=tmp_path).window_s == Settings().window_s
    assert load_settings(environ={"EROICA_CONFIG": str(path)}).window_s == 1
