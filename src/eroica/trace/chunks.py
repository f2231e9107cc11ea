"""Decode a trace's text piece by piece: no JSON library streams it.

A piece ends where `}`, a comma and `{` follow each other. Decoding shows whether that was a border of two events or
stood inside one: the text before it is a list of whole objects, or it is not. Reading ends at the first damage that is
none of the known mistakes of writers; what came before it counts.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import msgspec

from eroica.errors import InputError
from eroica.trace.source import TraceSource, what_by_keys, what_else

_PIECE_BYTES = 1 << 18
_MOST_BYTES = 1 << 26
_LAST_BYTES = 1 << 16
_NEAR_BYTES = 1 << 12
_MOST_KEYS = 64
_SLACK = 200
#: Borders tried from the front: some stand inside an event.
_FALSE_BORDERS = 8
_BORDER = re.compile(rb"\}\s*,\s*(?=\{)")
_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*')
_TAIL = re.compile(rb'\s*(?:,\s*(?:"|$)|\}|$)')
_BASE = re.compile(rb'"baseTimeNanoseconds"\s*:\s*"?(\d{1,30})')
_SINGLE = re.compile(rb'"|-?\d|true\b|false\b|null\b')
_KEYS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_CONTROL = bytes(32 if byte < 32 else byte for byte in range(256))
_NO_NUMBER = re.compile(rb"(?<=[:\[,\s])-?(?:NaN|nan|Infinity|infinity|Inf|inf)(?=\s*[,\]}])")
_PAIR = rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_ESCAPE = re.compile(_PAIR + rb"|\\u[0-9a-fA-F]{4}|\\.", re.DOTALL)


class EventStream:
    """The events of a source, in bounded pieces.

    Attributes:
        keys: What stands beside the events, after iterating: name -> undecoded value.
        losses: A sentence for each part that could not be read, after iterating.
        cuts: Those after which an unknown part of the events is lost.
        count: Objects seen in the list of events.
        damaged: Those of them that could not be read.
        complete: The list of events, and what stands after it, was read to its end.
        bare: The file is a list of events without anything beside it.
    """

    def __init__(self, source: TraceSource) -> None:
        self.keys: dict[str, msgspec.Raw] = {}
        self.losses: list[str] = []
        self.cuts: list[str] = []
        self.count = self.damaged = 0
        self.complete = self.bare = False
        self._source = source
        self._wanted = _PIECE_BYTES
        self._text = b""
        self._mended = 0
        self._finished = False

    def __iter__(self) -> Iterator[list[Event]]:
        """Yield lists of events.

        Raises:
            InputError: The file is no trace, or cannot be read.
        """
        self._begin()
        while not self._finished:
            if len(self._text) < max(self._wanted - _PIECE_BYTES // 2, 1) and not self._source.ended:
                self._text += self._source.read(self._wanted - len(self._text))
            yield self._take()
        if self.damaged:
            self.losses.append(f"left out: {counted(self.damaged, 'damaged event')}")
        problem = self._source.problem
        if problem and not any(problem in loss for loss in self.losses):
            self.losses.append(f"{problem}, though all of its text could be read")

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
        """Look for the key of the events in the outermost object, from `seen` on."""
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
        return f"{path} {what_by_keys(keys) or 'is JSON, but no trace: it holds no traceEvents'}"

    # --- the events ---

    def _take(self) -> list[Event]:
        """Decode as much of the text as a border allows; the rest stays for the next time."""
        is_broken = False
        for end, following in self._ends():
            outcome = decode_events(self._text, end)
            if isinstance(outcome, list):
                return self._keep(outcome, following)
            if outcome.kind == "end":
                return self._close(outcome.at)
            is_broken |= outcome.kind == "broken"
            if is_broken and self._mended < len(self._text):
                self._text = repair(self._text)
                self._mended = len(self._text)
                return []
        if not is_broken and not self._source.ended and len(self._text) < _MOST_BYTES:
            self._wanted = 2 * max(len(self._text), _PIECE_BYTES)
            return []
        self._leave_off()
        return []

    def _ends(self) -> Iterator[tuple[int, int]]:
        """Yield ends to try, and where to go on behind each: all text at the file's end, borders, the first ones."""
        text = self._text
        if self._source.ended:
            yield len(text.rstrip(b", \t\r\n")), len(text)
        high, step = len(text), 1
        while borders := _borders_before(text, high, step):
            yield borders[0].start() + 1, borders[0].end()
            high, step = borders[0].start(), 2 * step
        for border in itertools.islice(_BORDER.finditer(text), _FALSE_BORDERS):
            yield border.start() + 1, border.end()

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
            self.damaged += sum([event.ph == UNREADABLE for event in events])

    def _close(self, at: int) -> list[Event]:
        """Take the last events: the list ends before `at`, and keys follow."""
        events = decode_events(self._text[:at].rstrip().removesuffix(b"]"))
        rest = self._text[at:] + self._source.read(_LAST_BYTES)
        whole = events if isinstance(events, list) else []
        self._count(whole)
        if _TAIL.match(rest) or (self.bare and not rest.strip()):
            self._finished = True
            self._read_tail(rest)
        else:
            self._text = rest
            self._leave_off()
        return whole

    def _read_tail(self, rest: bytes) -> None:
        """Read the keys after the events; a cut or damaged end costs only itself."""
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

    def _leave_off(self) -> None:
        """Say what is lost: the rest, which begins with the damage or is cut inside its first event."""
        self._finished = True
        rest = self._text
        if self._source.ended and isinstance(fault := decode_events(rest), Fault) and fault.kind == "cut":
            self._say_cut(whole=not rest.strip(b" \t\r\n,"))
        else:
            position = self._source.unpacked - len(rest)
            self._lose(f"the file is damaged at byte {position:,}, and what follows was left out")

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

    def _lose(self, sentence: str) -> None:
        self.losses.append(sentence)
        self.cuts.append(sentence)


