"""The collector's HTTP side, in process: windows, jobs that stand still, hostile messages, and a second collector."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import httpx
import msgspec
import pytest

from eroica.archive.forget import forget
from eroica.archive.load import open_window, read_blockage, read_patterns
from eroica.archive.store import Store
from eroica.collector.history import final_verdict
from eroica.collector.intake import MAX_WORKERS, clean_report, clean_text
from eroica.collector.ledger import History, read_history
from eroica.collector.participants import Roll
from eroica.collector.service import MAX_LOOKS_BYTES, MAX_PATTERN_BYTES, Collector
from eroica.model.look import Blockage, Ending, HostLooks, ProcessLook, ThreadLook, WorkerLook
from eroica.model.verdict import Recurrence, Verdict, VerdictWindow
from eroica.model.window import Window
from eroica.settings import Settings
from eroica.wire.address import Address, announce_to_all
from eroica.wire.codec import encode_record
from eroica.wire.messages import (
    AgentReport,
    OrderResult,
    WorkerStatus,
    WorkerTrigger,
)
from support.collectors import TOKEN, finish, pattern, post, shown, status, tell, until, with_collector, worker
from support.run_directories import save_patterns
from support.verdicts import cause as named
from support.verdicts import plain

SILENT = {"silent": True, "silent_s": 12.0, "silence": "no event for 12.0 s, limit 10.0 s"}


def verdict(word: str, summary: str = "", cause: str = "") -> Verdict:
    return plain(word, summary, *([named(cause, 1)] if cause else []))


def blocked(blockage: Blockage, job: str, settings: Settings) -> Verdict | None:
    return verdict("blocked", f"{len(blockage.looks)} looks, {len(blockage.deaths)} deaths")


def look(**more: object) -> WorkerLook:
    return WorkerLook(worker=worker(), process=ProcessLook(pid=7, **more))


def final_in(run: Path) -> Verdict:
    return Verdict.from_json((run / "verdict.json").read_bytes())


async def capture(client: httpx.AsyncClient, window_id: int = 1) -> None:
    """A window is asked for, probed and captured."""

    def at(iteration: int, **result: object) -> WorkerStatus:
        order = OrderResult(window_id=window_id, status="done", **result) if result else OrderResult()
        return status(worker=worker(world_size=1), iteration=iteration, baseline_s=0.1, result=order)

    await tell(client, at(100))
    await post(client, "/v1/profile", {})
    probe = (await tell(client, at(101))).order
    assert probe is not None and probe.kind == "probe"
    window = (await tell(client, at(113, kind="probe", events=10))).order
    assert window is not None and window.kind == "window"
    await tell(client, at(400, kind="window"))


def test_a_window_runs_from_request_to_verdict_on_disk(tmp_path: Path) -> None:
    async def script(collector: Collector, client: httpx.AsyncClient) -> None:
        await capture(client)
        assert (await client.post("/v1/patterns", content=encode_record(pattern()))).status_code == 204
        await asyncio.sleep(0.2)
        assert (await shown(client)).windows[0].summary == "1 seen"
        await finish(collector, client)

    with_collector(tmp_path, script)
    final = final_in(tmp_path)
    assert final.summary == "1 seen" and final.cost.trigger_to_verdict_s is not None
    window, patterns, notes = read_patterns(open_window(tmp_path / "windows" / "1"))
    assert window.window_id == 1 and len(patterns) == 1 and notes == ()


def test_without_the_token_nothing_is_answered(tmp_path: Path) -> None:
    async def script(collector: Collector, client: httpx.AsyncClient) -> None:
        for method, path in (("POST", "/v1/report"), ("GET", "/v1/status"), ("POST", "/v1/finish")):
            answer = await client.request(method, path, headers={"Authorization": "Bearer guess"})
            assert answer.status_code == 401
        assert not collector.windows.ended

    with_collector(tmp_path, script)


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        ("/v1/report", msgspec.msgpack.encode({"host": 3, "pid": "x"}), 400),
        ("/v1/patterns", b"\x00" * 100, 400),
        ("/v1/patterns", b"\x00" * (MAX_PATTERN_BYTES + 1), 413),
        ("/v1/profile", msgspec.msgpack.encode({"iterations": "many"}), 400),
        ("/v1/windows/1/failures", b"", 400),
        ("/v1/looks", bytes(MAX_LOOKS_BYTES + 1), 413),
        ("/v1/looks", msgspec.msgpack.encode(HostLooks(look_id=1, host=" ")), 400),
        ("/v1/report", msgspec.msgpack.encode(AgentReport(host="", pid=1)), 400),
        ("/v1/profile", msgspec.msgpack.encode({"seconds": math.nan}), 400),
        ("/v1/profile", msgspec.msgpack.encode({"iterations": 2**63}), 400),
    ],
)
def test_garbage_is_refused_with_a_reason(tmp_path: Path, path: str, body: bytes, code: int) -> None:
    async def script(collector: Collector, client: httpx.AsyncClient) -> None:
        answer = await client.post(path, content=body)
        assert answer.status_code == code and answer.json()["error"]

    with_collector(tmp_path, script)


def test_a_run_directory_that_cannot_be_written_is_a_note_not_an_end(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")

    async def script(collector: Collector, client: httpx.AsyncClient) -> None:
        await tell(client, status(iteration=10))
        await finish(collector, client)
        assert collector.final is not None and collector.final.verdict == "undetermined"
        assert any("could not write" in note for note in collector.windows.ledger.notes)

    with_collector(blocked, script)


def test_a_windows_verdict_on_disk_says_that_an_earlier_window_found_the_same(tmp_path: Path) -> None:
    cause = named("compute-slow", 0, kind="compute", gain=0.2, confidence=0.8)
    found = plain("slow", "Slow.", cause)

    async def script(collector: Collector, client: httpx.AsyncClient) -> None:
        collector.resume(History(last_id=1, verdicts=((1, found),)))
        await capture(client, window_id=3)
        await client.post("/v1/patterns", content=encode_record(pattern(window_id=3)))
        await asyncio.sleep(0.2)
        await finish(collector, client)

    with_collector(tmp_path, script, lambda *_: found)
    kept = open_window(tmp_path / "windows" / "3").verdict
    assert kept is not None and kept.cause is not None and kept.cause.confidence == 0.8
    recurrence = Recurrence(kind="recurring", windows=(1, 3), looked=2, gains=(0.2, 0.2), costs_ms=(None, None))
    assert kept.cause.recurrence == recurrence
    final = final_in(tmp_path)
    assert final.summary == "Slow. Seen in both windows (1, 3)." and final.cause is not None
    assert final.cause.recurrence == recurrence and final.cause.confidence > 0.8


async def ended_by_a_scheduler(collector: Collector, client: httpx.AsyncClient) -> None:
    """One worker has reported, then the collector gets SIGTERM."""
    for iteration in (100, 200):
        await tell(client, status(worker=worker(world_size=1), iteration=iteration, baseline_s=0.1))
    collector.interrupt()
    await asyncio.wait_for(collector.run(0.01), 5)


def test_a_collector_that_comes_after_the_workers_keeps_what_the_one_before_it_concluded(tmp_path: Path) -> None:
    """A scheduler's SIGTERM ends the first one, too; until the second one listens, the workers may be gone."""

    async def second(collector: Collector, client: httpx.AsyncClient) -> None:
        await finish(collector, client, 1)

    async def killed(collector: Collector, client: httpx.AsyncClient) -> None:
        """It says nothing more."""

    with_collector(tmp_path, ended_by_a_scheduler)
    concluded = final_in(tmp_path)
    assert concluded.coverage.workers_reported == 1
    with_collector(tmp_path, killed, resume="ended with status 143")
    with_collector(tmp_path, second, resume="ended with status 143")
    final = final_in(tmp_path)
    assert final.coverage.workers_reported == 1 and "No worker" not in final.summary
    assert final.verdict == "undetermined" and "status 1" in final.summary, final.summary


