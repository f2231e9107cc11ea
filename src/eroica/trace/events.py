"""A piece of a trace's text -> events: fast where all is as Kineto writes it, field by field where something is odd."""

from __future__ import annotations

import math
import re
from typing import Any, Literal, NamedTuple

import msgspec

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
        kind: "end": the list ends at `at`, something follows. "cut": the text ends inside an event. "broken": what
            stands at `at` is no JSON.
        at: Offset in the text, -1 if unknown.
    """

    kind: Literal["end", "cut", "broken"]
    at: int


_EVENTS = msgspec.json.Decoder(list[Event])
_RAWS = msgspec.json.Decoder(list[msgspec.Raw])
_ODD = msgspec.json.Decoder(_Odd)


class OddEvents(list[Event]):
    """Events that had to be decoded field by field; some may be `UNREADABLE`."""


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
