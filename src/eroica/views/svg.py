"""SVG as text: the one place where names and numbers of a job become markup.

Elements are `markupsafe.Markup`. Everything that is not Markup is escaped on its way in, after characters that would
turn lines around, hide or break them are gone; so hostile names cost nothing but themselves.

    svg(640, 200, rect(0, 0, 10, 20, cls="bar"), label(4, 12, name), title="Iteration times")
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from eroica.model.shares import percent
from eroica.report.words import clean, milliseconds

#: Mean width of a character of the page's text face, as a share of its size; measured on Latin names with digits.
_CHARACTER = 0.56
#: The same of its face for code.
_CODE_CHARACTER = 0.605
#: Numbers in pictures are written to a hundredth of a pixel.
_DIGITS = 2


def number(value: float) -> str:
    """A coordinate, short: "3", "3.25"; what is no number at all becomes 0, so that no picture breaks."""
    if not math.isfinite(value):
        return "0"
    text = f"{value:.{_DIGITS}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text) if text != "-0.00" else "0"


def words(text: object, limit: int = 160) -> Markup:
    """Text from anywhere as content or attribute: one line, visible characters only, at most `limit`, escaped."""
    if isinstance(text, Markup):
        return text
    return escape(clean(str(text), limit))


def tag(name: str, *children: object, **attributes: object) -> Markup:
    """One element.

    Args:
        name: "rect", "g", "text"; from our own code, never from the job.
        children: Markup as it is, other values as text; None is left out.
        attributes: `cls` is "class", other underscores are hyphens (`text_anchor`); a trailing one goes (`from_`).
            Numbers are written by `number`; None is left out.
    """
    written = "".join(f' {_attribute(key)}="{_value(value)}"' for key, value in attributes.items() if value is not None)
    inside = "".join(words(child, 600) for child in children if child is not None)
    return Markup(f"<{name}{written}>{inside}</{name}>" if inside else f"<{name}{written}/>")


def _attribute(key: str) -> str:
    if key == "cls":
        return "class"
    return key.rstrip("_").replace("_", "-")


def _value(value: object) -> str:
    if isinstance(value, float):
        return number(value)
    return words(value, 2000) if isinstance(value, str) else str(escape(value))


def join(parts: Iterable[Markup | None]) -> Markup:
    """Elements after each other."""
    return Markup("").join(part for part in parts if part is not None)


def svg(width: float, height: float, *children: object, title: str, cls: str = "", **attributes: object) -> Markup:
    """A picture that scales with the page.

    Args:
        width: Of its own coordinates, and at most so many pixels wide.
        height: Of its own coordinates.
        children: Elements.
        title: What it shows, read aloud in its place (`role="img"`).
        cls: More classes; "wide" pictures keep a least width and scroll sideways on a phone.
        attributes: More of the root's.
    """
    return tag(
        "svg",
        *children,
        viewBox=f"0 0 {number(width)} {number(height)}",
        width=float(width),
        height=float(height),
        role="img",
        aria_label=title,
        cls=f"picture {cls}".strip(),
        **attributes,
    )


def sign(width: float, height: float, *children: object, stretch: bool = False) -> Markup:
    """A small picture beside text that says the same: not read aloud; `stretch` fills the room that it is given."""
    return tag(
        "svg",
        *children,
        viewBox=f"0 0 {number(width)} {number(height)}",
        width=float(width),
        height=float(height),
        aria_hidden="true",
        preserveAspectRatio="none" if stretch else None,
    )


def group(*children: object, **attributes: object) -> Markup:
    """`<g>`."""
    return tag("g", *children, **attributes)


def move(x: float, y: float, *children: object, **attributes: object) -> Markup:
    """`<g>` moved by (x, y)."""
    return tag("g", *children, transform=f"translate({number(x)} {number(y)})", **attributes)


def rect(x: float, y: float, width: float, height: float, *children: object, **attributes: object) -> Markup:
    """A rectangle; negative sizes become 0; a `hint(...)` child is shown on hover."""
    size = {"width": float(max(width, 0.0)), "height": float(max(height, 0.0))}
    return tag("rect", *children, x=float(x), y=float(y), **size, **attributes)


def line(x1: float, y1: float, x2: float, y2: float, **attributes: object) -> Markup:
    """A straight line."""
    return tag("line", x1=float(x1), y1=float(y1), x2=float(x2), y2=float(y2), **attributes)


def circle(x: float, y: float, radius: float, *children: object, **attributes: object) -> Markup:
    """A circle; a `hint(...)` child is shown on hover."""
    return tag("circle", *children, cx=float(x), cy=float(y), r=float(radius), **attributes)


def path(d: str, *children: object, **attributes: object) -> Markup:
    """A path; `d` is our own, see `points` and `diamond`."""
    return tag("path", *children, d=Markup(d), **attributes)


def label(x: float, y: float, text: object, **attributes: object) -> Markup:
    """Text at (x, y); `text_anchor="middle"` or "end" as needed."""
    return tag("text", words(text, 600), x=float(x), y=float(y), **attributes)


def hint(text: object) -> Markup:
    """What the pointer shows of the element it stands in."""
    return tag("title", words(text, 600))


def points(xs: Iterable[float], ys: Iterable[float]) -> str:
    """The `d` of a line through points; a gap where a value is no number."""
    parts, pen = [], "M"
    for x, y in zip(xs, ys, strict=True):
        if not (math.isfinite(x) and math.isfinite(y)):
            pen = "M"
            continue
        parts.append(f"{pen}{number(x)} {number(y)}")
        pen = "L"
    return "".join(parts)


def diamond(x: float, y: float, radius: float) -> str:
    """The `d` of the sign for culprits: never color alone."""
    r = number(radius)
    return f"M{number(x)} {number(y - radius)}l{r} {r}l-{r} {r}l-{r} -{r}z"


@dataclass(frozen=True)
class Scale:
    """From values to pixels, linear; values outside are drawn at the nearer end."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Where `value` lies."""
        width = self.high - self.low
        share = (value - self.low) / width if width > 0 else 0.0
        return self.start + min(max(share, 0.0), 1.0) * (self.end - self.start)

    def ticks(self, about: int = 5) -> list[float]:
        """Round values between low and high, see `ticks`."""
        return ticks(self.low, self.high, about)


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """About so many round values (steps of 1, 2 or 5) from `low` to `high`."""
    if not (math.isfinite(low) and math.isfinite(high)) or high <= low:
        return [low] if math.isfinite(low) else []
    raw = (high - low) / max(about, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [count * step for count in range(first, last + 1)]


def roof(value: float, about: int = 4) -> float:
    """The end of an axis from 0 that has room for `value`: its next round number."""
    if not math.isfinite(value) or value <= 0:
        return 1.0
    steps = ticks(0.0, value, about)
    step = steps[1] if len(steps) > 1 else value
    return math.ceil(value / step - 1e-9) * step


def bottom_axis(scale: Scale, y: float, texts: Sequence[tuple[float, str]], title: str = "") -> Markup:
    """Ticks with their texts under a picture, and the axis' title at its right end.

    Args:
        scale: Of x.
        y: Where the picture ends.
        texts: Values and how they are written.
        title: What they are, unit included.
    """
    marks = [line(scale(value), y, scale(value), y + 4, cls="tick") for value, _ in texts]
    names = [label(scale(value), y + 16, text, text_anchor="middle", cls="tick-text") for value, text in texts]
    name = label(scale.end, y + 31, title, text_anchor="end", cls="axis-title") if title else None
    return group(line(scale.start, y, scale.end, y, cls="axis"), *marks, *names, name)


def left_axis(scale: Scale, x: float, width: float, texts: Sequence[tuple[float, str]], title: str = "") -> Markup:
    """Horizontal grid lines with their texts at the left, and the axis' title above.

    Args:
        scale: Of y, from bottom to top.
        x: Where the picture begins; texts end 6 pixels before.
        width: Of the grid lines.
        texts: Values and how they are written.
        title: What they are, unit included.
    """
    lines = [line(x, scale(value), x + width, scale(value), cls="grid") for value, _ in texts]
    names = [label(x - 6, scale(value) + 4, text, text_anchor="end", cls="tick-text") for value, text in texts]
    name = label(x, scale.end - 9, title, cls="axis-title") if title else None
    return group(*lines, *names, name)


def shares(values: Sequence[float]) -> list[tuple[float, str]]:
    """Ticks of fractions: 0.2 -> "20 %"."""
    digits = 1 if len(values) > 1 and values[1] - values[0] < 0.01 else 0
    return [(value, percent(value, digits)) for value in values]


def times(values_ms: Sequence[float]) -> list[tuple[float, str]]:
    """Ticks of times in milliseconds, all in one unit: "0", "50 ms", "1.5 s"."""
    largest = max((abs(value) for value in values_ms), default=0.0)
    factor, unit = (1e-3, "s") if largest >= 2000 else (1.0, "ms") if largest >= 2 else (1e3, "µs")
    return [(value, f"{value * factor:g} {unit}" if value else "0") for value in values_ms]


def time(value_ms: float) -> str:
    """A time for people: "14.4 ms"; below a hundredth of a millisecond in microseconds."""
    return f"{1000 * value_ms:.1f} µs" if 0 < abs(value_ms) < 0.01 else milliseconds(value_ms)


def clip(text: str, width: float, size: float = 12, code: bool = False) -> str:
    """`text` as far as it fits into `width` pixels at this size of letters, its middle left out; "" where nothing fits.

    Args:
        text: Not escaped yet.
        width: Pixels there are.
        size: Of the letters, pixels.
        code: Set in the face for code.
    """
    room = int(width / (size * (_CODE_CHARACTER if code else _CHARACTER)))
    plain = clean(text, 400)
    if len(plain) <= room:
        return plain
    return clean(plain, room) if room >= 4 else ""


def text_width(text: str, size: float = 12, code: bool = False) -> float:
    """About how many pixels a text takes."""
    return len(text) * size * (_CODE_CHARACTER if code else _CHARACTER)