@pytest.mark.parametrize("first_is_there", [True, False])
def test_a_collector_to_which_nobody_reported_says_nothing_over_that_of_the_job(
    tmp_path: Path, first_is_there: bool
) -> None:
    """Hosts share the run directory; a scheduler ends all processes of a job, with them a collector that came late."""

    async def second(collector: Collector, _client: httpx.AsyncClient) -> None:
        collector.interrupt()
        await asyncio.wait_for(collector.run(0.01), 5)
        collector.save_status()

    if first_is_there:
        announce_to_all(tmp_path, Address(url="http://192.0.2.2:1", token=TOKEN, pid=1, host="node0"))
        with_collector(tmp_path, second)
        assert not (tmp_path / "verdict.json").exists()
        (tmp_path / "collector.json").unlink()
    with_collector(tmp_path, ended_by_a_scheduler)
    status_text = (tmp_path / "status.json").read_bytes()
    with_collector(tmp_path, second)
    assert final_in(tmp_path).coverage.workers_reported == 1
    assert (tmp_path / "status.json").read_bytes() == status_text


def test_a_silence_becomes_a_verdict_on_disk_that_can_be_replayed(tmp_path: Path) -> None:
    async def script(collector: Collector, client: httpx.AsyncClient) -> None:
        assert (await tell(client, status(), status(1))).look == 0
        assert (await tell(client, status(), status(1, **SILENT))).look == 1
        assert "looking at all workers" in (await shown(client)).message
        looks = msgspec.msgpack.encode(HostLooks(look_id=1, host="h", first=(look(),), second=(look(),)))
        assert (await client.post("/v1/looks", content=looks)).status_code == 204
        await until(lambda: collector.blockages.standing)
        now = await shown(client)
        assert now.phase == "blocked" and now.windows[0].purpose == "blocked" and now.windows[0].verdict == "blocked"
        await finish(collector, client, -9)

    with_collector(tmp_path, script, diagnosis=blocked)
    final = final_in(tmp_path)
    assert final.verdict == "blocked" and final.cost.trigger_to_verdict_s is not None
    assert read_blockage(open_window(tmp_path / "windows" / "1")).looks[0].first == (look(),)
    window = msgspec.json.decode((tmp_path / "windows" / "1" / "window.json").read_bytes(), type=Window)
    assert window.kind == "blocked"


