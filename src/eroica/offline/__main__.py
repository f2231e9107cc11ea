"""A reader: `python -m eroica.offline`, started by `eroica.offline.readers`, which says what is spoken here."""

from __future__ import annotations

import os
import queue
import threading
from pathlib import Path
from typing import IO

import msgspec

from eroica.offline.readers import COUNT, LENGTH, Order
from eroica.offline.reading import read_one
from eroica.settings import Settings


def main() -> None:
    """Read files until there is no parent any more."""
    voice = os.dup(1)
    os.dup2(2, 1)  # whatever is printed by accident is not part of the conversation
    ear = open(0, "rb", buffering=0, closefd=False)  # noqa: SIM115 (a buffer's lock would abort our end)
    settings = msgspec.json.decode(ear.readline(), type=Settings)
    orders: queue.SimpleQueue[Order] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(ear, orders), daemon=True).start()
    while True:
        order = orders.get()
        path = Path(os.fsdecode(order.path.encode("latin-1")))
        summary = read_one(
            path, order.rank, settings, lambda size: _say(voice, b"p" + COUNT.pack(size)), order.again, order.process
        )
        summary = msgspec.structs.replace(summary, path="", error=_text(summary.error))
        _say(voice, b"s" + msgspec.msgpack.encode(summary))


def _listen(ear: IO[bytes], orders: queue.SimpleQueue[Order]) -> None:
    for line in ear:
        orders.put(msgspec.json.decode(line, type=Order))
    os._exit(1)  # the parent is gone


def _text(text: str) -> str:
    """`text` as a message can carry it; names of files need not be UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()


def _say(voice: int, message: bytes) -> None:
    frame = memoryview(LENGTH.pack(len(message)) + message)
    while frame:
        frame = frame[os.write(voice, frame) :]


if __name__ == "__main__":
    main()