def _borders_before(text: bytes, high: int, most: int) -> list[re.Match[bytes]]:
    """Return the last ones of what looks like borders of events before `high`, in order."""
    size, found = _NEAR_BYTES, list[re.Match[bytes]]()
    while len(found) < most and size < 4 * max(high, _NEAR_BYTES):
        found = [one for one in _BORDER.finditer(text, max(high - size, 0), high + _SLACK) if one.start() < high]
        size *= 4
    return found[-most:]


def _outer_object(text: bytes) -> bytes:
    """Return `text` up to the end of the object that it begins with; nothing if there is no such."""
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except msgspec.DecodeError as error:
        found = re.search(r"trailing characters \(byte (\d+)\)", str(error))
        return text[: int(found[1]) - 1] if found else b""
    except RecursionError:
        return b""
    return text


def repair(text: bytes) -> bytes:
    """Mend what writers of traces are known to get wrong, without changing the length.

    NaN and infinities become empty lists, which are no usable time either; escapes that do not exist (an unescaped
    Windows path) become slashes; control characters become spaces; bytes that are no UTF-8 and halves of surrogate
    pairs become replacements.
    """
    text = text.decode("utf-8", "surrogateescape").encode("utf-8", "replace")
    text = text.translate(_CONTROL)
    text = _NO_NUMBER.sub(lambda found: b"[]".ljust(len(found[0])), text)
    return _ESCAPE.sub(_escape, text) if b"\\" in text else text


def _escape(found: re.Match[bytes]) -> bytes:
    whole = found[0]
    if len(whole) == 6:
        return b"\\ufffd" if whole[2:3] in b"dD" and whole[3:4] in b"89abcdefABCDEF" else whole
    return whole if len(whole) == 12 or whole[1] in b'"\\/bfnrt' else b"/" + whole[1:]


# ---------------------------------------------------------------------- one piece


_NOTHING = msgspec.Raw(b"{}")
_POSITION = re.compile(r"\(byte (\d+)\)")
_MARGIN = 16
UNREADABLE = "?"
NO_LENGTH = -math.inf


