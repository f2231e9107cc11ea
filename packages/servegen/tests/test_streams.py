from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servegen.streams import AnswerStream


def event(value: Any) -> bytes:
    return b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"


def text(content: str, **more: Any) -> bytes:
    return event({"choices": [{"delta": {"content": content}, **more}]})


ROLE = event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
USAGE = event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 12}})
DONE = event(b"[DONE]")


def read(*parts: tuple[float, bytes]) -> AnswerStream:
    answer = AnswerStream()
    for now, data in parts:
        answer.feed(data, now)
    answer.close()
    return answer


def test_a_role_chunk_is_no_token() -> None:
    answer = read((0.0, ROLE), (0.25, text("a")), (0.3, text("b") + DONE))
    assert (answer.first_s, answer.last_s, answer.chunks, answer.error) == (0.25, 0.3, 2, "")


def test_reasoning_counts_as_text() -> None:
    for name in ("reasoning_content", "reasoning"):
        answer = read((0.1, event({"choices": [{"delta": {name: "hm"}}]})), (0.2, text("a") + DONE))
        assert answer.first_s == 0.1


def test_tokens_are_counted_by_usage_and_not_by_chunks() -> None:
    answer = read((0.0, text("abcd")), (0.06, text("efgh")), (0.12, text("ijkl")), (0.13, USAGE + DONE))
    assert answer.chunks == 3
    assert (answer.prompt_tokens, answer.completion_tokens) == (7, 12)
    assert answer.last_s == 0.12


def test_a_usage_chunk_that_comes_late_is_no_text() -> None:
    assert read((0.0, text("a", finish_reason="stop")), (5.0, USAGE), (5.0, DONE)).last_s == 0.0


def test_an_error_inside_the_stream_is_a_failure() -> None:
    answer = read(
        (0.0, text("a")), (0.1, text("b")), (0.2, event({"error": {"message": "out of memory"}})), (0.2, DONE)
    )
    assert "out of memory" in answer.error


def test_a_stream_without_its_end_mark_is_a_failure() -> None:
    assert "end mark" in read((0.0, text("a"))).error
    assert not read((0.0, text("a", finish_reason="length"))).error
    assert "no text" in read((0.0, DONE)).error


@pytest.mark.parametrize("data", [b"data: {\n\n", b"data: [1]\n\n", b'data: {"choices": "x"}\n\n', b"data: \xff\n\n"])
def test_a_chunk_that_is_not_understood_is_a_failure(data: bytes) -> None:
    assert "not understood" in read((0.0, data), (0.1, DONE)).error


@given(st.lists(st.integers(1, 40), max_size=20))
def test_how_bytes_are_cut_does_not_matter(cuts: list[int]) -> None:
    data = ROLE + text("a") + b": a comment\n\n" + text("b") + USAGE + DONE
    answer = AnswerStream()
    at = 0
    for cut in cuts:
        answer.feed(data[at : at + cut], 1.0)
        at += cut
    answer.feed(data[at:], 1.0)
    answer.close()
    assert (answer.chunks, answer.completion_tokens, answer.error) == (2, 12, "")
