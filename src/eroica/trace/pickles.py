"""Pickles of built-in containers and scalars, and nothing else.

A pickle is a program. Before one runs here, every instruction of it is looked at: only those that make dicts, lists,
tuples, text, bytes and numbers are admitted, every length must lie inside the file, and memory and collisions are
bounded. Instructions that import, call or build objects (GLOBAL, STACK_GLOBAL, INST, OBJ, NEWOBJ, REDUCE, BUILD, EXT,
PERSID and their like) are refused before anything is loaded; the loader behind could not resolve a name either.
"""

from __future__ import annotations

import io
import pickle
import re
import warnings
from typing import Any, NoReturn

from eroica.errors import InputError

_MAX_CONTAINERS = 5_000_000
_MAX_TUPLES = 50_000  # their hashes can be made to collide: as keys of one dict they cost the square of this
_STOP, _FRAME = ord("."), 0x95
#: Instructions of fixed length: integers of at most nine bytes, so that keys cannot collide by the thousand, and places
#: in the memo below 2**24. At most 4,096 in a row, because the search remembers each.
_FIXED = re.compile(
    rb"(?:[()\]}uase012N\x88\x89\x94]"
    rb"|[Khq\x80].|M..|[Jj].{4}|r...\x00|G.{8}"
    rb"|\x8a(?:\x00|\x01.|\x02..|\x03.{3}|\x04.{4}|\x05.{5}|\x06.{6}|\x07.{7}|\x08.{8}|\x09.{9})){1,4096}",
    re.DOTALL,
)
_TUPLES = b"t\x85\x86\x87"
#: Instructions with a length before their content: how many bytes the length takes.
_COUNTED = {
    ord("X"): 4, 0x8C: 1, 0x8D: 8,  # text
    ord("T"): 4, ord("U"): 1, ord("B"): 4, ord("C"): 1, 0x8E: 8,  # bytes
}  # fmt: skip
#: Bytes after these that belong to them; `_FIXED` matches them where they are whole.
_FIXED_LENGTHS = b"KMhqJjrG\x8a"
#: Integers too long for `_FIXED`, which a cut may leave as the last instruction.
_LONGER = b"\x8a\x8b"
_LONGEST = 11
#: Instructions that import, call or build, by what they do (Python's `pickletools`).
_RUNS = {
    ord("c"): "it imports a name",
    0x93: "it imports a name",
    ord("i"): "it imports and calls a name",
    ord("o"): "it calls something",
    ord("R"): "it calls something",
    ord("b"): "it builds an object",
    0x81: "it makes an object",
    0x92: "it makes an object",
    0x82: "it asks for a registered extension",
    0x83: "it asks for a registered extension",
    0x84: "it asks for a registered extension",
    ord("P"): "it asks for an object from elsewhere",
    ord("Q"): "it asks for an object from elsewhere",
}
#: Modules whose names no dump of data asks for.
_HOSTILE = frozenset(
    {
        "posix",
        "nt",
        "os",
        "subprocess",
        "builtins",
        "__builtin__",
        "sys",
        "importlib",
        "runpy",
        "pty",
        "socket",
        "shutil",
        "ctypes",
        "code",
        "commands",
        "webbrowser",
        "operator",
    }
)


class _DataUnpickler(pickle.Unpickler):
    """Resolves no name."""

    def find_class(self, module_name: str, global_name: str, /) -> NoReturn:
        raise pickle.UnpicklingError(f"it asks for {module_name[:60]}.{global_name[:60]}")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise pickle.UnpicklingError("it asks for an object from elsewhere")


def load_data(data: bytes) -> Any:
    """Read a pickle that holds data only.

    Args:
        data: The whole pickle, protocol 2 or later.

    Returns:
        Dicts, lists, tuples, text, bytes, numbers, truth values and None; containers may share or contain each other.

    Raises:
        InputError: It holds anything else, is cut short, or would take too much memory or time.
    """
    _check(data)
    try:
        return _DataUnpickler(io.BufferedReader(io.BytesIO(data), 1 << 16)).load()
    except (pickle.UnpicklingError, EOFError, UnicodeDecodeError, MemoryError, RecursionError) as error:
        raise InputError(f"the pickle cannot be read: {error or type(error).__name__}") from error
    except (TypeError, ValueError, AttributeError, LookupError, OverflowError) as error:
        raise InputError(f"the pickle does not fit together: {error}") from error


def _check(data: bytes) -> None:
    """Walk over all instructions without running them."""
    if data[:1] != b"\x80":
        raise InputError(
            _why_refused(data, 0) if data[:1] in (b"c", b"i") else "it is no pickle of protocol 2 or later"
        )
    if data.count(b"]") + data.count(b"}") > _MAX_CONTAINERS:
        raise InputError("the pickle holds more lists than a dump does")
    at, tuples, size = 0, 0, len(data)
    while at < size:
        run = _FIXED.match(data, at)
        if run is not None:
            at = run.end()
            continue
        code = data[at]
        if code == _STOP:
            return
        if code in _COUNTED:
            at += 1 + _COUNTED[code] + int.from_bytes(data[at + 1 : at + 1 + _COUNTED[code]], "little")
        elif code == _FRAME:
            at += 9  # a frame that reaches beyond the end shows in what is missing at the end
        elif code in _TUPLES and tuples < _MAX_TUPLES:
            at, tuples = at + 1, tuples + 1
        elif size - at < _LONGEST and (code in _LONGER or code in _FIXED_LENGTHS):
            break
        else:
            raise InputError(_why_refused(data, at))
    raise InputError("the pickle is cut short; copy or dump it again")


def _why_refused(data: bytes, at: int) -> str:
    """The sentence about an instruction that is not admitted."""
    code = data[at]
    where = f"instruction 0x{code:02x} at byte {at}"
    if code in _TUPLES:
        return f"the pickle holds more tuples than a dump does ({where})"
    if code not in _RUNS:
        return f"the pickle is damaged: it does more than hold data, or no longer holds any ({where})"
    with warnings.catch_warnings():  # of what looks like text in it, nobody is to be warned
        warnings.simplefilter("ignore")
        asks = _asked_for(data, at)
    hostile = asks.partition(".")[0] in _HOSTILE
    what = f"asks for {asks}" if asks else f"does more than hold data: {_RUNS[code]}"
    return (
        f"the pickle {'is hostile: it ' if hostile else ''}{what} ({where}) and would run code of its author's where "
        "it is loaded; nothing of it was run here, and it should be loaded nowhere else"
    )


def _asked_for(data: bytes, at: int) -> str:
    """The name that the instruction at this place imports, or that was imported last before it; "" if none was."""
    import pickletools  # for refused files only

    texts: list[str] = []
    asked = ""
    try:
        for operation, argument, place in pickletools.genops(data):
            if operation.name in ("GLOBAL", "INST") and isinstance(argument, str):
                asked = ".".join(argument.split(" ")[:2])
            elif operation.name == "STACK_GLOBAL" and len(texts) > 1:
                asked = ".".join(texts[-2:])
            elif isinstance(argument, str):
                texts.append(argument[:60])
            if place is not None and place >= at:
                break
    except (ValueError, EOFError, OverflowError, UnicodeDecodeError):  # it ends, or goes on as something else
        pass
    return asked[:120]
