"""One worker in words and as one letter, for everything that shows a running job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from eroica.model.look import Ending
from eroica.wire.messages import WorkerStatus

WorkerLetter = Literal["l", "t", "c", "v", "s", "f", "u", "e", "x"]
#: What a letter stands for. Capital importance last: what needs somebody's eyes is drawn over the rest.
LETTERS: dict[WorkerLetter, str] = {
    "t": "training",
    "l": "learning its iterations",
    "c": "capturing a window",
    "v": "saving a window",
    "e": "ended in order",
    "u": "its host's agent is not heard",
    "f": "not watched any more",
    "s": "silent",
    "x": "ended badly",
}
#: What people should look at.
ODD = frozenset("usfx")
_BY_STATE: dict[str, WorkerLetter] = {
    "learning": "l",
    "capturing": "c",
    "saving": "v",
    "failed": "f",
    "finished": "e",
    "gone": "x",
}


def letter(status: WorkerStatus, heard: bool = True) -> WorkerLetter:
    """The worker's state.

    Args:
        status: As its agent told it last.
        heard: That was lately.
    """
    if status.ended:
        return "e" if status.ending is None or status.ending.kind == "signed-off" else "x"
    if not heard:
        return "u"
    return "s" if status.silent else _BY_STATE.get(status.state, "t")


def facts(status: WorkerStatus) -> Iterator[str]:
    """What there is to say of a worker, clause by clause."""
    if status.state == "failed":  # the guard in the training process gave up; the training itself goes on
        yield f"not watched any more, Eroica failed in it: {status.result.note or 'see the log of the worker'}"
    elif status.ended:
        yield f"{_ending(status.ending)} at iteration {status.iteration}"
        return
    else:
        yield status.state
    if status.silent:
        yield f"SILENT ({status.silence or f'{status.silent_s:.0f} s'})"
    yield f"{1e3 * status.current_s:.1f} ms" if status.current_s is not None else "-"
    if status.result.note and status.state != "failed":
        yield status.result.note


def _ending(ending: Ending | None) -> str:
    if ending is None:
        return "ended"
    if ending.out_of_memory:
        return "KILLED for want of memory"
    words = {"signal": f"ENDED by signal {ending.number}", "exit": f"ENDED with status {ending.number}"}
    return {"signed-off": "ended in order", **words}.get(ending.kind, "GONE, nobody saw how")
