"""A trace's text, split at borders of events, decoded piece by piece.

No JSON library streams this. A piece ends where `}`, a comma and `{` follow each other; whether that was a border of
two events, and no text inside one, shows in decoding: the piece before it is a list of whole objects or it is not.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

import msgspec

from eroica.errors import InputError
from eroica.trace.damage import repair
from eroica.trace.events import UNREADABLE, Event, OddEvents, counted, decode_events
from eroica.trace.foreign import what_by_keys, what_else
from eroica.trace.source import TraceSource

_PIECE_BYTES = 1 << 18
_MOST_BYTES = 1 << 26
_LAST_BYTES = 1 << 16
_NEAR_BYTES = 1 << 12
_STUCK_BYTES = 1 << 23
_MOST_DAMAGE = 10_000
_PATIENCE = 100
_MOST_KEYS = 64
_FEW = 16
_SLACK = 200
_BORDER = re.compile(rb"\}\s*,\s*(?=\{)")
_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*')
_TAIL = re.compile(rb'\s*(?:,\s*(?:"|$)|\}|$)')
_BASE = re.compile(rb'"baseTimeNanoseconds"\s*:\s*"?(\d{1,30})')
_SINGLE = re.compile(rb'"|-?\d|true\b|false\b|null\b')
_KEYS = msgspec.json.Decoder(dict[str, msgspec.Raw])


class EventStream:
    """The events of a source, in bounded pieces.

    Attributes:
        keys: What stands beside the events, after iterating: name -> undecoded value.
        losses: One sentence each about what could not be read, after iterating.
        cuts: Those of them after which an unknown part of the events is lost.
        count: Objects seen in the list of events.
        complete: The list of events was read to its end, and what stands after it.
        bare: The file is a list of events without anything beside it.
    """

    def __init__(self, source: TraceSource) -> None:
        self.keys: dict[str, msgspec.Raw] = {}
        self.losses: list[str] = []
        self.cuts: list[str] = []
        self.count = 0
        self.complete = False
        self._source = source
        self._wanted = _PIECE_BYTES
        self._text = b""
        self._mended = 0
        self._finished = False
        self.bare = False
        self._resynced = False
        self._patience = _PATIENCE
        self._damaged = self._damaged_bytes = 0

    def __iter__(self) -> Iterator[list[Event]]:
        """Lists of events, some MB of text each.

        Raises:
            InputError: The file is no trace, or cannot be read.
        """
        self._begin()
        while not self._finished:
            if len(self._text) < max(self._wanted - _PIECE_BYTES // 2, 1) and not self._source.ended:
                self._text += self._source.read(self._wanted - len(self._text))
            yield self._take()
        self._say_what_was_damaged()
        problem = self._source.problem
        if problem and not any(problem in loss for loss in self.losses):
            self.losses.append(f"{problem}, though all of its text could be read")

    @property
    def damaged(self) -> int:
        """Events that could not be read."""
        return self._damaged

    def _lose(self, sentence: str) -> None:
        self.losses.append(sentence)
        self.cuts.append(sentence)

    @property
    def position(self) -> int:
        """Offset in the unpacked text of what comes next."""
        return self._source.unpacked - len(self._text)

    # --- the beginning ---

    def _begin(self) -> None:
        """Read up to the list of events."""
        source, seen = self._source, 0
        text = source.read(_LAST_BYTES).removeprefix(b"\xef\xbb\xbf").lstrip()
        self.bare = text.startswith(b"[")
        if self.bare:
            self._text = text[1:]
            return
        if not text:
            raise InputError(f"{source.path} is empty; capture it again")
        what = what_else(text, source.path.name)
        if what:
            raise InputError(f"{source.path} {what}")
        if not text.startswith(b"{"):
            what = "holds a single value" if _SINGLE.match(text) else "is no JSON"
            raise InputError(f"{source.path} {what}, so no trace; name a .json or .json.gz of torch.profiler")
        while not self._find_events(text, seen):
            if source.ended or len(text) >= _MOST_BYTES:
                raise InputError(self._why_no_trace(text))
            text += source.read(len(text))
            seen = 0 if source.ended or len(text) >= _MOST_BYTES else max(len(text) // 2 - 1000, 0)

    def _find_events(self, text: bytes, seen: int) -> bool:
        """Look for the key of the events from `seen` on: that of the outermost object, not one in a text or below."""
        keys = itertools.islice(_EVENTS_KEY.finditer(text, seen), _MOST_KEYS)
        found = [key for key in keys if key.end() < len(text)]
        if not found:
            return False
        outer = next((key for key in found if self._take_keys(text[: key.start()] + b'"":0}')), None)
        if outer is None and not self._take_keys(repair(text[: found[0].start()]) + b'"":0}'):
            if _outer_object(text) == text or not (self._source.ended or len(text) >= _MOST_BYTES):
                return False
            self.losses.append("what stands before the events is damaged and was left out")
        after = (outer or found[0]).end()
        if text[after : after + 1] != b"[":
            raise InputError(f"{self._source.path} is no trace: its traceEvents are no list")
        self._text = text[after + 1 :]
        return True

    def _take_keys(self, text: bytes) -> bool:
        try:
            found = _KEYS.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False
        self.keys.update((name, value.copy()) for name, value in found.items() if name)
        return True

    def _why_no_trace(self, text: bytes) -> str:
        path, source = self._source.path, self._source
        if source.problem:
            return f"{path} ends before its events begin: {source.problem}; copy or capture it again"
        if len(text) > _MOST_BYTES:
            return f"{path} is no trace: no traceEvents in its first {_MOST_BYTES:,} bytes"
        try:
            keys = _KEYS.decode(text)
        except msgspec.DecodeError as error:
            return f"{path} is no trace, or is cut short before its events begin: {error}"
        except (UnicodeDecodeError, RecursionError):
            return f"{path} is no trace: it holds no traceEvents"
        what = what_by_keys(keys) or "is JSON, but no trace: it holds no traceEvents"
        return f"{path} {what}"

    # --- the events ---

    def _take(self) -> list[Event]:
        """Decode as much of the text as a border allows; the rest stays for the next time."""
        for end, following in self._ends():
            outcome = decode_events(self._text, end)
            if isinstance(outcome, list):
                self._resynced = False
                return self._keep(outcome, following)
            if outcome.kind == "end":
                return self._close(outcome.at)
            if outcome.kind == "broken":
                if self._mended < len(self._text):
                    self._text = repair(self._text)
                    self._mended = len(self._text)
                    return []
                return self._step_over(outcome.at) if outcome.at >= 0 else self._search_damage()
        return self._without_end()

    def _without_end(self) -> list[Event]:
        """No border fits: read on, or step over what is so large that it can be no event."""
        size, ended = len(self._text), self._source.ended
        stuck = size > (_LAST_BYTES if ended else _STUCK_BYTES) and _BORDER.search(self._text) is not None
        if not (stuck or ended) and size < _MOST_BYTES:
            self._wanted = 2 * max(size, _PIECE_BYTES)
            return []
        self._patience -= 4
        if self._patience > 0 and (stuck or not ended):
            return self._skip(0)
        return self._leave_off()

    def _ends(self) -> Iterator[tuple[int, int]]:
        """Ends to try and where to go on after them: the whole at the end, then borders, further back each time."""
        text, ended = self._text, self._source.ended
        if ended:
            yield len(text.rstrip(b", \t\r\n")), len(text)
        for number, border in enumerate(_borders_from_behind(text, len(text)), 1):
            if number & (number - 1) == 0 or (ended and number <= _FEW):
                yield border.start() + 1, border.end()
        first = _BORDER.search(text)
        if first is not None:
            yield first.start() + 1, first.end()

    def _keep(self, events: list[Event], following: int) -> list[Event]:
        self._text = self._text[following:]
        self._mended = max(self._mended - following, 0)
        self._wanted = _PIECE_BYTES
        self._count(events)
        if self._source.ended and not self._text.strip():
            self._finished = True
            self._say_cut(whole=True)
        return events

    def _count(self, events: list[Event]) -> None:
        self.count += len(events)
        if isinstance(events, OddEvents):
            self._damaged += sum([event.ph == UNREADABLE for event in events])

    def _close(self, at: int) -> list[Event]:
        """The list ends before `at`: what follows are keys; unless it was a stray bracket."""
        events = decode_events(self._text[:at].rstrip().removesuffix(b"]"))
        rest = self._text[at:] + self._source.read(_LAST_BYTES)
        looks_so = _TAIL.match(rest) is not None or (self.bare and not rest.strip())
        if not isinstance(events, list) or (self._resynced and not any(event.ph for event in events)) or not looks_so:
            self._text = self._text[:at] + rest
            return self._step_over(at)
        self._finished = True
        self._count(events)
        self._text = b""
        self._read_tail(rest)
        return events

    def _read_tail(self, rest: bytes) -> None:
        """Keys after the events; a cut or damaged end costs only itself."""
        if not self._source.ended:
            rest += self._source.read(_MOST_BYTES)
        if self.bare:
            return
        inner = rest.strip().removeprefix(b",").rstrip()
        for text in (b"{" + inner, repair(b"{" + inner)):
            outcome = _outer_object(text)
            if outcome and self._take_keys(outcome):
                self.complete = True
                return
        base = _BASE.search(rest)
        if base is not None:
            self._take_keys(b'{"baseTimeNanoseconds":' + base[1] + b"}")
        where = self._source.problem or ("the file is cut short" if self._source.ended else "it is damaged")
        self.losses.append(f"what stands after the events could not be read whole: {where}")

    # --- damage ---

    def _step_over(self, at: int) -> list[Event]:
        """Keep what is whole before `at`, leave out the event there."""
        text = self._text
        for number, border in enumerate(_borders_from_behind(text, at + 1), 1):
            if number & (number - 1) == 0 or number < _FEW:
                events = decode_events(text, border.start() + 1)
                if isinstance(events, list):
                    return self._keep(events, border.end()) + self._skip(at - border.end())
        return self._skip(at)

    def _search_damage(self) -> list[Event]:
        """Somewhere something is too deep to be decoded: halve the text until it is found, and step over it."""
        text, low, high = self._text, 0, len(self._text)
        kept: list[Event] = []
        while high - low > 1:
            middle = (low + high) // 2
            for border in itertools.islice(_BORDER.finditer(text, middle, high), 3):
                events = decode_events(text, border.start() + 1)
                if isinstance(events, list):
                    kept, low = events, border.end()
                    break
            else:
                high = middle
        self._patience -= 1
        if self._patience <= 0:
            return self._leave_off()
        if low:
            self._keep(kept, low)
        return kept + self._skip(0)

    def _skip(self, at: int) -> list[Event]:
        """Go on at the first border after `at`; one event is lost."""
        border = _BORDER.search(self._text, max(at, 0))
        following = border.end() if border is not None else len(self._text)
        self._damaged += 1
        self._damaged_bytes += following
        self._text = self._text[following:]
        self._mended = max(self._mended - following, 0)
        self._resynced = True
        if self._damaged >= _MOST_DAMAGE:
            self._finished = True
            self._lose(f"the file is damaged in so many places that it was read up to byte {self.position:,} only")
        elif self._source.ended and not self._text.strip():
            self._finished = True
            self._lose("the end of the file is damaged, and what it says about itself there is lost")
        return []

    def _leave_off(self) -> list[Event]:
        """Nothing more can be decoded: the file ends inside an event, or an event has no end."""
        self._finished = True
        if self._source.ended:
            self._say_cut(whole=not self._text.strip(b" \t\r\n,"))
        else:
            self._lose(f"what follows byte {self.position:,} is no list of events and was left out")
        return []

    def _say_cut(self, whole: bool) -> None:
        source = self._source
        if source.limited:
            self._lose(f"only the first {source.unpacked:,} bytes were read (max_trace_bytes)")
        elif source.problem or not (whole and self.bare):
            where = "after" if whole else "inside"
            why = f": {source.problem}" if source.problem else ""
            event = self.count + (0 if whole else 1)
            self._lose(
                f"the file ends {where} event {event:,} at byte {source.unpacked:,}{why}; what came after is lost"
            )

    def _say_what_was_damaged(self) -> None:
        if self._damaged:
            size = f" ({self._damaged_bytes:,} bytes)" if self._damaged_bytes else ""
            self.losses.append(f"left out: {counted(self._damaged, 'damaged event')}{size}")


def _borders_from_behind(text: bytes, high: int) -> Iterator[re.Match[bytes]]:
    """What looks like borders of events before `high`, the last one first."""
    size = _NEAR_BYTES
    while high > 0:
        low = max(high - size, 0)
        found = [one for one in _BORDER.finditer(text, low, high + _SLACK) if one.start() < high]
        yield from reversed(found)
        high, size = low, 4 * size


def _outer_object(text: bytes) -> bytes:
    """`text` up to the end of the object it begins with; nothing if there is no such."""
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except msgspec.DecodeError as error:
        found = re.search(r"trailing characters \(byte (\d+)\)", str(error))
        return text[: int(found[1]) - 1] if found else b""
    except RecursionError:
        return b""
    return text
