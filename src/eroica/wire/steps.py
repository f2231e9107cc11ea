"""Numbers on the wire in as few bits as they are measured with: steps of even relative size, byte by byte."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Whole = NDArray[np.int64]
#: No measured value is farther from its floor, in logarithms: exp(80) floors.
_FARTHEST = 80
_POSITIVE = np.int64(2**63 - 1)


def to_steps(values: NDArray[Any], floor: float, per_e: int) -> Whole:
    """Values as numbers of steps: of `floor / per_e` near zero, of a `per_e`-th of the value far above `floor`.

    Args:
        values: Finite. float [N].
        floor: Where steps change from even to relative, in the unit of the values; above zero.
        per_e: Steps in which a large value grows by the factor e.

    Returns:
        int64 [N].
    """
    steps: Whole = np.rint(np.arcsinh(np.asarray(values, dtype=np.float64) / floor) * per_e).astype(np.int64)
    return steps


def from_steps(steps: Whole, floor: float, per_e: int) -> NDArray[np.float64]:
    """Values in the middle of these steps. float64 [N]."""
    middle: NDArray[np.float64] = np.sinh(np.minimum(np.maximum(steps / per_e, -_FARTHEST), _FARTHEST)) * floor
    return middle


def pack_whole(values: Whole) -> bytes:
    """Whole numbers, zigzag: the lowest byte of all, the next one of all, up to the last that is not zero for all."""
    zigzag = ((values << 1) ^ (values >> 63)).astype("<i8").view(np.uint8).reshape(-1, 8).T
    used = 8
    while used and not zigzag[used - 1].any():
        used -= 1
    return zigzag[:used].tobytes()


def unpack_whole(data: bytes, count: int) -> Whole:
    """Undo `pack_whole`.

    Raises:
        ValueError: These are not `count` numbers.
    """
    planes, rest = divmod(len(data), count) if count else (0, len(data))
    if rest or planes > 8:
        raise ValueError(f"{len(data)} bytes are not {count} numbers")
    if not planes:
        return np.zeros(count, dtype=np.int64)
    bytes_PN = np.frombuffer(data, dtype=np.uint8).reshape(planes, count)
    if planes == 1:
        return _short(bytes_PN[0])
    pairs = bytes_PN[0] | bytes_PN[1].astype(np.uint16) << np.uint16(8)
    if planes == 2:
        return _short(pairs)
    zigzag = pairs.astype(np.uint64)
    for plane in range(2, planes):
        zigzag |= bytes_PN[plane].astype(np.uint64) << np.uint64(8 * plane)
    return _plain(zigzag)


def _short(zigzag: NDArray[Any]) -> Whole:
    plain: Whole = np.take(_SHORT, zigzag)
    return plain


def _plain(zigzag: NDArray[np.uint64]) -> Whole:
    values = zigzag.view(np.int64)
    plain: Whole = ((values >> 1) & _POSITIVE) ^ -(values & 1)
    return plain


def differences(values: Whole) -> Whole:
    """The first value, and of each other one what it is more than the one before; `np.cumsum` undoes it. int64 [N]."""
    more = values.copy()
    more[1:] -= values[:-1]
    return more


#: What zigzag numbers of two bytes stand for.
_SHORT = _plain(np.arange(1 << 16, dtype=np.uint64))
