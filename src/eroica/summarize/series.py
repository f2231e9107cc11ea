"""Arrays on the wire: little-endian, zlib-compressed."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from eroica.errors import InputError

_MAX_BYTES = 16_000_000


def encode_series(array: NDArray[Any], exact: bool = False) -> bytes:
    """One-dimensional array as bytes; empty for an empty array.

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
    """What `encode_series` made, as an array of `dtype` in the machine's byte order.

    Raises:
        InputError: The bytes are damaged, too many, or no whole number of values.
    """
    kind = np.dtype(dtype)
    if not data:
        return np.empty(0, dtype=kind)
    unpacker = zlib.decompressobj()
    try:
        plain = unpacker.decompress(data, _MAX_BYTES)
    except zlib.error as error:
        raise InputError(f"these {len(data)} bytes are no series: {error}") from error
    if unpacker.unconsumed_tail or not unpacker.eof or len(plain) % kind.itemsize:
        raise InputError(f"these {len(data)} bytes are no series of {kind}")
    return np.frombuffer(plain, dtype=kind.newbyteorder("<")).astype(kind)


def _rounded(array: NDArray[np.float32]) -> NDArray[np.float32]:
    bits = np.ascontiguousarray(array).view(np.uint32)
    with np.errstate(over="ignore"):
        kept = (bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)
    rounded: NDArray[np.float32] = np.where(np.isfinite(array), kept, bits).astype(np.uint32).view(np.float32)
    return rounded
