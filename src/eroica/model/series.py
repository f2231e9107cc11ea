"""Arrays on the wire: little-endian, zlib-compressed."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray
from zlib_ng import zlib_ng

from eroica.errors import InputError

#: As `zlib`, and it decodes in two thirds of the time; its types are not stated.
_ng: Any = zlib_ng

_MAX_BYTES = 16_000_000
#: Deflate makes at most 1,032 bytes of one.
_CANNOT_BE_TOO_LONG = _MAX_BYTES // 1032
#: Series of integers that are kept decoded: so many, if they are short.
_MOST_KEPT, _LONGEST_KEPT = 512, 512


def encode_series(array: NDArray[Any], exact: bool = False) -> bytes:
    """Encode a one-dimensional array as bytes; an empty array as no bytes.

    Args:
        array: Any numbers.
        exact: Keep float32 values as they are. Otherwise they keep 11 significant bits (0.05 %): durations of single
            executions are not measured better, and it halves the bytes.
    """
    if not array.size:
        return b""
    if array.dtype == np.float32 and not exact:
        array = _rounded(array)
    little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    return zlib.compress(little.tobytes(), 9)


def decode_series(data: bytes, dtype: DTypeLike) -> NDArray[Any]:
    """Decode the output of `encode_series` into an array of `dtype` in the machine's byte order.

    Arrays of integers are not to be written to.

    Raises:
        InputError: The bytes are damaged, too many, or no whole number of values.
    """
    kind = np.dtype(dtype)
    if not data:
        return np.empty(0, dtype=kind)
    return _decode_integers(data, kind) if kind.kind in "iu" and len(data) <= _LONGEST_KEPT else _decode(data, kind)


def _decode(data: bytes, kind: np.dtype[Any]) -> NDArray[Any]:
    plain = _unpacked(data)
    if len(plain) % kind.itemsize:
        raise InputError(f"these {len(data)} bytes are no series of {kind}")
    return np.frombuffer(plain, dtype=kind.newbyteorder("<")).astype(kind)


@lru_cache(maxsize=_MOST_KEPT)
def _decode_integers(data: bytes, kind: np.dtype[Any]) -> NDArray[Any]:
    """Decode short integer series once: members of a group have the same ones, and they are read often."""
    values = _decode(data, kind)
    values.setflags(write=False)
    return values


def decode_together(parts: Sequence[bytes], dtype: DTypeLike) -> NDArray[Any] | None:
    """Decode many series of the same length into one array, in a third of the time that they take one by one.

    Returns:
        [series, values] of `dtype`; None if there are none or their lengths differ.

    Raises:
        InputError: As `decode_series`.
    """
    kind = np.dtype(dtype)
    plain = [_unpacked(data) if data else b"" for data in parts]
    lengths = set(map(len, plain))
    if len(lengths) != 1 or not (length := lengths.pop()):
        return None
    if length % kind.itemsize:
        raise InputError(f"{length} bytes are no series of {kind}")
    values = np.frombuffer(b"".join(plain), dtype=kind.newbyteorder("<")).astype(kind, copy=False)
    return values.reshape(len(plain), -1)


def decode_alike(parts: Sequence[bytes], dtype: DTypeLike) -> NDArray[Any] | list[NDArray[Any]]:
    """Decode many series into one array [series, values] if they have the same length, else into one array each.

    Raises:
        InputError: As `decode_series`.
    """
    together = decode_together(parts, dtype)
    return [decode_series(data, dtype) for data in parts] if together is None else together


def _unpacked(data: bytes) -> bytes:
    """Decompress one series, within bounds."""
    if len(data) <= _CANNOT_BE_TOO_LONG:  # in half the time
        try:
            plain: bytes = _ng.decompress(data)
            return plain
        except _ng.error as error:
            raise InputError(f"these {len(data)} bytes are no series: {error}") from error
    unpacker = _ng.decompressobj()
    try:
        plain = unpacker.decompress(data, _MAX_BYTES)
    except _ng.error as error:
        raise InputError(f"these {len(data)} bytes are no series: {error}") from error
    if unpacker.unconsumed_tail or not unpacker.eof:
        raise InputError(f"these {len(data)} bytes are no series")
    return plain


def _rounded(array: NDArray[np.float32]) -> NDArray[np.float32]:
    bits = np.ascontiguousarray(array).view(np.uint32)
    with np.errstate(over="ignore"):
        kept = (bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)
    rounded: NDArray[np.float32] = np.where(np.isfinite(array), kept, bits).astype(np.uint32).view(np.float32)
    return rounded
