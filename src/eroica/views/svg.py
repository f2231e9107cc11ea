"""SVG as text, and pictures made of it: the only place where names and numbers of a job become markup.

Elements are `markupsafe.Markup`. Everything else is cleaned of control characters and escaped, so a hostile name does
no harm.

    svg(640, 200, rect(0, 0, 10, 20, cls="bar"), label(4, 12, name), title="Iteration times")
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from markupsafe import Markup, escape

from eroica.model.words import clean, milliseconds

#: Mean width of a character as a share of its size, measured on Latin names with digits: text, and code.
_CHARACTER, _CODE_CHARACTER = 0.56, 0.605


def number(value: float) -> str:
    """Return a coordinate to a hundredth of a pixel: "3", "3.25"; 0 for NaN and infinity."""
    if not math.isfinite(value):
        return "0"
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def words(text: object, limit: int = 160) -> Markup:
    """Return text cleaned, cut to `limit` characters and escaped."""
    if isinstance(text, Markup):
        return text
    return escape(clean(str(text), limit))


def tag(name: str, *children: object, **attributes: object) -> Markup:
    """Return one element.

    Args:
        name: Name of the element, never from the job.
        children: Markup or text; None is left out.
        attributes: `cls` is "class", other underscores are hyphens (`text_anchor`). None is left out.
    """
    named = {"class" if key == "cls" else key.replace("_", "-"): value for key, value in attributes.items()}
    written = "".join(f' {name}="{_value(value)}"' for name, value in named.items() if value is not None)
    inside = "".join(words(child, 600) for child in children if child is not None)
    return Markup(f"<{name}{written}>{inside}</{name}>" if inside else f"<{name}{written}/>")


def _value(value: object) -> str:
    if isinstance(value, float):
        return number(value)
    return words(value, 2000) if isinstance(value, str) else str(escape(value))


def join(parts: Iterable[Markup | None]) -> Markup:
    """Return elements after each other."""
    return Markup("").join(part for part in parts if part is not None)


def svg(
    width: float, height: float, *children: object, title: str = "", cls: str = "", stretch: bool = False
) -> Markup:
    """Return a picture of at most `width` pixels that scales with the page; a reader hears its title.

    Without a title it is a small picture beside text that says the same; `stretch` fills the width of its place. Class
    "wide": the picture keeps a least width and scrolls sideways on a phone.
    """
    spoken = {"role": "img", "aria_label": title, "cls": f"picture {cls}".strip()} if title else {"aria_hidden": "true"}
    size = {"viewBox": f"0 0 {number(width)} {number(height)}", "width": float(width), "height": float(height)}
    return tag("svg", *children, **size, **spoken, preserveAspectRatio="none" if stretch else None)


def rect(x: float, y: float, width: float, height: float, *children: object, **attributes: object) -> Markup:
    """Return a rectangle; negative sizes become 0."""
    size = {"width": float(max(width, 0.0)), "height": float(max(height, 0.0))}
    return tag("rect", *children, x=float(x), y=float(y), **size, **attributes)


def line(x1: float, y1: float, x2: float, y2: float, **attributes: object) -> Markup:
    """Return a straight line."""
    return tag("line", x1=float(x1), y1=float(y1), x2=float(x2), y2=float(y2), **attributes)


def path(d: str, *children: object, **attributes: object) -> Markup:
    """Return a path; `d` never comes from the job."""
    return tag("path", *children, d=Markup(d), **attributes)


def label(x: float, y: float, text: object, **attributes: object) -> Markup:
    """Return text at (x, y)."""
    return tag("text", words(text, 600), x=float(x), y=float(y), **attributes)


def hint(text: object) -> Markup:
    """Return the child that shows a text while the pointer is over its parent."""
    return tag("title", words(text, 600))


def points(xs: Iterable[float], ys: Iterable[float]) -> str:
    """Return the `d` of a line through points, with gaps at NaN."""
    parts, pen = [], "M"
    for x, y in zip(xs, ys, strict=True):
        if not (math.isfinite(x) and math.isfinite(y)):
            pen = "M"
            continue
        parts.append(f"{pen}{number(x)} {number(y)}")
        pen = "L"
    return "".join(parts)


def diamond(x: float, y: float, radius: float) -> str:
    """Return the `d` of the sign that marks culprits beside their color."""
    r = number(radius)
    return f"M{number(x)} {number(y - radius)}l{r} {r}l-{r} {r}l-{r} -{r}z"


@dataclass(frozen=True)
class Scale:
    """Linear map from values to pixels; values outside are drawn at the nearer end."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return the pixel of `value`."""
        width = self.high - self.low
        share = (value - self.low) / width if width > 0 else 0.0
        return self.start + min(max(share, 0.0), 1.0) * (self.end - self.start)


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Return about so many round values (steps of 1, 2 or 5) from `low` to `high`."""
    if not (math.isfinite(low) and math.isfinite(high)) or high <= low:
        return [low] if math.isfinite(low) else []
    raw = (high - low) / max(about, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [count * step for count in range(first, last + 1)]


def roof(value: float) -> float:
    """Return the end of an axis from 0 with room for `value`: its next round number."""
    steps = ticks(0.0, value, 4)
    return math.ceil(value / steps[1] - 1e-9) * steps[1] if len(steps) > 1 else 1.0


def bottom_axis(scale: Scale, y: float, texts: Sequence[tuple[float, str]], title: str) -> Markup:
    """Return ticks with texts under a picture that ends at y, and the title at the right end."""
    marks = [line(scale(value), y, scale(value), y + 4, cls="tick") for value, _ in texts]
    names = [label(scale(value), y + 16, text, text_anchor="middle", cls="tick-text") for value, text in texts]
    name = label(scale.end, y + 31, title, text_anchor="end", cls="axis-title")
    return tag("g", line(scale.start, y, scale.end, y, cls="axis"), *marks, *names, name)


def left_axis(scale: Scale, x: float, width: float, texts: Sequence[tuple[float, str]]) -> Markup:
    """Return horizontal grid lines of a picture that begins at x, with texts on their left."""
    lines = [line(x, scale(value), x + width, scale(value), cls="grid") for value, _ in texts]
    names = [label(x - 6, scale(value) + 4, text, text_anchor="end", cls="tick-text") for value, text in texts]
    return tag("g", *lines, *names)


def time(value_ms: float) -> str:
    """Return a time as text: "14.4 ms"; below a hundredth of a millisecond in microseconds."""
    return f"{1000 * value_ms:.1f} µs" if 0 < abs(value_ms) < 0.01 else milliseconds(value_ms)


def clip(text: str, width: float, size: float = 12, code: bool = False) -> str:
    """Return as much of a text as fits into `width` pixels, its middle left out; "" where nothing fits."""
    room = int(width / (size * (_CODE_CHARACTER if code else _CHARACTER)))
    plain = clean(text, 400)
    if len(plain) <= room:
        return plain
    return clean(plain, room) if room >= 4 else ""


def text_width(text: str, size: float = 12) -> float:
    """Return about how many pixels a text takes."""
    return len(text) * size * _CHARACTER


_NOTHING = Markup()


class Facts(NamedTuple):
    """The table below a picture: heads of the columns, the first of which names the row; cells as text, not escaped."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class Picture:
    """One picture of the report.

    Attributes:
        id: Lower case id of the figure. The script calls `eroica.pictures[id](figure, data)` when it comes into view.
        title: Heading.
        body: SVG or HTML, escaped already. It must be complete without the script. The page's security policy refuses
            inline `style` attributes: use classes.
        reads: How to read it, one or two sentences.
        facts: The same as a table; None where the body is a table itself.
        data: JSON-able data for the script; None without a script.
        missing: Why there is no picture, one sentence; empty where there is one.
    """

    id: str
    title: str
    body: Markup = _NOTHING
    reads: str = ""
    facts: Facts | None = None
    data: Mapping[str, object] | None = None
    missing: str = ""
