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
        raise InputError("it is no pickle of protocol 2 or later")
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
        elif code == _FRAME and int.from_bytes(data[at + 1 : at + 9], "little") <= size - at:
            at += 9
        elif code in _TUPLES and tuples < _MAX_TUPLES:
            at, tuples = at + 1, tuples + 1
        else:
            raise InputError(f"the pickle does more than hold data (instruction 0x{code:02x} at byte {at})")
    raise InputError("the pickle is cut short")
