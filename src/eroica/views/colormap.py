"""Times as colors, and small images of indexed colors without an imaging library.

Two scales from the page's paper to its ink: on light paper more is darker, on dark paper brighter. Both rise evenly in
lightness, so they read the same without color vision and in gray print.
"""

from __future__ import annotations

import struct
import zlib

import numpy as np
from numpy.typing import NDArray

#: Level 0 is transparent (no value); levels 1 to 255 are colors.
LEVELS = 256
#: Stops of the scales, evenly spaced from nothing to most.
LIGHT = ("#f1f2f0", "#cfdfe4", "#9cc3d3", "#5c9fbe", "#2c739f", "#164a75", "#0a2444")
DARK = ("#1a222c", "#173c56", "#1d5d80", "#3184a6", "#62aec3", "#aad6d8", "#f4fae6")


def levels(values: NDArray[np.float64], top: float) -> NDArray[np.uint8]:
    """Values as levels: 0 for NaN, else 1 to 255 by the square root of their share of `top`.

    Args:
        values: Any shape, 0 to `top` or NaN.
        top: The value of the last color, above 0.
    """
    share = np.sqrt(np.clip(values / top, 0.0, 1.0))
    found: NDArray[np.uint8] = np.nan_to_num(1 + np.round(share * (LEVELS - 2)), nan=0.0).astype(np.uint8)
    return found


def palette(stops: tuple[str, ...]) -> bytes:
    """256 colors of three bytes; the first one is never seen."""
    points = np.array([[int(stop[at : at + 2], 16) for at in (1, 3, 5)] for stop in stops], dtype=np.float64)
    at = np.linspace(0, len(stops) - 1, LEVELS - 1)
    columns = [np.interp(at, np.arange(len(stops)), points[:, channel]) for channel in range(3)]
    return bytes(3) + np.round(np.stack(columns, axis=1)).astype(np.uint8).tobytes()


def indexed_png(levels_HW: NDArray[np.uint8], stops: tuple[str, ...]) -> bytes:
    """A PNG of one byte a pixel.

    Args:
        levels_HW: Rows of pixels, as `levels` makes them. uint8 [H, W].
        stops: Of the scale.
    """
    height, width = levels_HW.shape
    filtered = np.zeros((height, width + 1), dtype=np.uint8)
    filtered[:, 1:] = levels_HW
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
        (b"PLTE", palette(stops)),
        (b"tRNS", b"\0"),
        (b"IDAT", zlib.compress(filtered.tobytes(), 9)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, data) for name, data in chunks)


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