class Event(msgspec.Struct, gc=False):
    """One event as the file has it. `ts` is NaN where it has none, `dur` NO_LENGTH, and NaN where that is no number."""

    ph: str = ""
    name: str = ""
    cat: str = ""
    pid: int | str = -1
    tid: int | str = -1
    ts: float = math.nan
    dur: float = NO_LENGTH
    args: msgspec.Raw = _NOTHING


class _Odd(msgspec.Struct, gc=False):
    ph: Any = ""
    name: Any = ""
    cat: Any = ""
    pid: Any = -1
    tid: Any = -1
    ts: Any = None
    dur: Any = None
    args: msgspec.Raw = _NOTHING


class Fault(NamedTuple):
    """Why a text is no list of events.

    Attributes:
        kind: "end": the list ends at `at`, and something follows. "cut": the text ends inside an event. "broken": the
            text at `at` is no JSON.
        at: Offset in the text, -1 if unknown.
    """

    kind: Literal["end", "cut", "broken"]
    at: int


_EVENTS = msgspec.json.Decoder(list[Event])
_RAWS = msgspec.json.Decoder(list[msgspec.Raw])
_ODD = msgspec.json.Decoder(_Odd)


class OddEvents(list[Event]):
    """Events that were decoded field by field; some may be `UNREADABLE`."""


def decode_events(text: bytes, end: int | None = None) -> list[Event] | Fault:
    """Decode events.

    Args:
        text: Objects with commas between them, without the brackets of the list.
        end: Where they end in `text`, if not at its end.

    Returns:
        The events; one that is no object, or cannot be decoded, has the phase `UNREADABLE`. Or why it is no such text.
    """
    whole = b"".join((b"[", memoryview(text)[:end], b"]"))
    try:
        return _EVENTS.decode(whole)
    except msgspec.ValidationError:
        return _decode_oddly(whole)
    except msgspec.DecodeError as error:
        return _fault(error, len(whole) - 2)
    except (UnicodeDecodeError, RecursionError):
        return Fault("broken", -1)


def counted(number: int, noun: str) -> str:
    """A count in words: 1 event, 2,345 events."""
    return f"{number:,} {noun if number == 1 else noun + 's'}"


def _decode_oddly(whole: bytes) -> list[Event] | Fault:
    try:
        raws = _RAWS.decode(whole)
    except msgspec.DecodeError as error:
        return _fault(error, len(whole) - 2)
    except RecursionError:
        return Fault("broken", -1)
    return OddEvents(_odd_event(raw) for raw in raws)


def _fault(error: msgspec.DecodeError, length: int) -> Fault:
    said = str(error)
    found = _POSITION.search(said)
    at = int(found[1]) - 1 if found else -1
    if "trailing characters" in said:
        return Fault("end", min(at - 1, length))  # msgspec counts this one from the byte behind
    if at < 0:
        return Fault("broken" if "UTF-8" in said else "cut", -1)  # bytes that are no text have no position there
    return Fault("cut" if at >= length - _MARGIN else "broken", min(at, length))


def _odd_event(raw: msgspec.Raw) -> Event:
    try:
        odd = _ODD.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Event(ph=UNREADABLE)
    return Event(
        ph=odd.ph if isinstance(odd.ph, str) else "",
        name=_text(odd.name),
        cat=odd.cat if isinstance(odd.cat, str) else "",
        pid=_number_or_text(odd.pid),
        tid=_number_or_text(odd.tid),
        ts=_number(odd.ts, math.nan),
        dur=_number(odd.dur, NO_LENGTH),
        args=odd.args,
    )


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, (int, float)) or value is None else ""


def _number_or_text(value: Any) -> int | str:
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**62:
        return int(value)
    return value if isinstance(value, (int, str)) and not isinstance(value, bool) else -1


def _number(value: Any, missing: float) -> float:
    """A number, also where it is written as text; NaN for what is none."""
    if value is None:
        return missing
    try:
        number = float(value) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        return math.nan
    return number if math.isfinite(number) else math.nan
