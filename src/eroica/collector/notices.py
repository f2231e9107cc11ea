"""Choose the verdicts to tell at once, and word them. No I/O.

A verdict is told when its word is one of those asked for and it says something new: another cause, other workers, or
that it is getting worse. There are at most `MOST_PER_JOB` of them a job and `MOST_PER_HOUR` an hour; the last one of a
job says that it is the last.

What names of the job could do in a chat is undone: Slack's control characters are escaped, and mentions and links get
a space of no width.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, get_args

import msgspec

from eroica.model.shares import percent
from eroica.model.verdict import Finding, Verdict, VerdictWord
from eroica.model.words import clean, line, sentence, worker_list

MOST_PER_JOB = 20
MOST_PER_HOUR = 10
_HOUR_S = 3600.0
#: Breaks what chats turn into mentions and links, and is not to be seen.
_NO_WIDTH = "\u200b"
_NAMED_WORKERS = 32

_Said = tuple[str, str, str, tuple[int, ...], bool]


class Notices:
    """Decides for one job.

    Args:
        job: Its name.
        words: Verdicts that are told.
    """

    def __init__(self, job: str, words: frozenset[str]) -> None:
        self._job = job
        self._words = words
        self._last: _Said | None = None
        self._told: set[_Said] = set()
        self._count = 0
        self._times: deque[float] = deque(maxlen=MOST_PER_HOUR)

    def resume(self, verdicts: Mapping[int, Verdict]) -> None:
        """A collector before this one has told these."""
        for _, verdict in sorted(verdicts.items()):
            if self._is_news(verdict, final=False):
                self._remember(verdict)
                self._count = min(self._count + 1, MOST_PER_JOB)
            else:
                self._pass_over(verdict)

    def judged(self, now: float, window_id: int, verdict: Verdict) -> Mapping[str, Any] | str | None:
        """A verdict stands.

        Args:
            now: Seconds.
            window_id: Of its window; 0 for the whole job's, at its end.
            verdict: The verdict.

        Returns:
            The message in the form of the setting "json"; why one is withheld; None if there is nothing to tell.
        """
        if not self._is_news(verdict, final=window_id == 0):
            self._pass_over(verdict)
            return None
        if self._count >= MOST_PER_JOB:
            return f"the webhook was told of {MOST_PER_JOB} verdicts of this job; later ones only stand in its windows"
        if len(self._times) == MOST_PER_HOUR and now - self._times[0] < _HOUR_S:
            return f"the webhook was told of {MOST_PER_HOUR} verdicts within an hour; the others are left out"
        self._remember(verdict)
        self._count += 1
        self._times.append(now)
        return self._message(window_id, verdict)

    def _is_news(self, verdict: Verdict, final: bool) -> bool:
        said = _said(verdict)
        if verdict.verdict not in self._words:
            return False
        return said != self._last if not final else self._told != {said}

    def _pass_over(self, verdict: Verdict) -> None:
        """Tell no one of a verdict; forget the verdict told before if this one shows that it is over."""
        if verdict.verdict not in self._words and verdict.verdict != "undetermined":
            self._last = None

    def _remember(self, verdict: Verdict) -> None:
        self._last = _said(verdict)
        if len(self._told) <= MOST_PER_JOB:
            self._told.add(self._last)

    def _message(self, window_id: int, verdict: Verdict) -> Mapping[str, Any]:
        lines = [*_lines(self._job, window_id, verdict)]
        if self._count == MOST_PER_JOB:
            lines.append("This is the last message about this job; what comes later stands in its run directory.")
        cause = verdict.cause
        return {
            "text": escaped("\n".join(lines)),
            "event": "verdict" if window_id else "final",
            "job": line(self._job),
            "window_id": window_id or None,
            "gain": None if cause is None else cause.gain,
            "confidence": None if cause is None else cause.confidence,
            "next_step": "" if cause is None else line(cause.next_step),
            "verdict": msgspec.to_builtins(msgspec.structs.replace(verdict, waits=None)),
        }


def for_slack(message: Mapping[str, Any]) -> dict[str, Any]:
    """The two fields of a message that Slack documents for plain text; others it might refuse."""
    return {"text": message["text"], "mrkdwn": False}


def words_of(text: str) -> tuple[frozenset[str], tuple[str, ...]]:
    """Verdicts named by the setting `webhook_on`, and what in it is none."""
    named = {word.strip().lower() for word in text.split(",")} - {""}
    known = frozenset(get_args(VerdictWord))
    return frozenset(named & known), tuple(sorted(named - known))


def escaped(text: str) -> str:
    """Text that a chat shows as it is: no link, no mention, no markup of Slack's."""
    for sign, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        text = text.replace(sign, entity)
    return text.replace("@", f"@{_NO_WIDTH}").replace("://", f":{_NO_WIDTH}//")


def _said(verdict: Verdict) -> _Said:
    """Key of a verdict's message: two verdicts with equal keys say the same to their readers."""
    cause = verdict.cause
    if cause is None:
        return verdict.verdict, "", "", (), False
    worsening = cause.recurrence is not None and cause.recurrence.kind == "worsening"
    return verdict.verdict, cause.cause, cause.function.name, tuple(sorted(cause.workers)), worsening


def _lines(job: str, window_id: int, verdict: Verdict) -> list[str]:
    """The message, a line each: what is the matter, how sure, what to do."""
    lines = [_headline(clean(job), window_id, verdict.verdict), sentence(verdict.summary)]
    cause = verdict.cause
    if cause is not None:
        lines.append(_facts(cause, window_id))
        if cause.next_step:
            lines.append(f"Next step: {sentence(cause.next_step)}")
    return lines


def _headline(job: str, window_id: int, word: VerdictWord) -> str:
    if not window_id:
        return f"Job {job} has ended. Over all its windows: {word}."
    said = {"slow": "is slow", "blocked": "stands still", "healthy": "is healthy"}
    return f"Job {job} {said.get(word, 'was looked at, and the verdict is undetermined')}."


def _facts(cause: Finding, window_id: int) -> str:
    gain = "gain not known" if cause.gain is None else f"gain {percent(cause.gain)} of the iteration"
    who = worker_list(cause.workers[:_NAMED_WORKERS]) if cause.workers else f"{cause.scope} workers"
    who += f" and {len(cause.workers) - _NAMED_WORKERS} more" if len(cause.workers) > _NAMED_WORKERS else ""
    where = f", window {window_id}" if window_id else ""
    return f"Cause {clean(cause.cause, 60)}, {who}; {gain}, confidence {percent(cause.confidence)}{where}."
