"""What the reporter does with answers: a real HTTP server that answers as it is told."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
import zlib
from collections.abc import Callable, Iterator
from email.message import Message
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from eroica.archive.bundle import Bundle
from eroica.archive.forget import BUNDLE_FILE
from eroica.fleet.records import (
    OURS,
    Batch,
    Beat,
    Receipt,
    RunFacts,
    VerdictBody,
    WindowOrder,
)
from eroica.fleet.reporting.packing import Packer, keep_last, look, watch
from eroica.fleet.reporting.reporter import Reporter, facts_of, hand_over
from eroica.fleet.reporting.sending import Sender, client_for
from eroica.fleet.reporting.spool import SendState, Spool
from eroica.settings import Settings
from eroica.wire.codec import encode_record
from support.run_directories import RunDirectory, a_pattern, a_verdict
from support.servers import serving

FACTS = RunFacts(run="a" * 32, job="llm", began=1000.0)
Answer = Callable[[Batch], "tuple[int, bytes]"]


class Server:
    """Answers as `answer` says; remembers what came."""

    def __init__(self) -> None:
        self.heard: list[Batch] = []
        self.answer: Answer = take
        self.is_proxy, self.url = False, ""

    def hear(self, _path: str, _headers: Message, body: bytes) -> tuple[int, dict[str, str], bytes]:
        batch = msgspec.msgpack.decode(body, type=Batch)
        self.heard.append(batch)
        status, text = self.answer(batch)
        return status, {} if self.is_proxy else {OURS: "1"}, text


def take(batch: Batch) -> tuple[int, bytes]:
    return 200, msgspec.msgpack.encode(Receipt(taken=tuple(piece.name for piece in batch.pieces)))


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    with serving(server.hear) as server.url:
        yield server


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    directory = RunDirectory(tmp_path / "run")
    for window_id in range(1, 5):
        directory.store.save_verdict(window_id, a_verdict(function=f"f{window_id}"))
    spool = Spool(directory.path)
    Packer(spool, FACTS, 10**9).pack(None)
    return spool


def settings_for(server: Server) -> Settings:
    return Settings(fleet=server.url, fleet_token="t")


def sender_to(server: Server) -> Sender:
    return Sender(client_for(settings_for(server)))


def a_beat() -> Beat:
    return Beat(facts=FACTS, at=1000.0, phase="watching")


def waiting(spool: Spool) -> list[str]:
    return [piece.key for _, piece in spool.waiting(100, 10**9)]


def names_in(spool: Spool) -> list[str]:
    return [piece.name for _, piece in spool.waiting(100, 10**9)]


def test_pieces_leave_the_spool_when_the_service_keeps_them_and_not_before(server: Server, spool: Spool) -> None:
    sender = sender_to(server)
    for status in (500, 503, 401, 403, 404, 426, 429):
        server.answer = lambda batch, status=status: (status, b'{"error": "no"}')
        assert not sender.send(spool, a_beat()).ok
        assert waiting(spool) == [f"verdict/{number}" for number in (1, 2, 3, 4)], status
    server.answer = lambda batch: (200, b"<html>a captive portal</html>")
    assert not sender.send(spool).ok
    server.answer = lambda batch: take(msgspec.structs.replace(batch, pieces=batch.pieces[:3]))
    assert sender.send(spool).ok
    assert waiting(spool) == ["verdict/4"]
    server.answer = take
    assert sender.send(spool).ok
    assert spool.is_empty()


def test_one_piece_that_is_refused_costs_only_itself_and_may_be_tried_again(server: Server, spool: Spool) -> None:
    def picky(batch: Batch) -> tuple[int, bytes]:
        return (400, b'{"error": "bad"}') if any(piece.key == "verdict/3" for piece in batch.pieces) else take(batch)

    server.answer = picky
    sender = sender_to(server)
    for _ in range(12):
        sender.send(spool, a_beat())
    assert spool.is_empty()
    aside = sorted(path.name for path in (spool.root / "refused").iterdir())
    assert len(aside) == 2 and aside[1].endswith(".why")
    server.answer = take
    spool.readmit()
    assert waiting(spool) == ["verdict/3"]
    assert sender.send(spool).ok
    assert spool.is_empty()


@pytest.mark.parametrize("status", [400, 403, 407, 502])
def test_what_a_proxy_says_refuses_nothing_for_good(server: Server, spool: Spool, status: int) -> None:
    server.is_proxy = True
    server.answer = lambda batch: (status, b"<html>plain HTTP sent to an HTTPS port</html>")
    sender = sender_to(server)
    for _ in range(12):
        assert not sender.send(spool, a_beat()).ok
    assert (len(waiting(spool)), sender.refused) == (4, 0)
    server.is_proxy, server.answer = False, take
    assert sender.send(spool).ok and sender.send(spool).ok
    assert spool.is_empty()


def test_a_piece_that_is_too_long_for_a_proxy_waits_and_lets_others_pass(server: Server, spool: Spool) -> None:
    def short(batch: Batch) -> tuple[int, bytes]:
        return (413, b"too large") if any(piece.key == "verdict/2" for piece in batch.pieces) else take(batch)

    server.is_proxy, server.answer = True, short
    sender = sender_to(server)
    for _ in range(12):
        sender.send(spool)
    assert waiting(spool) == ["verdict/2"]
    assert not sender.has_work(spool)  # nobody is asked again and again with nothing to hand over
    assert not (spool.root / "refused").exists()
    server.answer = take
    assert sender_to(server).send(spool).ok  # the next process tries it again
    assert spool.is_empty()


def test_a_last_beat_goes_after_the_pieces_and_one_that_is_refused_is_dropped(server: Server, spool: Spool) -> None:
    RunDirectory(spool.run).course(*[100.0] * 9)
    keep_last(spool, FACTS, watch(spool, FACTS))
    assert hand_over(spool.run, settings_for(server))
    assert [(len(batch.pieces), batch.beat is not None) for batch in server.heard] == [(4, False), (0, True)]
    assert server.heard[1].beat is not None and server.heard[1].beat.points.mean_ms == (100.0,) * 9
    keep_last(spool, FACTS, watch(spool, FACTS))
    server.answer = lambda batch: (400, b'{"error": "bad"}')
    assert hand_over(spool.run, settings_for(server))
    assert spool.is_empty()


def no(batch: Batch) -> tuple[int, bytes]:
    del batch
    return 500, b""


def told(server: Server) -> dict[str, list[float]]:
    """Iteration times by run, as they came."""
    found: dict[str, list[float]] = {}
    for batch in server.heard:
        if batch.beat is not None:
            found.setdefault(batch.beat.facts.run, []).extend(batch.beat.points.mean_ms)
    return found


def test_the_last_times_of_a_collector_that_is_killed_are_told(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eroica.fleet.reporting.reporter._GONE_S", 0.5)
    directory = RunDirectory(tmp_path / "run")
    directory.course(*[100.0] * 9)
    collector = subprocess.Popen(["sleep", "600"])

    def killed(batch: Batch) -> tuple[int, bytes]:
        if len(server.heard) == 1:
            directory.course(*[70.0] * 4)
            collector.kill()
            collector.wait()
        return take(batch)

    server.answer = killed
    assert Reporter(directory.path, "llm", "h", settings_for(server), collector.pid).work()
    assert list(told(server).values()) == [directory.means]


def test_who_hands_over_others_runs_takes_no_directory_whose_reporter_has_not_begun(
    server: Server, tmp_path: Path
) -> None:
    directory = RunDirectory(tmp_path / "run")
    directory.end(a_verdict())
    Reporter(directory.path, "llm", "h", settings_for(server), os.getpid())  # it has its directory, no facts yet
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Spool, "claim", lambda _: pytest.fail("its own reporter would find the lock held"))
        assert hand_over(directory.path, settings_for(server)) and not server.heard
    assert hand_over(directory.path, settings_for(server), by_hand=True)
    assert [piece.key for batch in server.heard for piece in batch.pieces] == ["verdict/0"]


def test_windows_of_a_second_run_are_not_handed_over_as_the_first_ones(server: Server, tmp_path: Path) -> None:
    first = RunDirectory(tmp_path / "run", began=time.time() - 500)
    first.course(*[100.0] * 9)
    for window_id in (1, 2):
        first.window(window_id, a_verdict(function="first"))
    server.answer = no
    assert not Reporter(first.path, "llm", "h", settings_for(server)).work()
    second = RunDirectory(first.path, began=time.time())
    second.course(*[50.0] * 9)
    time.sleep(0.1)
    second.window(2, a_verdict(function="second"))
    second.end(a_verdict(function="second"))
    server.answer = take
    server.heard.clear()

    def functions() -> dict[str, set[tuple[str, str]]]:
        found: dict[str, set[tuple[str, str]]] = {}
        for piece in (piece for batch in server.heard for piece in batch.pieces if piece.kind == "verdict"):
            function = (
                msgspec.msgpack.decode(zlib.decompress(piece.body), type=VerdictBody).verdict.findings[0].function.name
            )
            found.setdefault(piece.facts.run, set()).add((piece.key, function))
        return found

    ours = {("verdict/1", "first"), ("verdict/2", "first")}
    assert hand_over(first.path, settings_for(server))  # another job's reporter
    assert list(functions().values()) == [ours]
    assert hand_over(first.path, settings_for(server), by_hand=True)
    assert list(functions().values()) == [ours, {("verdict/0", "second"), ("verdict/2", "second")}]
    assert list(told(server).values()) == [[100.0] * 9, [50.0] * 9]


def test_a_body_that_is_too_long_is_told_and_costs_only_itself(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = RunDirectory(tmp_path / "run")
    for window_id, workers in ((1, 64), (2, 1)):
        directory.window(window_id, a_verdict(), workers=workers)
    adopted(directory)
    monkeypatch.setattr("eroica.fleet.records.MAX_BODY_BYTES", 10_000)
    assert not hand_over(directory.path, settings_for(server))
    sent = sorted(piece.key for batch in server.heard for piece in batch.pieces)
    assert sent == ["patterns/2/0", "verdict/1", "verdict/2"]
    assert "10000 at most" in (directory.path / "fleet" / "refused" / "patterns-1-0.why").read_text()
    assert len(list((directory.path / "windows" / "1" / "patterns").iterdir())) == 64
    monkeypatch.undo()
    assert hand_over(directory.path, settings_for(server), by_hand=True)
    assert server.heard[-1].beat is not None and server.heard[-2].pieces[0].key == "patterns/1/0"
    assert not list((directory.path / "fleet" / "refused").iterdir())


def test_the_service_hears_of_a_window_that_the_collector_took_and_of_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = RunDirectory(tmp_path / "run")
    directory.course(100.0)

    def reporter_of(collector: int) -> Reporter:
        return Reporter(directory.path, "llm", "h", Settings(fleet="http://127.0.0.1:9", fleet_token="t"), collector)

    reporting, facts = reporter_of(os.getpid()), adopted(directory)

    def heard() -> tuple[int, ...] | None:
        return reporting._beat(facts, look(directory.path, SendState())).orders

    reporting._order(WindowOrder(order=7, reason="why?"))
    assert heard() == (), "there is no collector now"
    statuses = [500, 204]
    collector = contextlib.ExitStack()
    url = collector.enter_context(serving(lambda *_: (statuses.pop(0), {}, b"")))
    there = SimpleNamespace(url=url, token="t")
    monkeypatch.setattr("eroica.fleet.reporting.reporter.read_address", lambda run: there)
    gone = reporter_of(dead_process())
    gone._order(WindowOrder(order=7, reason="why?"))
    assert heard() == (), "who is there is another run's collector"
    reporting._order(WindowOrder(order=7, reason="why?"))
    assert heard() == (), "it could not take it"
    for _ in range(2):
        reporting._order(WindowOrder(order=7, reason="why?"))  # the second time it is known
    collector.close()
    assert not statuses
    assert heard() == (7,)
    for one in (reporting, gone):
        one._client.close()
    reporting = reporter_of(os.getpid())  # it was killed before it could say so
    reporting._order(WindowOrder(order=7, reason="why?"))
    assert heard() == (7,)
    reporting._spool.taken(reporting._beat(facts, look(directory.path, SendState())), "told")
    assert heard() == ()
    reporting._client.close()


def adopted(directory: RunDirectory) -> RunFacts:
    return facts_of(Spool(directory.path), "llm", "h")


def dead_process() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_pauses_grow_and_the_services_wish_is_respected(server: Server, spool: Spool) -> None:
    clock = [0.0]
    sender = Sender(client_for(settings_for(server)), clock=lambda: clock[0])
    server.answer = lambda batch: (500, b"")
    pauses = []
    for _ in range(9):
        assert not sender.send(spool).ok
        pauses.append(sender.not_before - clock[0])
        clock[0] = sender.not_before
        assert sender.may
    assert 0.5 <= pauses[0] <= 1.0
    assert 30 <= pauses[-1] <= 60


def test_patterns_are_packed_from_one_file_as_from_a_file_each_and_once(tmp_path: Path) -> None:
    spools = []
    for name in ("each", "one"):
        directory = RunDirectory(tmp_path / name)
        directory.window(1, None, workers=70)
        if name == "one":
            inside = directory.path / "windows" / "1" / "patterns"
            files = [inside / f"{rank}.pattern" for rank in range(70)]
            bundle = Bundle(files[0].with_name(BUNDLE_FILE), append=True)
            for file in files[:69]:
                bundle.add(int(file.stem), file.read_bytes())
                file.unlink()
            bundle.close()
        spools.append(Spool(directory.path))
        Packer(spools[-1], FACTS, 10**9).pack(None, everything=True)
    first, second = ([piece for _, piece in spool.waiting(100, 10**9)] for spool in spools)
    assert [piece.key for piece in first] == ["patterns/1/0", "patterns/1/1"]
    assert [(piece.key, piece.body) for piece in second] == [(piece.key, piece.body) for piece in first]
    names = names_in(spools[1])
    bundle = Bundle(files[0].with_name(BUNDLE_FILE), append=True)
    bundle.add(69, encode_record(a_pattern(69, 1, seconds=0.3)))  # of the second block
    bundle.close()
    files[69].unlink()
    Packer(spools[1], FACTS, 10**9).pack(None, everything=True)
    assert len(set(names_in(spools[1])) - set(names)) == 1
    files[0].with_name(BUNDLE_FILE).write_bytes(b"no such file")
    Packer(spools[1], FACTS, 10**9).pack(None, everything=True)