def test_a_diagnosis_that_fails_costs_only_itself(tmp_path: Path) -> None:
    def broken(*_: object) -> Verdict:
        raise RuntimeError("no idea")

    async def script(collector: Collector, client: httpx.AsyncClient) -> None:
        await tell(client, status(**SILENT))
        await post(client, "/v1/looks", HostLooks(look_id=1, host="h"))
        await until(lambda: not collector.blockages.busy)
        assert (await shown(client)).windows[0].phase == "failed"
        await finish(collector, client, 1)

    with_collector(tmp_path, script, diagnosis=broken)
    assert (tmp_path / "verdict.json").exists()


# ---------------------------------------------------------------------- hostile


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, -1.0, 1e300])
@pytest.mark.parametrize("whole", [2**63, 2**64 - 1, -(2**63)])
def test_impossible_numbers_do_no_harm(tmp_path: Path, number: float, whole: int) -> None:
    trigger = WorkerTrigger(count=whole, reason="x", baseline_s=number, current_s=number)
    result = OrderResult(window_id=whole, status="done", events=whole, stall_s=number, first_iteration=whole)
    odd = status(
        iteration=whole, current_s=number, baseline_s=number, trigger=trigger, result=result, silent_s=number,
        ending=Ending(number=whole, ago_s=number),
    )  # fmt: skip

    async def script(collector: Collector, client: httpx.AsyncClient) -> None:
        for each in (odd, status(1, worker=worker(1, world_size=whole)), status(1, worker=worker(whole, pid=8))):
            await tell(client, each, status(1))
            await tell(client, msgspec.structs.replace(each, ended=True), status(1))
        await post(client, "/v1/profile", {})
        await tell(client, odd, status(1))
        assert (await shown(client)).workers
        looks = HostLooks(look_id=whole, host="h", first=(look(cpu_s=number),))
        assert (await post(client, "/v1/looks", looks)).status_code == 204
        assert collector.windows.roll.world_size <= MAX_WORKERS

    with_collector(tmp_path, script)


