"""`python -m eroica.agent.rendezvous`: leave a word in the training job's own store, or look one up there.

A program of its own and of short life, because it imports torch: neither agent nor training pays for that. It is asked
over standard input (the word holds a token, which a command line would show to everybody) and answers on standard
output, both one JSON object.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Literal

import msgspec

KEY = "eroica/collector"
MOST_BYTES = 2048
_PAUSE_S = 0.5


class Errand(msgspec.Struct, frozen=True, kw_only=True):
    """Task of a process that leaves or looks up the word of home in the job's store.

    Attributes:
        what: Leave `word`, or look one up.
        host: Of the job's store.
        port: Of the job's store.
        patience_s: How long the store, and the word in it, may take to appear.
        not_this: A word that is known already; waits for another one.
    """

    what: Literal["leave", "look_up"]
    host: str
    port: int
    word: str = ""
    patience_s: float = 20.0
    not_this: str = ""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Result of an errand: a word (the one that was left, or found), or the reason why there is none."""

    word: str = ""
    problem: str = ""


def run_errand(
    errand: Errand,
    connect: Callable[[Errand, float], Any],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Answer:
    """Do it.

    Args:
        errand: What to do.
        connect: Opens a client of the store, waiting at most so many seconds.
        clock: Seconds, monotonic.
        sleep: Waits.
    """
    end = clock() + errand.patience_s
    store = connect(errand, errand.patience_s)
    if errand.what == "leave":
        store.set(KEY, errand.word)
        return Answer(word=errand.word)
    while True:
        if store.check([KEY]):
            data = bytes(store.get(KEY))
            if len(data) > MOST_BYTES:
                return Answer(problem=f"a word of {len(data)} bytes in the job's store; not read")
            word = data.decode("utf-8", "replace")
            if word != errand.not_this:
                return Answer(word=word)
        if clock() >= end:
            return Answer(problem="nobody has left word in the job's store yet")
        sleep(_PAUSE_S)


def _connect(errand: Errand, patience_s: float) -> Any:
    from torch.distributed import TCPStore

    return TCPStore(
        errand.host, errand.port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=patience_s)
    )


def main() -> None:
    """One errand."""
    os.nice(10)
    answer = Answer()
    try:
        errand = msgspec.json.decode(sys.stdin.buffer.read(4 * MOST_BYTES), type=Errand)
        with contextlib.redirect_stdout(sys.stderr):
            answer = run_errand(errand, _connect)
    except (
        ArithmeticError,
        AttributeError,
        ImportError,
        LookupError,
        OSError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as error:
        answer = Answer(problem=f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")
    sys.stdout.buffer.write(msgspec.json.encode(answer))
    sys.stdout.flush()
    os._exit(0)  # a store that is gone must not be waited for


if __name__ == "__main__":
    main()
