"""The webhook: which verdicts are told, what real servers on loopback answer, and that the address stays a secret."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import Any

import msgspec
import pytest

from eroica.archive.store import Store
from eroica.collector import webhook as module
from eroica.collector.service import Collector
from eroica.collector.webhook import MOST_PER_HOUR, MOST_PER_JOB, PAUSES_S, Notices, Webhook, escaped
from eroica.model.verdict import Recurrence, Verdict, VerdictWord
from eroica.settings import Settings, load_settings
from support.servers import serving
from support.verdicts import cause as named
from support.verdicts import plain

SECRET = "T000-B000-shhh"
Answer = tuple[int, dict[str, str], str]
OK: Answer = (200, {}, "ok")
HANGING: Answer = (0, {}, "")


def verdict(worker: int = 2) -> Verdict:
    cause = named("slow-link", worker, kind="collective", gain=0.2, next_step="Look at the cable.")
    return plain("slow", "The link of worker 2 is slow.", cause)


class Chat:
    """Answers as told, the last answer for ever; remembers what it was sent."""

    def __init__(self, answers: tuple[Answer, ...]) -> None:
        self.answers = list(answers)
        self.heard: list[dict[str, Any]] = []
        self.over = threading.Event()
        self.url = ""

    def answer(self, path: str, headers: Message, body: bytes) -> tuple[int, dict[str, str], bytes]:
        self.heard.append({"path": path, "type": headers["Content-Type"], **json.loads(body)})
        status, more, text = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if not status:
            self.over.wait(20)
        return status, more, text.encode()


@contextlib.contextmanager
def chat(*answers: Answer) -> Iterator[Chat]:
    told = Chat(answers)
    with serving(told.answer) as url:
        told.url = f"{url}/services/{SECRET}"
        try:
            yield told
        finally:
            told.over.set()


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
    [("999999999999999", 300.0), ("-5", 1.5), ("soon", 1.5), ("", 1.5)],
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


ASKED = frozenset({"slow", "blocked"})


def judged(
    word: VerdictWord = "slow", cause: str = "slow-data-loading", workers: tuple[int, ...] = (2,), **more: Any
) -> Verdict:
    finding = named(
        cause, *workers, function="load", gain=0.38, confidence=0.97, next_step="Add workers to the loader.", **more
    )
    return plain(word, "Worker 2 reads too slowly.", *([] if word == "healthy" else [finding]))


def worsening(gain: float = 0.5) -> Verdict:
    return judged(recurrence=Recurrence(kind="worsening", windows=(1, 2), looked=2, gains=(0.2, gain)))


@dataclass
class Telling:
    """Feeds verdicts and remembers which were told."""

    notices: Notices

    def __call__(self, window_id: int, *verdicts: Verdict, now: float = 0.0) -> list[bool]:
        return [not isinstance(self.notices.judged(now, window_id, each), str | None) for each in verdicts]


def test_a_message_says_what_is_the_matter_how_sure_and_what_to_do() -> None:
    message = Notices("train-7", ASKED).judged(0.0, 3, judged())
    assert isinstance(message, dict)
    assert message["text"].splitlines() == [
        "Job train-7 is slow.",
        "Worker 2 reads too slowly.",
        "Cause slow-data-loading, worker 2; gain 38 % of the iteration, confidence 97 %, window 3.",
        "Next step: Add workers to the loader.",
    ]
    assert (message["gain"], message["confidence"], message["window_id"]) == (0.38, 0.97, 3)
    assert msgspec.convert(message["verdict"], Verdict) == judged()


def test_the_same_cause_on_the_same_workers_is_told_once() -> None:
    told = Telling(Notices("j", ASKED))
    assert told(1, judged(), judged(), judged(workers=(3,)), judged(workers=(3,))) == [True, False, True, False]
    assert told(5, judged(), judged(cause="slow-link"), judged("blocked", "slow-link")) == [True, True, True]


def test_what_comes_back_or_gets_worse_is_told_again() -> None:
    told = Telling(Notices("j", ASKED))
    assert told(1, judged(), judged("undetermined"), judged()) == [True, False, False]
    assert told(4, judged("healthy"), judged()) == [False, True]
    assert told(6, worsening(), worsening(0.6)) == [True, False]


def test_the_final_verdict_is_told_unless_it_was_the_only_thing_ever_told() -> None:
    told = Telling(Notices("j", ASKED))
    assert told(1, judged()) + told(0, judged()) == [True, False]
    other = Telling(Notices("j", ASKED))
    assert other(1, judged(), judged(cause="slow-link")) + other(0, judged()) == [True, True, True]
    silent = Notices("j", ASKED)
    message = silent.judged(0.0, 0, judged())
    assert isinstance(message, dict) and message["event"] == "final" and message["window_id"] is None
    assert message["text"].startswith("Job j has ended. Over all its windows: slow.")


def test_a_job_has_so_many_messages_and_the_last_one_says_so() -> None:
    notices = Notices("j", ASKED)
    texts = [notices.judged(3600.0 * n, n + 1, judged(workers=(n,))) for n in range(MOST_PER_JOB + 1)]
    assert all(isinstance(each, dict) for each in texts[:-1]) and isinstance(texts[-1], str)
    last = [each for each in texts if isinstance(each, dict) and "last message" in each["text"]]
    assert last == [texts[MOST_PER_JOB - 1]]


def test_an_hour_has_so_many_messages() -> None:
    told = Telling(Notices("j", ASKED))
    flood = [judged(workers=(number,)) for number in range(MOST_PER_HOUR + 1)]
    assert told(1, *flood) == [True] * MOST_PER_HOUR + [False]
    assert told(1, judged(workers=(99,)), now=3600.0) == [True]


def test_a_second_collector_does_not_repeat_the_first() -> None:
    notices = Notices("j", ASKED)
    notices.resume({1: judged("healthy"), 3: judged(cause="slow-link"), 2: judged()})
    told = Telling(notices)
    assert told(4, judged(cause="slow-link"), judged()) == [False, True]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("<!channel> & <http://x|click>", "&lt;!channel&gt; &amp; &lt;http:\u200b//x|click&gt;"),
        ("@here https://x", "@\u200bhere https:\u200b//x"),
        ("&lt;!here&gt;", "&amp;lt;!here&amp;gt;"),
    ],
)
def test_names_neither_link_nor_mention(name: str, shown: str) -> None:
    assert escaped(name) == shown


def test_hostile_names_stay_on_their_line_and_are_short() -> None:
    nasty = "a\n@everyone \u202e<!channel>" + "x" * 100_000
    hostile = msgspec.structs.replace(judged(), summary=nasty, job=nasty)
    message = Notices(nasty, ASKED).judged(0.0, 1, hostile)
    assert isinstance(message, dict)
    text = message["text"]
    assert len(text.splitlines()) == 4 and len(text) < 2_000
    assert "<" not in text and "\u202e" not in text and "@e" not in text
