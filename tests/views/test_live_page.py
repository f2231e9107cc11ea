"""The live page in a real browser, before a real collector that is told of a job which nobody trains."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
import pytest
from selenium.webdriver.common.keys import Keys

from eroica.archive.store import Store
from eroica.collector.listening_sockets import Doors
from eroica.collector.service import Collector
from eroica.collector.windows import Analyze
from eroica.model.verdict import Verdict
from eroica.settings import Settings
from eroica.wire.address import Address, Endpoint, endpoint_of, page_link, read_address
from eroica.wire.codec import encode_record
from eroica.wire.messages import CollectorReply, WorkerStatus
from support.agents import Agents
from support.browser import PHONE, Browser
from support.verdicts import cause, plain

pytestmark = pytest.mark.browser
TOKEN = "t" * 20
EVIL = "<img src=x onerror=hacked=1>"
SCRIPT = '"></script><script>hacked=1</script>'


def judge(job: str, order: Analyze, settings: Settings) -> Verdict:
    hosts, step = (f"node000{EVIL}",), f"Look at {SCRIPT}."
    found = cause("compute-slow", 3, function=EVIL, hosts=hosts, gain=0.25, confidence=0.8, next_step=step)
    return plain("slow", f"Worker 3 is slow in {EVIL}.", found, job=job)


def silent(status: WorkerStatus) -> WorkerStatus:
    if status.worker.global_rank != 5:
        return status
    return msgspec.structs.replace(status, silent=True, silent_s=30.0, silence=f"30 s {EVIL}")


class Job:
    """A collector in a thread of its own, and what its agents say when they are told to."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.agents = Agents(2, 4, 0.1, name=lambda number: f"node{number:03d}{EVIL}")
        self._farewell = True
        self.start(None)

    def start(self, where: Endpoint | None) -> None:
        started = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(where, started),))
        self._thread.start()
        assert started.wait(10)
        self._client = httpx.Client(
            base_url=self.address.url, trust_env=False, headers={"Authorization": f"Bearer {TOKEN}"}
        )

    async def _serve(self, where: Endpoint | None, started: threading.Event) -> None:
        collector = Collector(f"job {SCRIPT}", Store(self.run), Settings(baseline_window=False), TOKEN, judge)
        doors = Doors(collector, "a")
        await doors.open(None, where)
        address = read_address(self.run, "a")
        assert address is not None
        self.address: Address = address
        self._over = asyncio.Event()
        started.set()
        ticking = asyncio.create_task(collector.run(0.1))
        await self._over.wait()
        ticking.cancel()
        if not self._farewell:  # as if it had been killed
            for server, _ in doors._servers:
                for connection in list(server.server_state.connections):
                    connection.transport.abort()
            await asyncio.sleep(0.1)
        await doors.close()

    def stop(self, farewell: bool = True) -> None:
        self._client.close()
        self._farewell = farewell
        self.end()
        self._thread.join(10)
        self._loop.close()

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._over.set)

    def post(self, path: str, content: bytes) -> httpx.Response:
        answer = self._client.post(path, content=content)
        assert answer.is_success, answer.text
        return answer

    def report(self, seconds: float = 0.5) -> None:
        self.agents.advance(seconds)
        for host in range(self.agents.hosts):
            answer = self.post("/v1/report", self.agents.encoded(host))
        self.agents.obey(msgspec.msgpack.decode(answer.content, type=CollectorReply))

    def hand_in(self) -> None:
        for rank in range(self.agents.world_size):
            self.post("/v1/patterns", encode_record(self.agents.pattern(rank)))


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    run = tmp_path / "run"
    run.mkdir(mode=0o700)
    other = tmp_path / "other <b>job"
    other.mkdir(mode=0o700)
    Store(other).save_final(plain("healthy", f"All well {EVIL}."))
    job = Job(run)
    job.report()
    yield job
    job.stop()


def come_in(browser: Browser, job: Job) -> None:
    browser.open(page_link(job.address))
    browser.until(lambda: browser.text("#link") == "live", "the page never was live")


def points(browser: Browser) -> int:
    return len(
        browser.script("return document.querySelector('.chart > svg path.mean')?.getAttribute('d') ?? ''").split("L")
    )


def keep_reporting(job: Job, browser: Browser, happens: str) -> None:
    """Report until a condition in the page holds."""

    def once() -> bool:
        job.report(1.0)
        return bool(browser.script(f"return {happens}"))

    browser.until(once, happens)