@pytest.mark.parametrize(
    ("odd", "code"),
    [
        ({"duration_s": math.nan}, 400),
        ({"host_facts": {"x": math.inf}}, 400),
        ({"worker": worker(world_size=2**63)}, 400),
        ({"worker": worker(-1)}, 400),
        ({"worker": worker(99)}, 204),  # not in the window
        ({"window_id": 12}, 204),
    ],
)
def test_patterns_of_nobody_and_of_no_numbers_are_neither_kept_nor_compared(
    tmp_path: Path, odd: dict[str, object], code: int
) -> None:
    async def script(collector: Collector, client: httpx.AsyncClient) -> None:
        await tell(client, status())
        await post(client, "/v1/profile", {})
        await tell(client, status())
        assert (await client.post("/v1/patterns", content=encode_record(pattern(**odd)))).status_code == code
        assert not list(tmp_path.glob("windows/*/patterns/*"))

    with_collector(tmp_path, script)


def test_a_host_cannot_displace_the_workers_of_another_until_that_ones_agent_is_gone() -> None:
    notes: list[str] = []
    roll = Roll(notes.append)
    theirs = clean_report(AgentReport(host="thief", pid=2, workers=(status(),)))
    mine = clean_report(AgentReport(host="h", pid=1, workers=(status(),)))
    assert theirs.workers[0].worker.host == "thief"  # whatever it said
    for now in (0.0, 1.0, 4.0):
        roll.reported(now, mine)
        roll.reported(now, theirs)
    assert [each.worker.host for each in roll] == ["h"] and "who lives on h; not listened to" in notes[0]
    roll.reported(20.0, theirs)
    assert [each.worker.host for each in roll] == ["thief"] and len(roll) == 1


def test_a_million_workers_and_many_notes_are_bounded() -> None:
    notes: list[str] = []
    roll = Roll(notes.append)
    for host in range(3):
        workers = tuple(status(worker=worker(rank, pid=rank)) for rank in range(90_000))
        roll.reported(0.0, AgentReport(host=f"h{host}", pid=1, workers=tuple(
            msgspec.structs.replace(each, ended=True) for each in workers
        )))  # fmt: skip
    assert len(roll) == MAX_WORKERS and "the rest is left out" in notes[0]
    report = clean_report(AgentReport(host="h\x1b[2J", pid=1, notes=("x" * 9999,) * 999))
    assert len(report.notes) == 50 and len(report.notes[0]) == 500 and "\x1b" not in report.host


def test_text_from_elsewhere_moves_no_cursor() -> None:
    assert clean_text("a\x1b[31mb\nc\u202e") == "a [31mb c "


def test_what_agents_say_does_not_crowd_out_our_own_notes(tmp_path: Path) -> None:
    async def script(collector: Collector, client: httpx.AsyncClient) -> None:
        for number in range(10):
            notes = tuple(f"note {number} {each}" for each in range(50))
            report = AgentReport(host=f"h{number}", pid=1, notes=notes)
            await post(client, "/v1/report", report)
        assert len(collector.windows.ledger.notes) == 100 and collector.windows.ledger.note("ours")

    with_collector(tmp_path, script)


def test_looks_at_more_threads_than_anybody_has_are_cut(tmp_path: Path) -> None:
    thread = ThreadLook(name="n" * 999, thread_id=1, stack=("f" * 20,) * 200)
    seen: list[Blockage] = []

    def keep(blockage: Blockage, job: str, settings: Settings) -> None:
        seen.append(blockage)

    async def script(collector: Collector, client: httpx.AsyncClient) -> None:
        await tell(client, status(**SILENT))
        looks = HostLooks(look_id=1, host="h", first=(look(threads=(thread,) * 300),))
        await post(client, "/v1/looks", looks)
        await until(lambda: seen)

    with_collector(tmp_path, script, diagnosis=keep)
    threads = seen[0].looks[0].first[0].process.threads
    assert len(threads) == 256 and len(threads[0].stack) == 128 and len(threads[0].name) == 255


