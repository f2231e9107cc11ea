"""A log of ours stays small, whatever makes us write into it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

from eroica.wire.logs import MAX_LOG_BYTES, log_to


@contextlib.contextmanager
def logging_to(path: Path) -> Iterator[logging.Logger]:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    root.handlers[:] = []
    try:
        log_to(path)
        yield root
    finally:
        for handler in root.handlers:
            handler.close()
            handler.stream.close()  # type: ignore[attr-defined]
        root.handlers[:] = before
        root.setLevel(level)


def test_a_log_ends_where_it_is_full_and_says_so(tmp_path: Path) -> None:
    with logging_to(tmp_path / "log") as logger:
        for number in range(4_000):
            logger.warning("%d %s", number, "complaint " * 30)
    text = (tmp_path / "log").read_text()
    assert MAX_LOG_BYTES <= len(text) < MAX_LOG_BYTES + 10_000
    assert text.count("this log is full") == 1 and text.endswith("nothing more is written\n")


def test_a_deep_stack_is_cut_in_the_middle(tmp_path: Path) -> None:
    def deeper(depth: int) -> None:
        if not depth:
            raise ValueError("y" * 30_000)
        deeper(depth - 1)

    with logging_to(tmp_path / "log") as logger:
        try:
            deeper(300)
        except ValueError:
            logger.exception("it failed")
    text = (tmp_path / "log").read_text()
    assert len(text) < 10_000 and "it failed\nTraceback" in text
