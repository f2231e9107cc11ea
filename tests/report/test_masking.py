"""What is told as a sentence does nothing where a page shows it as Markdown or HTML."""

from __future__ import annotations

import re
import time
from html.parser import HTMLParser

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from eroica.report import masking
from eroica.report.masking import told

LIVE = (
    "<img alt src=//evil/leak>",
    "<details open ontoggle=alert(1)>",
    "<video autoplay src=//evil/x>",
    '<a "" href=//evil>',
    "![x](&#104;ttp://evil/leak)",
    "![x](http&colon;//evil)",
    r"![x](/\evil/x)",
    "<a < href=//evil>",
    "<img, onclick=x>",
    "<img/src=//evil>",
    "<x-y onpointerenter=x>",
    "<img x",
    "<textarea>",
    "<title>",
    "<h323:x>",
    "<javascript:alert(1)>",
    "<me@evil.example>",
    "[x]: //evil/x",
)
PIECES = (
    *"<>/= \t\n\"'`][()!:\\@\u202eaxé1-",
    *("</", "&#104;", "img", "src", "onerror", "script", "svg", "alert(1)", "//evil", "http:", "data:"),
    *LIVE,
)
READER = MarkdownIt("commonmark")
TEXTS = st.lists(st.sampled_from(PIECES), max_size=30).map("".join) | st.text()


class Attributes(HTMLParser):
    """Attributes with a value, as Python's own reader of HTML finds them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, str | None]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [attribute for attribute in attrs if attribute[1] is not None]


@pytest.mark.parametrize("text", LIVE)
def test_markup_that_a_page_would_obey_is_broken(text: str) -> None:
    assert told(text) != text
    assert not Attributes(told(text)).found


@pytest.mark.parametrize(
    "name",
    [
        "Graphs.edges.<locals>.<genexpr>",
        "<module>",
        "<lambda>",
        "vector<int, float>",
        "void at::native::kernel<4, at::native::(anonymous namespace)::Add<float> >(int, std::array<char*, 2ul>)",
        "std::vector<at::Tensor, std::allocator<at::Tensor> >::push_back(at::Tensor const&)",
        "std::string[abi:cxx11]::size",
        "a < b = c, x <= y, std::operator<<",
        "x[1] (main.py:3)",
    ],
)
def test_names_stay_as_they_are(name: str) -> None:
    assert told(name) == name


@given(TEXTS, TEXTS)
@example("<img", " src=//evil>")
@example("<a >", "x=1>")
def test_no_text_has_a_target_or_a_tag_with_an_attribute_even_beside_another(first: str, second: str) -> None:
    text = f"{told(first)} {told(second)}"
    assert not re.search(r"\](\(|:(?!:))", text)
    assert not re.search(r"<[/!?]", text)
    assert not re.search(r"<[a-z][^>]*=", text, re.IGNORECASE)
    assert not Attributes(text).found


@given(TEXTS)
def test_a_reader_of_markdown_finds_no_picture_and_no_link(text: str) -> None:
    shown = [part for block in READER.parse(told(text)) for part in (block.children or [])]
    assert not [part for part in shown if part.type == "image"]
    links = [str(part.attrs["href"]) for part in shown if part.type == "link_open"]
    assert all(re.match(r"[A-Za-z0-9+.\-]+::", link) for link in links)  # <at::Tensor> reads like an address


@pytest.mark.parametrize("piece", ["<", "<a", "<a ", "<a/", "<a:", "<a.", "](", "]", "<x y=", "[<a>", "<a@", "<script"])
def test_markup_is_broken_at_once_in_100_kb(piece: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masking, "sentence", str)  # which cuts to 600 characters
    monkeypatch.setattr(masking, "mask", str)
    began = time.process_time()
    told(piece * (100_000 // len(piece)))
    assert time.process_time() - began < 1.0