# ---------------------------------------------------------------------- a second collector


def test_a_new_collector_goes_on_where_the_one_before_it_was_killed(tmp_path: Path) -> None:
    async def first(collector: Collector, client: httpx.AsyncClient) -> None:
        await tell(client, status())
        await post(client, "/v1/profile", {})
        await tell(client, status())
        collector.save_status()

    with_collector(tmp_path, first)
    Store(tmp_path).save_verdict(1, verdict("slow", "a slow disk", cause="slow-storage-read"))
    baseline = Window(window_id=2, purpose="baseline", reason="", first_iteration=1, last_iteration=2)
    save_patterns(tmp_path / "windows" / "2", baseline, [pattern(window_id=2)])
    (tmp_path / "windows" / "3").mkdir()
    (tmp_path / "windows" / "3" / "verdict.json").write_text("{ cut o")

    async def second(collector: Collector, client: httpx.AsyncClient) -> None:
        assert len(collector.windows.baseline.patterns) == 1
        now = await shown(client)
        assert [(line.window_id, line.phase) for line in now.windows] == [(1, "done"), (2, "lost")]
        assert any("3/verdict.json is damaged" in note for note in now.notes)
        assert "was ended by SIGKILL" in now.notes[0]
        await tell(client, status())
        await post(client, "/v1/profile", {})
        order = (await tell(client, status())).order
        assert order is not None and order.window_id > 3 and order.serial > 4
        await finish(collector, client)

    with_collector(tmp_path, second, resume="it was ended by SIGKILL")
    assert final_in(tmp_path).summary == "a slow disk"


def test_a_ruined_run_directory_is_a_note(tmp_path: Path) -> None:
    (tmp_path / "status.json").write_bytes(b"\xff\x00")
    (tmp_path / "windows").write_text("no directory")
    history = read_history(tmp_path, "it died")
    assert history.last_id == 0 and len(history.notes) == 2


def test_a_new_job_of_the_same_name_forgets_the_old_windows_and_nothing_else(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.save_verdict(4, verdict("slow"))
    store.save_blockage(Blockage(look_id=4, reason=""))
    save_patterns(tmp_path / "windows" / "5", Window(
        window_id=5, purpose="manual", reason="", first_iteration=1, last_iteration=2
    ), [pattern(window_id=5)])  # fmt: skip
    (tmp_path / "windows" / "5" / "mine.txt").write_text("keep")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "verdict.json").write_text("keep")
    (tmp_path / "windows" / "6").symlink_to(elsewhere)
    forget(store.run)
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert left == ["elsewhere/verdict.json", "windows/5/mine.txt"]


# ---------------------------------------------------------------------- the final verdict


def test_a_blockage_that_lasted_wins_over_slow_windows_and_one_that_passed_counts_for_nothing() -> None:
    slow, hang = verdict("slow", "slow", cause="slow-storage-read"), verdict("blocked", "hang", cause="dead-worker")
    verdicts = {1: slow, 2: slow, 3: hang}
    assert final_verdict("j", verdicts, 2, 2, standing={3}).summary == "hang"
    assert final_verdict("j", verdicts, 2, 2, passed={3}).summary.startswith("slow ")
    assert final_verdict("j", {1: slow, 3: hang}, 2, 2).summary == "slow"  # the job was restarted: as any other
    healthy = final_verdict("j", {3: hang}, 2, 2, passed={3})
    assert healthy.verdict == "undetermined" and "stood still once, and went on" in healthy.summary
    assert healthy.summary.endswith("Window 3 says what held it: hang")
    there = VerdictWindow(kind="blocked", first_iteration=8, last_iteration=8)
    found = (hang, verdict("blocked", "twice looked at", cause="dead-worker"))
    looks = {at: msgspec.structs.replace(one, window=there) for at, one in zip((3, 4), found, strict=True)}
    twice = final_verdict("j", looks, 2, 2, passed={3, 4}).summary
    assert "stood still once, and went on" in twice and twice.endswith("Window 4 says what held it: twice looked at")