def test_a_job_is_watched_a_window_opened_and_its_verdict_read(browser: Browser, job: Job) -> None:
    come_in(browser, job)
    assert browser.driver.current_url == f"{job.address.url}/", "the token stays in the address"
    assert browser.text("h1") == f"job {SCRIPT}"
    path = "(document.querySelector('.chart > svg path.mean')?.getAttribute('d') ?? '').split('L').length"
    keep_reporting(job, browser, f"{path} > 1")
    before = points(browser)
    keep_reporting(job, browser, f"{path} > {before}")
    browser.until(lambda: browser.text("#iteration") == str(job.agents.iteration))
    assert browser.text("#legend") == "8 training"

    browser.one("#open").click()
    assert "same iterations" in browser.text("dialog")
    assert browser.axe() == []
    browser.one("dialog .yes").click()
    browser.until(lambda: "Window 1 is opening" in browser.text("#asked"))
    keep_reporting(job, browser, "document.querySelector('#windows [data-window=\"1\"]') !== null")
    keep_reporting(job, browser, "document.getElementById('phase').textContent.includes('coming in')")
    job.hand_in()
    browser.until(lambda: "Worker 3 is slow" in browser.text("#verdict"))
    card = browser.text("#verdict")
    assert "SLOW" in card and "gain 25 %" in card and f"Look at {SCRIPT}." in card and EVIL in card
    directory = job.run / "windows" / "1"
    (directory / "index.html").write_text("<!doctype html><title>r</title><p>the report")
    browser.until(lambda: browser.all("#verdict a"), "no link to the report")
    assert browser.text("#asked") == "", "it still says that the window is opening"

    browser.until(lambda: "All well" in browser.text("#jobs"))
    assert browser.axe() == [] and browser.errors() == []
    assert all(url.startswith(job.address.url) for url in browser.requests())
    assert browser.script("return window.hacked === undefined && !document.querySelector('img, main script, #jobs b')")
    browser.size(*PHONE)
    browser.appearance(dark=True)
    assert browser.axe() == []
    assert browser.script("return document.documentElement.scrollWidth <= innerWidth"), "it scrolls sideways"


def test_who_is_silent_is_seen_named_and_reached_by_keyboard(browser: Browser, job: Job) -> None:
    job.agents.change = silent
    job.report()
    come_in(browser, job)
    browser.until(lambda: "worker 5" in browser.text("#odd"))
    assert f"SILENT (30 s {EVIL})" in browser.text("#odd") and "1 silent" in browser.text("#legend")
    browser.script("document.querySelector('#map canvas').focus()")
    browser.press(Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ARROW_RIGHT)
    browser.until(lambda: "pid 4005" in browser.text("#who"), "nothing is said of the worker")
    assert browser.text("#who").startswith(f"worker 5 on node001{EVIL}")
    assert browser.axe() == [] and browser.errors() == []


def test_a_collector_that_comes_back_is_found_again(browser: Browser, job: Job) -> None:
    come_in(browser, job)
    browser.script("window.before = 1")
    job.stop(farewell=False)
    browser.until(lambda: "connection lost since" in browser.text("#link"))
    assert browser.one("#open").get_property("disabled")
    job.start(endpoint_of(job.address.url))
    browser.until(lambda: browser.text("#link") == "live", "it never came back")
    assert browser.script("return window.before") == 1, "the page was loaded anew"
    job.report(5.0)
    browser.until(lambda: browser.text("#iteration") == str(job.agents.iteration))


def test_the_job_ends_and_the_page_says_so(browser: Browser, job: Job) -> None:
    come_in(browser, job)
    (job.run / "index.html").write_text("the report")
    job.post("/v1/finish", b"")
    browser.until(lambda: "The verdict on the job" in browser.text("#verdict"))
    job.end()
    browser.until(lambda: "the collector ended" in browser.text("#link"))
    assert str(job.run) in browser.text("footer")
    assert f"Report: {job.run}/index.html" in browser.text("#verdict"), "a link that leads nowhere"


def test_without_scripts_there_is_a_page_and_without_the_token_a_hint(browser: Browser, job: Job) -> None:
    browser.javascript(False)
    browser.open(page_link(job.address))
    assert browser.text("h1") == f"job {SCRIPT}" and "8" in browser.text("#count")
    assert "No window yet" in browser.text("#windows") and "eroica profile" in browser.text("footer")
    browser.reset()
    browser.open(job.address.url)
    assert "eroica live" in browser.text() and browser.axe() == []
