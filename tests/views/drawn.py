"""What is to be seen in a picture's markup, read by an HTML parser."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import NamedTuple

_VOID = frozenset({"br", "wbr", "img", "input", "meta", "link", "hr"})


class Element(NamedTuple):
    """One element with the text directly in it."""

    name: str
    attributes: dict[str, str]
    text: list[str]

    @property
    def classes(self) -> list[str]:
        return self.attributes.get("class", "").split()


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[Element] = []
        self.open: list[Element] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {key: value or "" for key, value in attrs}, [])
        self.elements.append(element)
        if tag not in _VOID:
            self.open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(Element(tag, {key: value or "" for key, value in attrs}, []))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> ends nothing"
        assert self.open.pop().name == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.open[-1].text.append(data)


def read(body: str) -> list[Element]:
    """All elements; tags that do not fit together are an error."""
    reader = _Reader()
    reader.feed(str(body))
    reader.close()
    assert not reader.open, f"never closed: {reader.open}"
    return reader.elements


def texts(body: str, cls: str = "") -> list[str]:
    """What SVG's text elements say, all or those of a class."""
    found = [one for one in read(body) if one.name == "text" and (not cls or cls in one.classes)]
    return ["".join(one.text) for one in found]


def hints(body: str) -> list[str]:
    """What the pointer shows."""
    return ["".join(one.text) for one in read(body) if one.name == "title"]


def of_class(body: str, cls: str) -> list[Element]:
    """Elements of a class."""
    return [one for one in read(body) if cls in one.classes]
