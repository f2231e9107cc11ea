"""Which verdicts are told, and that names of the job do nothing in a chat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from eroica.collector.webhook import MOST_PER_HOUR, MOST_PER_JOB, Notices, escaped
from eroica.model.verdict import (
    Recurrence,
    Verdict,
    VerdictWord,
)
from support.verdicts import cause as named
from support.verdicts import plain

ASKED = frozenset({"slow", "blocked"})


def verdict(
    word: VerdictWord = "slow", cause: str = "slow-data-loading", workers: tuple[int, ...] = (2,), **more: Any
) -> Verdict:
    finding = named(
        cause, *workers, function="load", gain=0.38, confidence=0.97, next_step="Add workers to the loader.", **more
    )
    return plain(word, "Worker 2 reads too slowly.", *([] if word == "healthy" else [finding]))


def worsening(gain: float = 0.5) -> Verdict:
    return verdict(recurrence=Recurrence(kind="worsening", windows=(1, 2), looked=2, gains=(0.2, gain)))


@dataclass
class Told:
    """Feeds verdicts and remembers which were told."""

    notices: Notices

    def __call__(self, window_id: int, *verdicts: Verdict, now: float = 0.0) -> list[bool]:
        return [not isinstance(self.notices.judged(now, window_id, each), str | None) for each in verdicts]


def test_a_message_says_what_is_the_matter_how_sure_and_what_to_do() -> None:
    message = Notices("train-7", ASKED).judged(0.0, 3, verdict())
    assert isinstance(message, dict)
    assert message["text"].splitlines() == [
        "Job train-7 is slow.",
        "Worker 2 reads too slowly.",
        "Cause slow-data-loading, worker 2; gain 38 % of the iteration, confidence 97 %, window 3.",
        "Next step: Add workers to the loader.",
    ]
    assert (message["gain"], message["confidence"], message["window_id"]) == (0.38, 0.97, 3)
    assert msgspec.convert(message["verdict"], Verdict) == verdict()


def test_the_same_cause_on_the_same_workers_is_told_once() -> None:
    told = Told(Notices("j", ASKED))
    assert told(1, verdict(), verdict(), verdict(workers=(3,)), verdict(workers=(3,))) == [True, False, True, False]
    assert told(5, verdict(), verdict(cause="slow-link"), verdict("blocked", "slow-link")) == [True, True, True]


def test_what_comes_back_or_gets_worse_is_told_again() -> None:
    told = Told(Notices("j", ASKED))
    assert told(1, verdict(), verdict("undetermined"), verdict()) == [True, False, False]
    assert told(4, verdict("healthy"), verdict()) == [False, True]
    assert told(6, worsening(), worsening(0.6)) == [True, False]


def test_the_final_verdict_is_told_unless_it_was_the_only_thing_ever_told() -> None:
    told = Told(Notices("j", ASKED))
    assert told(1, verdict()) + told(0, verdict()) == [True, False]
    other = Told(Notices("j", ASKED))
    assert other(1, verdict(), verdict(cause="slow-link")) + other(0, verdict()) == [True, True, True]
    silent = Notices("j", ASKED)
    message = silent.judged(0.0, 0, verdict())
    assert isinstance(message, dict) and message["event"] == "final" and message["window_id"] is None
    assert message["text"].startswith("Job j has ended. Over all its windows: slow.")


def test_a_job_has_so_many_messages_and_the_last_one_says_so() -> None:
    notices = Notices("j", ASKED)
    texts = [notices.judged(3600.0 * n, n + 1, verdict(workers=(n,))) for n in range(MOST_PER_JOB + 1)]
    assert all(isinstance(each, dict) for each in texts[:-1]) and isinstance(texts[-1], str)
    last = [each for each in texts if isinstance(each, dict) and "last message" in each["text"]]
    assert last == [texts[MOST_PER_JOB - 1]]


def test_an_hour_has_so_many_messages() -> None:
    told = Told(Notices("j", ASKED))
    flood = [verdict(workers=(number,)) for number in range(MOST_PER_HOUR + 1)]
    assert told(1, *flood) == [True] * MOST_PER_HOUR + [False]
    assert told(1, verdict(workers=(99,)), now=3600.0) == [True]


def test_a_second_collector_does_not_repeat_the_first() -> None:
    notices = Notices("j", ASKED)
    notices.resume({1: verdict("healthy"), 3: verdict(cause="slow-link"), 2: verdict()})
    told = Told(notices)
    assert told(4, verdict(cause="slow-link"), verdict()) == [False, True]


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
    hostile = msgspec.structs.replace(verdict(), summary=nasty, job=nasty)
    message = Notices(nasty, ASKED).judged(0.0, 1, hostile)
    assert isinstance(message, dict)
    text = message["text"]
    assert len(text.splitlines()) == 4 and len(text) < 2_000
    assert "<" not in text and "\u202e" not in text and "@e" not in text
