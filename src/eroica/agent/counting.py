"""Asking a worker how far its collectives are, without waiting: a digit into its FIFO, later a line out of another.

A digit gets counters only. Names and members of groups come from the long answer, which is asked for at the beginning
and when a group appears that has no name yet. It is also asked for, once, when a collective stays open: then it says
which kind that is, and how many like it there were. Whoever owes an answer is hardly asked again: questions do not
pile up in a process that is stopped.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import msgspec

from eroica.agent.witnesses import open_told, put_question, read_answer, read_told
from eroica.errors import UnavailableError
from eroica.model.communication import GroupCount
from eroica.model.worker import ProcessGroup

_DIGITS, _LETTERS = "0123456789", "abcdefghijklmnopqrstuvwxyz"
_MOST_GROUPS, _MOST_TEXT = 256, 200
#: Long answers take 80 ms of the worker where its recorder is full: the pause between two of them doubles from this.
_NAMING_PAUSE_S = 30.0
#: Operations that a worker has entered before it is asked for names: then its recorder knows the groups.
_ENTERED_FIRST = 8
#: Pauses between two questions vary by so much of their mean, so that they never go in step with iterations.
_JITTER = 0.4
_UNANSWERABLE_S = 30.0
#: A question may be lost beside somebody else's; after so long it is put again, as one more letter.
_LOST_S = 3.0
#: A collective that has been open for so long is asked about, seconds, and longer by this factor than any before: well
#: before it is taken for a hang, and so seldom in any job that it costs nothing.
_OPEN_S, _OPEN_FACTOR = 1.2, 1.2


class _Entry(msgspec.Struct):
    pg_id: int = -1
    process_group: list[str] = []
    collective_seq_id: int = -1
    profiling_name: str = ""
    is_p2p: bool = False
    retired: bool = False
    state: str = ""
    before: int = -1


class _Flight(msgspec.Struct):
    entries: list[_Entry] = []


class _Answer(msgspec.Struct):
    question: str
    process_groups: list[ProcessGroup] = []
    flight: _Flight | None = None


_ANSWER = msgspec.json.Decoder(_Answer)
_TOLD = msgspec.json.Decoder(tuple[str, dict[str, tuple[int, int]] | None])


class Counting:
    """The questions to one worker.

    Args:
        beat_file: The worker's; FIFO and answer lie beside it.
        period_s: Mean pause between two questions; 0 = never ask.

    Attributes:
        asked: Questions put so far.
        answered: Answers with counters so far.
        inside: Those of them in which a collective of any group was open.
        groups: Groups that the worker has named.
    """

    def __init__(self, beat_file: Path, period_s: float) -> None:
        self.asked = self.answered = self.inside = 0
        self.groups: tuple[ProcessGroup, ...] = ()
        self._beat_file = beat_file
        self._period_s = period_s
        self._number = random.randrange(len(_DIGITS))
        self._letter = ""
        self._handle = -1
        self._asked_at = self._owed_from = self._next_at = self._name_at = float("-inf")
        self._naming_pause_s = _NAMING_PAUSE_S
        self._counts: dict[str, tuple[int, int]] = {}
        self._names: dict[str, str] = {}
        self._changed_at = float("-inf")
        self._longest_open_s = 0.0
        self._asked_about: object = None
        self._open: dict[str, _Entry] = {}

    @property
    def counts(self) -> tuple[GroupCount, ...]:
        """Counts of each group as the worker told them last."""
        return tuple(
            GroupCount(
                group=self._names.get(number, f"#{number}"),
                entered=entered,
                completed=completed,
                waits_in=self._open[number].profiling_name[:_MOST_TEXT] if number in self._open else "",
                before=self._open[number].before if number in self._open else -1,
            )
            for number, (entered, completed) in self._counts.items()
        )

    def unanswered_s(self, now: float) -> float:
        """Seconds that the worker has owed an answer; 0 if it owes none."""
        return now - self._owed_from if self._letter else 0.0

    def poll(self, now: float, may_ask: bool) -> None:
        """Take an answer, put the next question.

        Args:
            now: Seconds, monotonic.
            may_ask: Whether a question may be put now.
        """
        if self._period_s <= 0:
            return
        try:
            if self._letter:
                self._take(now)
            lost = bool(self._letter) and now - self._asked_at > _LOST_S
            if may_ask and (lost or (not self._letter and now >= self._next_at)):
                self._ask(now)
        except UnavailableError:  # a worker without the thread, or one that ends: what it told last holds no longer
            self._letter, self._next_at, self._counts, self._asked_about = "", now + _UNANSWERABLE_S, {}, None

    def close(self) -> None:
        """Ask no more."""
        if self._handle >= 0:
            os.close(self._handle)
        self._handle, self._period_s = -1, 0.0

    def _ask(self, now: float) -> None:
        self._number += 1
        wants_names = self._lacks_names() and now >= self._name_at
        wants_more = wants_names or self._is_open_for_long(now)
        letters = _LETTERS if wants_more else _DIGITS
        letter = letters[self._number % len(letters)]
        if wants_names:
            self._name_at, self._naming_pause_s = now + self._naming_pause_s, 2 * self._naming_pause_s
        if self._handle < 0:
            self._handle = open_told(self._beat_file)
        put_question(self._beat_file, letter)
        self.asked += not wants_more
        self._owed_from = self._owed_from if self._letter else now
        self._letter, self._asked_at = letter, now
        self._next_at = now + self._period_s * random.uniform(1 - _JITTER, 1 + _JITTER)

    def _lacks_names(self) -> bool:
        ready = sum(max(entered, 0) for entered, _ in self._counts.values()) >= _ENTERED_FIRST
        return ready and any(number not in self._names for number in self._counts)

    def _is_open_for_long(self, now: float) -> bool:
        """Return whether a collective has been open for long and was not asked about; then it counts as asked."""
        is_open = any(entered > completed for entered, completed in self._counts.values())
        limit_s = max(_OPEN_S, _OPEN_FACTOR * self._longest_open_s)
        if not is_open or now - self._changed_at < limit_s or self._asked_about == self._counts:
            return False
        self._asked_about = self._counts
        return True

    def _take(self, now: float) -> None:
        if self._letter in _LETTERS:
            self._take_names()
            return
        for line in read_told(self._handle).split(b"\n"):
            try:
                letter, counts = _TOLD.decode(line) if line else ("", {})
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue
            if letter == self._letter:
                self._letter = ""
                if counts is None:  # a group is being made or first used
                    return
                self.answered += 1
                counts = {key[:20]: pair for key, pair in list(counts.items())[:_MOST_GROUPS]}
                if counts != self._counts:
                    if any(entered > completed for entered, completed in self._counts.values()):
                        self._longest_open_s = max(self._longest_open_s, now - self._changed_at)
                    self._counts, self._changed_at, self._open = counts, now, {}
                self.inside += any(entered > completed for entered, completed in self._counts.values())
                return

    def _take_names(self) -> None:
        text = read_answer(self._beat_file)
        try:
            answer = _ANSWER.decode(text) if text else None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return
        if answer is not None and answer.question == self._letter:
            self._name(answer)
            self._letter = ""

    def _name(self, answer: _Answer) -> None:
        for entry in answer.flight.entries if answer.flight is not None else ():
            if entry.process_group and len(self._names) < _MOST_GROUPS:
                self._names[str(entry.pg_id)] = entry.process_group[0][:_MOST_TEXT]
            is_open = not (entry.retired or entry.is_p2p or entry.state == "completed")
            earlier = self._open.get(str(entry.pg_id))
            if is_open and (earlier is None or entry.collective_seq_id < earlier.collective_seq_id):
                self._open[str(entry.pg_id)] = entry
        self.groups = tuple(answer.process_groups[:_MOST_GROUPS])
