"""Ways to read sequences: from a storage server in blocks, or ahead of time in a thread.

Nothing here runs unless somebody builds it in; see `PARTS` of `parts`.
"""

from __future__ import annotations

import http.client
import os
import queue
import threading
from typing import Any

ITEMS_PER_BLOCK = 32


class StoredTokens:
    """A dataset whose items are there once their block has come from a storage server.

    Args:
        source: The dataset behind it.
        port: Where the server listens on this host.
        items_per_block: Items that come with one answer.
    """

    def __init__(self, source: Any, port: int, items_per_block: int = ITEMS_PER_BLOCK) -> None:
        self.source = source
        self.port = port
        self.items_per_block = items_per_block
        self.owner = 0
        self.connection: Any = None
        self.number = -1
        self.block = b""

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Any:
        """Item `index` of the source."""
        number = index // self.items_per_block
        if (self.owner, self.number) != (os.getpid(), number):
            self.block = self._fetch_block(number)
            self.number = number
        return self.source[index]

    def close(self) -> None:
        """Close this process's connection."""
        if self.owner == os.getpid():
            self.connection.close()
            self.owner = 0

    def _fetch_block(self, number: int) -> bytes:
        if self.owner != os.getpid():  # a loader process must not share its parent's connection
            self.connection = http.client.HTTPConnection("127.0.0.1", self.port)
            self.owner = os.getpid()
        self.connection.request("GET", f"/blocks/{number}")
        block: bytes = self.connection.getresponse().read()
        return block


class TokensAhead:
    """A dataset that a thread of its own reads ahead, in order; the lengths go into a second queue, for a report.

    Args:
        source: The dataset behind it.
        pause: Shared number: the report is paused for so many seconds (infinity: for good); 0 = it is not.
    """

    def __init__(self, source: Any, pause: Any) -> None:
        self.source = source
        self.pause = pause
        self.owner = 0
        self.expected = 0
        self.longest = 0

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Any:
        """Item `index` of the source; the thread starts anew where the order has a gap."""
        if (self.owner, self.expected) != (os.getpid(), index):
            self._start_reader(index)
        self.expected = index + 1
        item = self._take_item()
        if self.pause.value == 0:
            self._report_lengths()
        return item

    def _take_item(self) -> Any:
        return self.items.get()

    def _start_reader(self, index: int) -> None:
        if self.owner == os.getpid():
            self.close()
        self.owner = os.getpid()
        self.items: queue.Queue[Any] = queue.Queue(16)
        self.lengths: queue.Queue[int] = queue.Queue(64)
        threading.Thread(target=self._read_ahead, args=(self.items, self.lengths, index), daemon=True).start()

    def _read_ahead(self, items: queue.Queue[Any], lengths: queue.Queue[int], first: int) -> None:
        for index in range(first, len(self.source)):
            item = self.source[index]
            self._note_length(lengths, len(item))
            items.put(item)
            if items is not self.items:
                return

    def _note_length(self, lengths: queue.Queue[int], length: int) -> None:
        seconds = self.pause.value
        try:
            lengths.put(length, timeout=seconds if 0 < seconds < float("inf") else None)
        except queue.Full:
            self.pause.value = 0.0

    def _report_lengths(self) -> None:
        while not self.lengths.empty():
            self.longest = max(self.longest, self.lengths.get())

    def close(self) -> None:
        """Let the thread end: what it still wants to put has no reader any more."""
        if self.owner == os.getpid():
            before, self.items = self.items, queue.Queue()
            self._report_lengths()
            while not before.empty():
                before.get()
            self.owner = 0
