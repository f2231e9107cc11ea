"""Logs of our processes without a terminal: readable by their user only, one line per message, bounded, no secrets.

No token gets in: only our own messages are kept at INFO, and the HTTP libraries, which could show headers at their
DEBUG level or be made to complain by every stranger, are heard about failures only.
"""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import TextIO

from eroica.wire.places import private_file

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_LOUD = ("httpx", "httpcore", "h11", "uvicorn", "uvicorn.error", "asyncio")
_LONGEST_MESSAGE = 2_000
_LONGEST_ENTRY = 8_000
MAX_LOG_BYTES = 500_000
"""Of one file, whoever makes us complain."""


class _Plain(logging.Formatter):
    """Names from the job are shown, not obeyed: a message is one line, and nothing in it moves a terminal's cursor."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = " ".join(record.message[:_LONGEST_MESSAGE].split())
        return super().formatMessage(record)

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        if len(text) > _LONGEST_ENTRY:  # a deep stack: where it began, and what came of it
            text = f"{text[: _LONGEST_ENTRY // 2]}\n...\n{text[-_LONGEST_ENTRY // 2 :]}"
        return _CONTROL.sub(lambda found: repr(found.group())[1:-1], text)


class _Bounded(logging.StreamHandler[TextIO]):
    """Writes up to `MAX_LOG_BYTES` into the file, what an earlier process wrote counted, and then says that it ends."""

    def emit(self, record: logging.LogRecord) -> None:
        if self.stream.closed:
            return
        super().emit(record)
        try:
            full = os.fstat(self.stream.fileno()).st_size >= MAX_LOG_BYTES
            if full:
                self.stream.write("this log is full: nothing more is written\n")
                self.stream.close()
        except (OSError, ValueError):
            return


def log_to(path: Path) -> None:
    """Send this process's log there, appended.

    Raises:
        OSError: The file cannot be opened, is a link, or is no regular file of ours.
    """
    handle = private_file(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    stream = os.fdopen(handle, "a", encoding="utf-8", errors="backslashreplace")
    handler = _Bounded(stream)
    handler.setFormatter(_Plain("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.INFO)
    for name in _LOUD:
        logging.getLogger(name).setLevel(logging.ERROR)
