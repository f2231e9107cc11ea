"""The webhook against real servers on loopback: what they answer, and that the address stays a secret."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from eroica.archive.store import Store
from eroica.collector import webhook as module
from eroica.collector.service import Collector
from eroica.collector.webhook import PAUSES_S, Webhook
from eroica.model.verdict import Verdict
from eroica.settings import Settings, load_settings
from support.verdicts import cause as named
from support.verdicts import plain

SECRET = "T000-B000-shhh"
Answer = tuple[int, dict[str, str], str]
OK: Answer = (200, {}, "ok")
HANGING: Answer = (0, {}, "")


def verdict(worker: int = 2) -> Verdict:
    cause = named("slow-link", worker, kind="collective", gain=0.2, next_step="Look at the cable.")
    return plain("slow", "The link of worker 2 is slow.", cause)


class Chat(ThreadingHTTPServer):
    """Answers as told, the last answer for ever; remembers what it was sent."""

    daemon_threads = True

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.heard: list[dict[str, Any]] = []
        self.over = threading.Event()
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/services/{SECRET}"


class _Handler(BaseHTTPRequestHandler):
    server: Chat

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.heard.append({"path": self.path, "type": self.headers["Content-Type"], **json.loads(body)})
        status, headers, text = self.server.answers.pop(0) if len(self.server.answers) > 1 else self.server.answers[0]
        if not status:
            self.server.over.wait(20)
            return
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        """Quiet."""


@contextlib.contextmanager
def chat(*answers: Answer) -> Iterator[Chat]:
    server = Chat(*answers)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield server
    finally:
        server.over.set()
        server.shutdown()
        server.server_close()
        thread.join()


class Told:
    """A webhook whose pauses take no time, and what it said and waited for."""

    def __init__(self, url: str, patience_s: float = 10.0, **more: Any) -> None:
        self.notes: list[str] = []
        self.pauses: list[float] = []
        self.patience_s = patience_s
        self.settings = Settings(webhook_url=url, **more)

    def go(self, *windows: int, script: Callable[[Webhook], Awaitable[None]] | None = None) -> dict[str, int]:
        async def together() -> dict[str, int]:
            counts = Counter[str]()
            hook = Webhook("j", self.settings, self.notes.append, counts, self._pause)
            for window in windows:
                hook.judged(window, verdict(window))
            if script is not None:
                await script(hook)
            await hook.close(self.patience_s)
            return dict(counts)

        counts = asyncio.run(together())
        assert not [note for note in self.notes if SECRET in note]
        return counts

    async def _pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def test_a_verdict_is_told_once_in_slacks_form() -> None:
    with chat(OK) as server:
        told = Told(server.url)
        assert told.go(3) == {"sent": 1}
    [heard] = server.heard
    assert heard.pop("path") == f"/services/{SECRET}" and heard.pop("type") == "application/json"
    assert heard.keys() == {"text", "mrkdwn"} and "Look at the cable." in heard["text"]
    assert told.notes == [] and told.pauses == []


@pytest.mark.parametrize("trouble", [(500, {}, "oh"), (503, {}, ""), (429, {"Retry-After": "7"}, "rate_limited")])
def test_trouble_that_passes_costs_a_pause(trouble: Answer) -> None:
    with chat(trouble, OK) as server:
        told = Told(server.url)
        assert told.go(3) == {"sent": 1}
    [pause] = told.pauses
    assert len(server.heard) == 2 and told.notes == []
    assert pause == 7.0 if trouble[0] == 429 else 0.5 <= pause <= 1.5


@pytest.mark.parametrize(
    ("asked", "longest"),
    [("999999999999999", 300.0), ("-5", 1.5), ("soon", 1.5), ("Fri, 31 Dec 9999 23:59:59 GMT", 300.0), ("", 1.5)],
)
def test_nobody_can_ask_for_a_pause_without_end(asked: str, longest: float) -> None:
    with chat((429, {"Retry-After": asked}, ""), OK) as server:
        told = Told(server.url)
        assert told.go(3) == {"sent": 1}
    assert 0.5 <= told.pauses[0] <= longest


def test_trouble_that_stays_is_a_note_after_some_tries_with_growing_pauses() -> None:
    with chat((500, {}, "x" * 100_000)) as server:
        told = Told(server.url)
        assert told.go(3) == {"failed": 1}
    assert len(server.heard) == 1 + len(PAUSES_S)
    assert all(0.5 * base <= pause <= 1.5 * base for base, pause in zip(PAUSES_S, told.pauses, strict=True))
    assert told.notes == ["the webhook was not told of the verdict of window 3: it answers 500"]


def test_redirects_are_not_followed() -> None:
    with chat(OK) as elsewhere, chat((307, {"Location": elsewhere.url}, "")) as server:
        told = Told(server.url)
        assert told.go(3) == {"failed": 1}
    assert elsewhere.heard == [] and len(server.heard) == 1 and "not followed" in told.notes[0]


@pytest.mark.parametrize(
    ("said", "quoted"),
    [("invalid_payload", " (invalid_payload)"), (f"/services/{SECRET} not found", ""), ("x" * 10_000, ""), ("", "")],
)
def test_a_refusal_is_final_and_only_a_plain_word_of_it_is_quoted(said: str, quoted: str) -> None:
    with chat((404, {}, said)) as server:
        told = Told(server.url)
        assert told.go(0) == {"failed": 1}
    assert len(server.heard) == 1
    assert told.notes == [f"the webhook was not told of the job's final verdict: it answers 404{quoted}"]


def test_a_server_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TRY_S", 0.2)
    monkeypatch.setattr(module, "PAUSES_S", (0.1,))
    with chat(HANGING) as server:
        told = Told(server.url)
        assert told.go(3) == {"failed": 1}
    assert len(server.heard) == 2 and "no answer" in told.notes[0]


def test_the_end_of_the_job_waits_for_nobody() -> None:
    with chat(HANGING) as server:
        told = Told(server.url, patience_s=0.1)
        assert told.go(1, 2, 3) == {"failed": 3}
    assert len(told.notes) == 3 and all("the job ended before" in note for note in told.notes)


@pytest.mark.parametrize("url", [f"ftp://h/{SECRET}", SECRET, f"http:///{SECRET}", f"http://h:x/{SECRET}", "http://["])
def test_what_is_no_address_is_a_note_and_nothing_is_sent(url: str) -> None:
    told = Told(url)
    assert told.go(3) == {} and "no http or https address" in told.notes[0]


def test_the_address_is_in_no_log_and_no_file_of_the_collector(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAUSES_S", ())
    caplog.set_level(logging.WARNING)
    with chat((404, {}, f"{SECRET}: no_service")) as server:
        settings = load_settings({"webhook_url": server.url}, {}, tmp_path)

        async def go() -> None:
            collector = Collector("j", Store(tmp_path / "run"), settings, "t" * 20, lambda *_: verdict())
            hook = Webhook("j", settings, collector.windows.ledger.note, collector.messages)
            collector.listeners.append(hook.judged)
            collector.listeners[0](1, verdict())
            await hook.close(5)
            collector.end_job()
            await asyncio.wait_for(collector.run(0.01), 5)

        asyncio.run(go())
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert len(server.heard) == 1 and any(b"the webhook was not told" in data for data in written)
    assert not [data for data in written if SECRET.encode() in data]
    assert SECRET not in caplog.text and SECRET not in repr(settings)
