"""What travels between a job and the service: MessagePack, one batch a request.

A batch holds pieces, which are kept once whatever happens, and a beat, of which only the newest counts. A piece is
named by the hash of its content, so that one that arrives twice is the same one.
"""

from __future__ import annotations

import hashlib
import zlib
from typing import Literal

import msgspec

from eroica.errors import InputError
from eroica.model.pattern import FunctionKey
from eroica.model.verdict import Verdict

#: Version of these records. A service understands its own and the one before.
PROTOCOL = 1
MAX_BATCH_BYTES = 16_000_000
MAX_BODY_BYTES = 32_000_000
"""Of one piece when unpacked."""
#: On every answer of the service: what a proxy says in its place refuses nothing for good.
OURS = "x-eroica-fleet"
Kind = Literal["verdict", "patterns", "standstill"]


class RunFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a job: the training from its start to its end, whatever restarts of the collector are in between.

    Attributes:
        run: Its own name, 32 hexadecimal digits, drawn at its start.
        job: Name of the job; runs of one name are compared.
        began: When it started, seconds since 1970.
        host: Where its collector runs.
        commit: Revision of the training code, "" where unknown.
        eroica_version: Of the side that reports.
    """

    run: str
    job: str
    began: float
    host: str = ""
    commit: str = ""
    eroica_version: str = ""


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """Something to be kept for good.

    Attributes:
        key: What it is about within the run ("verdict/3"); a later piece of the same key takes its place.
        at: When it was packed, seconds since 1970; not part of its name.
        body: `VerdictBody`, `PatternBlock` or `StandstillBody` as compressed MessagePack.
    """

    kind: Kind
    key: str
    facts: RunFacts
    at: float
    body: bytes

    @property
    def name(self) -> str:
        """Hash of its content, 64 hexadecimal digits."""
        head = f"{self.kind}\n{self.key}\n{self.facts.run}\n".encode()
        return hashlib.sha256(head + self.body).hexdigest()


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a worker runs: host, and device as the driver names it, else as torch does."""

    host: str
    device: str = ""


class VerdictBody(msgspec.Struct, frozen=True, kw_only=True):
    """A verdict that stands.

    Attributes:
        window_id: Of which window; 0 for the run's final one.
        purpose: Why the window was opened.
        judged_at: Seconds since 1970.
        places: Global rank -> place, of the workers that its findings name.
    """

    window_id: int
    judged_at: float
    verdict: Verdict
    purpose: str = ""
    places: dict[int, Place] = {}


class StandstillBody(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen of a job that stood still: `blockage.json` as it is."""

    window_id: int
    seen_at: float
    record: bytes


class PatternBlock(msgspec.Struct, frozen=True, kw_only=True):
    """Patterns of up to some dozens of workers of one window, as columns; W workers, R rows, little-endian.

    Attributes:
        block: Number of the block within the window.
        iterations: Captured in the window.
        ranks: Global ranks. int32 [W].
        local_ranks: int32 [W].
        places: One for each worker.
        durations_s: Length of the window on each. float64 [W].
        keys: Functions that the rows name.
        key: Of each row, which of them. int32 [R].
        worker: Of each row, which worker of the block. int32 [R].
        numbers: `eroica.model.rows.NUMBERS`, column by column. float32 [N, R].
        resources: Names of resources.
        resource: Of each row, which of them. int32 [R].
    """

    window_id: int
    block: int
    purpose: str
    iterations: int
    ranks: bytes
    local_ranks: bytes
    places: tuple[Place, ...]
    durations_s: bytes
    keys: tuple[FunctionKey, ...]
    key: bytes
    worker: bytes
    numbers: bytes
    resources: tuple[str, ...]
    resource: bytes


class Points(msgspec.Struct, frozen=True, kw_only=True):
    """Iteration times of a run, one value a stretch; see `eroica.model.history`."""

    at_s: tuple[float, ...] = ()
    iteration: tuple[int, ...] = ()
    mean_ms: tuple[float, ...] = ()
    slowest_ms: tuple[float, ...] = ()
    slowest_worker: tuple[int, ...] = ()


class Beat(msgspec.Struct, frozen=True, kw_only=True):
    """How a run is now.

    Attributes:
        at: Seconds since 1970.
        phase: As `status.json` says; "over" when the final verdict stands.
        hosts: Names of its hosts, None where they are those of the beat before.
        points: Iteration times since the last beat that was taken.
        age_s: So long ago it was like this; more than 0 only for a job that nobody watches any more.
        orders: Windows that were asked for and that the job has heard of since the last beat that was taken; None
            from a reporter that says nothing of them.
    """

    facts: RunFacts
    at: float
    phase: str
    message: str = ""
    iteration: int = 0
    mean_ms: float | None = None
    best_ms: float | None = None
    workers: int = 0
    hosts: tuple[str, ...] | None = None
    points: Points = Points()
    age_s: float = 0.0
    orders: tuple[int, ...] | None = None


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """One request."""

    protocol: int = PROTOCOL
    pieces: tuple[Piece, ...] = ()
    beat: Beat | None = None


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """A piece that will never be taken, and why."""

    name: str
    why: str


class WindowOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody asks for a window on the run that sent the beat."""

    order: int
    reason: str
    seconds: float = 0.0


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a batch, given when all of it is on disk.

    Attributes:
        taken: Names of pieces that are kept, now or since earlier; one that is in neither list is sent once more.
        refused: Those that need not be sent again.
        orders: Windows that are asked for; each is told until a beat says that it was heard of.
        pause_s: The service is busy: no beat sooner than that.
    """

    taken: tuple[str, ...] = ()
    refused: tuple[Refusal, ...] = ()
    orders: tuple[WindowOrder, ...] = ()
    pause_s: float = 0.0


def pack_body(body: msgspec.Struct) -> bytes:
    """A body as it travels.

    Raises:
        InputError: It has more than `MAX_BODY_BYTES`.
    """
    text = msgspec.msgpack.encode(body)
    if len(text) > MAX_BODY_BYTES:
        raise InputError(f"a body of {len(text)} bytes; the service takes {MAX_BODY_BYTES} at most")
    return zlib.compress(text, 6)
