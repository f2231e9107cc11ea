"""A job's records in, verdicts out, with a clock of the test's own; and the part in a real collector."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from eroica.archive.store import Store
from eroica.cli import group
from eroica.collector.service import Collector
from eroica.collector.windows import Windows
from eroica.model.verdict import Verdict
from eroica.model.window import Window
from eroica.model.worker import Worker
from eroica.settings import Settings
from eroica.wire.messages import AgentReport, WorkerStatus

from eroica_c4d.options import Options, read_options
from eroica_c4d.records import DelayMatrix, Flow, HostRecord, read_record
from eroica_c4d.watch import MATRIX_FILE, Found, Part, Watch

HOSTS, PER_HOST = 4, 2
STEP_S = 0.5


@dataclass
class Job:
    """Two workers on each of four hosts; every host sends to every other."""

    windows: Windows = field(default_factory=lambda: Windows("j", Settings()))
    now: float = 100.0
    iteration: float = 0.0
    iteration_s: float = 0.1
    delays: dict[tuple[int, int], float] = field(default_factory=dict)
    silent: set[int] = field(default_factory=set)
    moves: bool = True
    pid: int = 1000

    def __post_init__(self) -> None:
        self.watch = Watch(self.windows)

    def live(self, seconds: float) -> list[Found]:
        """So many seconds; returns what was found."""
        found: list[Found] = []
        for _ in range(round(seconds / STEP_S)):
            self.now += STEP_S
            self.iteration += STEP_S / self.iteration_s if self.moves else 0.0
            for host in set(range(HOSTS)) - self.silent:
                self.windows.take(self.now, self.report(host))
                self.watch.reported(self.now, f"node{host}", self.record(host))
            for one in self.watch.tick(self.now):
                self.windows.ledger.show(one.window, "done", one.verdict)
                found.append(one)
        return found

    def report(self, host: int) -> AgentReport:
        workers = (
            Worker(global_rank=rank, world_size=HOSTS * PER_HOST, host=f"node{host}", pid=self.pid + rank)
            for rank in range(host * PER_HOST, (host + 1) * PER_HOST)
        )
        statuses = (WorkerStatus(worker=one, state="steady", iteration=int(self.iteration)) for one in workers)
        return AgentReport(host=f"node{host}", pid=host + 1, workers=tuple(statuses))

    def record(self, host: int) -> HostRecord:
        sent = 200_000 if self.moves else 240  # signs of life are no data
        flows = (
            Flow(
                worker=host * PER_HOST,
                local=f"10.0.0.{host} {5000 + other}",
                remote=f"10.0.0.{other} {5000 + host}",
                sent_bytes=sent,
                received_bytes=sent,
                waiting_byte_s=sent * self.delays.get((host, other), 0.0005),
                busy_s=min(0.45, 5 * self.delays.get((host, other), 0.0005)),
                arriving_s=0.2 if self.delays.get((other, host), 0) > 0.01 else 0.01,
            )
            for other in range(HOSTS)
            if other != host
        )
        return HostRecord(interval_s=STEP_S, flows=tuple(flows))


@pytest.fixture
def job() -> Job:
    job = Job()
    assert job.live(40) == []
    return job


def places(found: Found) -> list[tuple[str, tuple[str, ...]]]:
    told = found.verdict.communication
    assert told is not None
    return [(place["kind"], tuple(place["hosts"])) for place in (told["place"], *told["further"])]


def test_a_slow_connection_is_told_once_and_in_time_and_again_after_it_was_mended(job: Job) -> None:
    for _ in range(2):
        job.iteration_s, job.delays = 0.2, {(1, 2): 0.05}
        began = job.now
        (found,) = job.live(14)
        assert places(found) == [("connection", ("node1", "node2"))]
        assert (found.verdict.verdict, found.verdict.found_by) == ("slow", "communication")
        assert found.verdict.cause is not None and found.verdict.cause.cause == "slow-link"
        assert found.since - began < 7
        assert Verdict.from_json(found.verdict.to_json()).cause == found.verdict.cause
        job.iteration_s, job.delays = 0.1, {}
        assert job.live(80) == []


def test_a_job_that_all_workers_make_slower_or_that_stands_is_left_to_eroica(job: Job) -> None:
    job.iteration_s = 0.2
    assert job.live(40) == []
    job.moves = False
    assert job.live(120) == []


def test_nothing_is_read_while_a_host_is_not_heard_and_it_is_forgotten_after_a_while(job: Job) -> None:
    job.iteration_s, job.delays, job.silent = 0.2, {(1, 2): 0.05}, {3}
    assert job.live(6) == []
    (found,) = job.live(20)
    assert places(found) == [("connection", ("node1", "node2"))]


def test_other_processes_have_no_past(job: Job) -> None:
    job.pid, job.iteration_s, job.delays = 5000, 0.2, {(1, 2): 0.05}
    assert job.live(40) == []


@pytest.mark.parametrize(("purpose", "known"), [("baseline", True), ("slow", False)])
def test_a_baseline_window_is_part_of_the_healthy_past_and_others_are_not(
    purpose: str, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job()
    window = Window(window_id=1, purpose=purpose, reason="", first_iteration=1, last_iteration=9)  # type: ignore[arg-type]
    monkeypatch.setattr(Windows, "window", window)
    assert job.live(24) == []
    job.iteration_s, job.delays = 0.2, {(1, 2): 0.05}
    assert bool(job.live(14)) is known


# ---------------------------------------------------------------------- strangers


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\xc1", msgspec.msgpack.encode([1]), msgspec.msgpack.encode({"interval_s": float("nan")}),
        msgspec.msgpack.encode({"interval_s": -1.0}), b"\x81" * 5000,
    ],
)  # fmt: skip
def test_what_is_no_record_is_none(data: bytes) -> None:
    assert read_record(data) is None


@pytest.mark.parametrize(
    "wrong",
    [{"busy_s": float("inf")}, {"waiting_byte_s": -1.0}, {"sent_bytes": -5}, {"worker": 10**9}, {"local": "x" * 500}],
    ids=lambda wrong: next(iter(wrong)),
)
def test_flows_that_cannot_be_are_left_out(wrong: dict[str, object]) -> None:
    good = {"worker": 1, "local": "a 1", "remote": "b 2"}
    record = read_record(msgspec.msgpack.encode({"interval_s": 1.0, "flows": [good, {**good, **wrong}]}))
    assert record is not None and [one.local for one in record.flows] == ["a 1"]


def test_no_host_speaks_for_the_workers_of_another(job: Job) -> None:
    forged = Flow(worker=0, local="10.0.0.3 5000", remote="10.0.0.0 5003", sent_bytes=10**9, waiting_byte_s=1e12)
    before = job.watch.matrix(job.now)
    job.watch.reported(job.now, "node3", HostRecord(interval_s=STEP_S, flows=(forged,)))
    after = job.watch.matrix(job.now)
    assert before is not None and after is not None
    assert max(filter(None, after.delay_s[3])) == pytest.approx(max(filter(None, before.delay_s[3])))


# ---------------------------------------------------------------------- in the collector


def collector(tmp_path: Path) -> Collector:
    return Collector("j", Store(tmp_path), Settings(), "t", lambda *_: pytest.fail("no window was captured"))


def test_it_is_off_unless_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EROICA_C4D", raising=False)
    assert collector(tmp_path).parts.call("tick") == {}
    monkeypatch.setenv("EROICA_C4D", "perhaps")
    mistaken = collector(tmp_path)
    assert mistaken.parts.call("tick") == {} and "EROICA_C4D cannot be 'perhaps'" in str(mistaken.windows.ledger.notes)


def test_a_slow_way_becomes_a_verdict_a_window_a_matrix_and_a_metric(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EROICA_C4D", "true")
    now, told = [100.0], list[tuple[int, Verdict]]()
    whole = collector(tmp_path)
    whole.clock = lambda: now[0]
    whole.listeners.append(lambda window, verdict: told.append((window, verdict)))
    asked: list[str] = []
    monkeypatch.setattr(whole.windows, "asked", lambda _, request: asked.append(request.reason))
    job = Job(windows=whole.windows)
    for step in range(112):
        now[0] = job.now = job.now + STEP_S
        job.iteration += STEP_S / job.iteration_s
        if step == 80:
            job.iteration_s, job.delays = 0.2, {(1, 2): 0.05}
        for host in range(HOSTS):
            whole.windows.take(now[0], job.report(host))
            whole.parts.call("reported", f"node{host}", msgspec.msgpack.encode(job.record(host)), name="ways")
        whole.parts.call("tick")
    ((window, verdict),) = told
    assert verdict.cause is not None and verdict.cause.hosts == ("node1", "node2")
    assert (tmp_path / "windows" / str(window) / "verdict.json").is_file()
    assert asked == ["communication shows the connection from node1 to node2"]
    names = {metric.name for families in whole.parts.call("metrics").values() for metric in families}
    assert names == {"eroica_way_delay_seconds", "eroica_way_delay_max_seconds", "eroica_ways"}
    shown = CliRunner().invoke(group, ["ways", str(tmp_path)], terminal_width=200)
    assert shown.exit_code == 0 and "50.0 (0.5)" in shown.output and (tmp_path / MATRIX_FILE).is_file()


def test_a_directory_without_a_matrix_says_what_turns_it_on(tmp_path: Path) -> None:
    shown = CliRunner().invoke(group, ["ways", str(tmp_path)])
    assert shown.exit_code == 1 and "EROICA_C4D=true" in str(shown.exception)


def test_variables_are_checked() -> None:
    assert read_options({}) == Options()
    assert read_options({"EROICA_C4D": "1", "EROICA_ACT_FROM": "0.9"}) == Options(watches=True, act_from=0.9)
    for name, text in (("ACT_FROM", "1.5"), ("ACT_FROM", "nan"), ("ACT_PAUSE_S", "soon"), ("ACT_MOST", "-1")):
        with pytest.raises(Exception, match=f"EROICA_{name} cannot be"):
            read_options({f"EROICA_{name}": text})


def test_series_are_bounded_and_the_longest_way_is_among_them(tmp_path: Path) -> None:
    part = Part(collector(tmp_path))
    hosts = tuple(f"node{number}" for number in range(40))
    rows = tuple(tuple(None if i == j else 0.05 if (i, j) == (7, 9) else 0.001 for j in range(40)) for i in range(40))
    part._matrix = DelayMatrix(hosts=hosts, delay_s=rows, bytes_per_s=(), busy=(), held=())
    delays, longest, ways = part.metrics()
    assert len(delays.samples) == 32 and (longest.samples[0].value, ways.samples[0].value) == (0.05, 1560)
    assert {"run": "j", "from": "node7", "to": "node9"} in [sample.labels for sample in delays.samples]
