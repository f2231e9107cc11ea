"""Times as colors, and small images of indexed colors without an imaging library.

Two scales from the page's paper to its ink: on light paper more is darker, on dark paper brighter. Both rise evenly in
lightness, so they read the same without color vision and in gray print.
"""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from eroica.views import svg

#: Level 0 is transparent (no value); levels 1 to 255 are colors.
LEVELS = 256
#: Stops of the scales, evenly spaced from nothing to most.
LIGHT = ("#f1f2f0", "#cfdfe4", "#9cc3d3", "#5c9fbe", "#2c739f", "#164a75", "#0a2444")
DARK = ("#1a222c", "#173c56", "#1d5d80", "#3184a6", "#62aec3", "#aad6d8", "#f4fae6")
#: Class of the image for each paper, and its scale.
PALETTES = (("only-light", LIGHT), ("only-dark", DARK))


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


def image(png: bytes, cls: str, size: dict[str, float]) -> Markup:
    """Pixels of a PNG as they are, stretched."""
    url = "data:image/png;base64," + base64.b64encode(png).decode()
    return svg.tag("image", href=Markup(url), preserveAspectRatio="none", cls=f"pixels {cls}", **size)


def legend(top_ms: float, right: float, y: float) -> Markup:
    """The scale of colors with its values; steps are those of the root, so small times can be told apart.

    Args:
        top_ms: Time of the last color.
        right: Where it ends.
        y: Where the colors begin; values stand above.
    """
    width, x = 220.0, right - 220.0
    ramp = np.arange(1, LEVELS, dtype=np.uint8)[None, :]
    size = {"x": x, "y": y, "width": width, "height": 8.0}
    bars = [image(indexed_png(ramp, colors), cls, size) for cls, colors in PALETTES]
    stops = [0.0, top_ms / 16, top_ms / 4, top_ms]
    texts = [svg.label(x + width * (value / top_ms) ** 0.5, y - 4, svg.time(value) if value else "0",
                       text_anchor="end" if value == top_ms else "start" if not value else "middle", cls="tick-text")
             for value in stops]  # fmt: skip
    title = svg.label(x - 10, y + 8, "critical time per iteration", text_anchor="end", cls="axis-title")
    return svg.group(*bars, *texts, title)
