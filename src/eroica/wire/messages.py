"""What agents and the collector say to each other over HTTP, as MessagePack. Both sides validate with these types."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from eroica.model.look import Ending
from eroica.model.window import WindowPurpose
from eroica.model.worker import Worker

OrderKind = Literal["probe", "window", "cancel"]
ResultStatus = Literal["nothing", "accepted", "open", "closed", "done", "missed", "skipped", "failed"]
WorkerState = Literal["learning", "steady", "capturing", "saving", "failed", "finished", "gone"]


class WorkerTrigger(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's iterations look slow.

    Attributes:
        count: Triggers of this worker so far; a new count is a new trigger.
        kind: "slow" against the job's own past, "expected" against what the user said.
        reason: One clause with numbers.
        baseline_s: Best mean iteration before, None if unknown.
        current_s: Mean iteration now.
        since: Iteration from which on they are slow, as far as blocks of a second tell; 0 = unknown.
    """

    count: int
    kind: Literal["slow", "expected", "seldom"] = "slow"  # the last one from agents of 0.1.0 only
    reason: str
    baseline_s: float | None
    current_s: float
    since: int = 0


class OrderResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of the last order on one worker; see `eroica.wire.beat.Result`."""

    window_id: int = 0
    status: ResultStatus = "nothing"
    kind: OrderKind = "window"
    first_iteration: int = 0
    last_iteration: int = 0
    events: int = 0
    stall_s: float = 0.0
    duration_s: float = 0.0
    note: str = ""


class WorkerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One worker as its agent sees it.

    Attributes:
        iteration: Completed iterations.
        current_s: Mean of the recent iterations; the median before there are enough, None before there are a few.
        baseline_s: Lowest mean within the horizon, None before the first.
        steady: Enough healthy iterations for a baseline window.
        latest_s: Mean of the iterations completed since the report before, None if there were none.
        ended: The process is gone; `state` is the last one seen, or "gone" if it did not sign off.
        silent_s: Seconds since any of its hooks fired.
        silent: That is longer than this worker's limit: it may be blocked.
        silence: One clause with numbers: how long, against which limit; empty if it is not silent.
        ending: How it ended; None while it lives.
        source: What marks its iterations, a number of `eroica.wire.beat`; 0 = nothing yet.
        known: Sources that could: bit number n stands for source n.
    """

    worker: Worker
    state: WorkerState
    iteration: int = 0
    current_s: float | None = None
    baseline_s: float | None = None
    steady: bool = False
    latest_s: float | None = None
    trigger: WorkerTrigger | None = None
    result: OrderResult = OrderResult()
    ended: bool = False
    silent_s: float = 0.0
    silent: bool = False
    silence: str = ""
    ending: Ending | None = None
    source: int = 0
    known: int = 0


class AgentReport(msgspec.Struct, frozen=True, kw_only=True):
    """Everything an agent knows, a few times a second.

    Attributes:
        event_budget: Trace events per worker that the host's scratch directory has room for; 0 = unknown.
        waiting: The job has other hosts, and their collector is being looked for: open no window yet.
        parts: What parts of other packages tell their like in the collector, by name; see `eroica.parts`.
        protocol: Version of what the agent says; see `refusal`. Older agents do not say theirs, which is 1.
    """

    host: str
    pid: int
    event_budget: int = 0
    workers: tuple[WorkerStatus, ...] = ()
    summarizing: int = 0
    notes: tuple[str, ...] = ()
    waiting: bool = False
    parts: dict[str, bytes] = {}
    protocol: int = 1


class OrderMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The current order for all workers; agents pass it on once per `serial`.

    Attributes:
        max_events: Workers close their window above this many trace events; 0 = no limit.
        operators: Record torch's operators, too; without them a trace holds collectives, optimizer steps, loading and
            the work of devices.
    """

    serial: int
    window_id: int
    kind: OrderKind
    purpose: WindowPurpose
    first_iteration: int
    last_iteration: int
    max_events: int = 0
    operators: bool = True


class CollectorReply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The collector's answer to a report.

    Attributes:
        order: The current order, None if there is none.
        absolved: Windows so far that found nothing wrong; agents raise their margins when it grows.
        stop: The job is over; the agent may end once its summaries are uploaded.
        look: Number of the look at blocked workers that agents shall take and hand in once (`POST /v1/looks`, a
            `HostLooks`); 0 = none.
        count_by: Source by which all workers shall count iterations; 0 = as each of them does.
        pause_s: The next report may wait so long in a job of many hosts; `eroica.wire.patience.REPORT_S` at least.
        protocol: Version of what the collector says, as in `AgentReport`.
    """

    order: OrderMessage | None = None
    absolved: int = 0
    stop: bool = False
    look: int = 0
    count_by: int = 0
    pause_s: Annotated[float, msgspec.Meta(ge=0, le=5)] = 0.0
    protocol: int = 1


class SummaryFailure(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's window could not be summarized."""

    global_rank: int
    note: str


class FinishRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The job is over.

    Attributes:
        exit_status: Of the command, negative for a signal, as `subprocess` gives it; None if nobody knows it.
        asked_to_end: The command was told to end (Ctrl-C, a scheduler's signal) before it did.
        patience_s: How long patterns of a window under way may still take.
    """

    exit_status: int | None = None
    asked_to_end: bool = False
    patience_s: Annotated[float, msgspec.Meta(ge=0, le=1e6)] = 1e6


class OpenRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Listen on this address of the host, too (`POST /v1/open`, only from the collector's own host)."""

    host: str


class OpenReply(msgspec.Struct, frozen=True, kw_only=True):
    """Where the collector listens now."""

    url: str


class ProfileRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Open a window now. Zero means: as the settings say."""

    iterations: int = 0
    seconds: float = 0.0
    reason: str = "asked for by hand"


class ProfileAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The window that was opened, or why none was."""

    window_id: int = 0
    refused: str = ""


class WindowLine(msgspec.Struct, frozen=True, kw_only=True):
    """A window in one line of the job's status.

    Attributes:
        phase: What is being done about it, or how it ended.
        verdict: The verdict's word, empty before there is one.
        summary: Its sentence, else what happened.
        cause: What was found and where, in a few words; empty without a cause.
    """

    window_id: int
    purpose: WindowPurpose
    phase: str
    first_iteration: int = 0
    last_iteration: int = 0
    verdict: str = ""
    summary: str = ""
    cause: str = ""


class JobStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What `status.json`, `eroica status` and the demo's progress show."""

    job: str
    phase: str
    message: str
    iteration: int = 0
    mean_ms: float | None = None
    best_ms: float | None = None
    hosts: tuple[str, ...] = ()
    workers: tuple[WorkerStatus, ...] = ()
    windows: tuple[WindowLine, ...] = ()
    notes: tuple[str, ...] = ()


# --- versions ---


#: Version of what agents and the collector say to each other.
PROTOCOL = 1


class _Spoken(msgspec.Struct):
    protocol: int = 1  # what Eroica said before there was a number


def spoken_in(message: bytes) -> int:
    """The version that a message is of, whatever else is in it; ours where that cannot be told."""
    try:
        return msgspec.msgpack.decode(message, type=_Spoken).protocol
    except (ValueError, RecursionError):
        return PROTOCOL


def refusal(theirs: int, they: str, we: str) -> str:
    """Why two sides do not work together, in one sentence; "" where they do.

    Args:
        theirs: The other side's version.
        they: Who that is.
        we: Who we are.
    """
    if abs(theirs - PROTOCOL) <= 1:
        return ""
    older = they if theirs < PROTOCOL else we
    return f"{they} speaks version {theirs} and {we} version {PROTOCOL}, more than one release apart: upgrade {older}"
