"""Work beside the training: statistics that a thread writes, hashes by a native library.

Nothing here runs unless somebody builds it in; see `PARTS` of `parts`.
"""

from __future__ import annotations

import ctypes
import threading
import time
from typing import Any


class TokenStatistics:
    """Counts batches in the training thread and writes the counts in another one.

    Args:
        patience_s: How long the writing thread waits for the counts; 0 = for ever.
    """

    def __init__(self, patience_s: float) -> None:
        self.patience_s = patience_s
        self.counts_lock = threading.Lock()
        self.file_lock = threading.Lock()
        self.writing = threading.Event()
        self.batches = 0
        self.written = 0

    def __call__(self, _module: Any, _inputs: Any) -> None:
        """Forward pre-hook of a module."""
        self.count_batch()

    def count_batch(self) -> None:
        """Count one, and look what has been written."""
        with self.counts_lock:
            self.batches += 1
            with self.file_lock:
                self.batches = max(self.batches, self.written)

    def write_once(self) -> None:
        """Start a thread that writes the counts when the next batch is counted; it has the file already."""
        threading.Thread(target=self._write_counts, daemon=True).start()
        self.writing.wait()

    def _write_counts(self) -> None:
        with self.file_lock:
            self.writing.set()
            while not self.counts_lock.locked():
                time.sleep(0.002)
            if self.counts_lock.acquire(timeout=self.patience_s or -1):
                self.written = self.batches
                self.counts_lock.release()


class TokenHasher:
    """Hashes each batch in a native library, whose calls keep the interpreter lock.

    Args:
        patience_s: How long the library waits for its table; 0 = for ever.
    """

    def __init__(self, patience_s: float) -> None:
        self.patience_s = patience_s
        self.library = ctypes.PyDLL(None)
        self.table = (ctypes.c_long * 16)()  # a mutex of the C library, all zero: nobody has it

    def __call__(self, _module: Any, _inputs: Any) -> None:
        """Forward pre-hook of a module."""
        self.hash_batch()

    def hash_batch(self) -> None:
        """Take the table and give it back."""
        if self.patience_s:
            seconds, fraction = divmod(time.time() + self.patience_s, 1)
            due = (ctypes.c_long * 2)(int(seconds), int(fraction * 1e9))
            self.library.pthread_mutex_timedlock(self.table, due)
        else:
            self.library.pthread_mutex_lock(self.table)
        self.library.pthread_mutex_unlock(self.table)

    def forget_table(self) -> None:
        """Take the table and do not give it back."""
        self.library.pthread_mutex_lock(self.table)
