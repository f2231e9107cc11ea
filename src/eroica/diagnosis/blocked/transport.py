"""Rule 5: everybody is in the collective and it does not end: the transport is stuck."""

from __future__ import annotations

from collections.abc import Sequence

from eroica.diagnosis.blocked.meetings import Meeting
from eroica.diagnosis.blocked.origin import Origin, function_of
from eroica.diagnosis.blocked.scene import Scene
from eroica.diagnosis.blocked.waiting import Waiting
from eroica.diagnosis.words import name_workers
from eroica.model.verdict import FindingFunction
from eroica.model.words import clean


def find_stuck_transport(scene: Scene, waiting: Waiting, unexplained: frozenset[int]) -> list[Origin]:
    """Build one origin for all meetings that everybody has entered; a host is named if it alone is in all of them."""
    nodes = [node for node in waiting.ends() if node < 0 and not unexplained.isdisjoint(waiting.meeting(node).waiting)]
    meetings = [waiting.meeting(node) for node in sorted(nodes, reverse=True)]
    if not meetings:
        return []
    host = _host_that_stands_out(scene, meetings)
    waiters = sorted({rank for meeting in meetings for rank in meeting.waiting})
    ranks = tuple(rank for rank in waiters if not host or scene.host(rank) == host)
    first = meetings[0]
    at = f"{clean(host, 60)}: {name_workers(ranks)}" if host else name_workers(waiters)
    where = f"the network of host {at}" if host else "the network between the workers"
    site = scene.members[first.waiting[0]].site
    return [
        Origin(
            cause="slow-link",
            ranks=ranks,
            function=FindingFunction(name=first.name, kind="collective", stack=site.stack),
            who=_who(meetings),
            verbs=("does not end", ""),
            rest=f"although all members have entered; {where} is the suspect",
            evidence=_evidence(scene, meetings),
            confidence=0.45 if scene.from_dumps else 0.7 if host else 0.6,
            next_step="Check the network between these workers: link state and errors (ip -s link, ethtool), "
            "firewalls, the interface the job uses (GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME); restart the job without "
            "the host whose link is down.",
            nodes=tuple(nodes),
            is_all=not host and len(ranks) == scene.expected,
        )
    ]


def _who(meetings: Sequence[Meeting]) -> str:
    if len(meetings) == 1:
        return f"the collective {meetings[0].label}"
    return f"each of {len(meetings)} collectives, such as {meetings[0].label},"


def _host_that_stands_out(scene: Scene, meetings: Sequence[Meeting]) -> str:
    """Find the only host with members in every stuck meeting, or on which alone a meeting has not ended."""
    common: set[str] | None = None
    for meeting in meetings:
        hosts = {scene.host(rank) for rank in meeting.group.ranks} - {""}
        common = hosts if common is None else common & hosts
    everyone = {member.worker.host for member in scene.members.values()}
    if len(everyone) < 2:
        return ""
    if len(meetings) > 1 and common is not None and len(common) == 1:
        return next(iter(common))
    waiting_hosts = {scene.host(rank) for meeting in meetings for rank in meeting.waiting}
    return next(iter(waiting_hosts)) if len(waiting_hosts) == 1 else ""


def _evidence(scene: Scene, meetings: Sequence[Meeting]) -> tuple[str, ...]:
    found = []
    for meeting in meetings[:4]:
        hosts = {scene.host(rank) for rank in meeting.group.ranks} - {""}
        unread = f"; {name_workers(meeting.group.unknown)} could not be asked" if meeting.group.unknown else ""
        ended = len(meeting.group.ranks) - len(meeting.waiting) - len(meeting.group.unknown)
        passed = f", {ended} have left it" if ended > 0 else ""
        on = f" on {len(hosts)} host{'s' if len(hosts) != 1 else ''}" if not scene.from_dumps else ""
        found.append(
            f"{meeting.label}: all {len(meeting.group.ranks)} members{on} have entered, {len(meeting.waiting)} wait"
            f"{passed}{unread}."
        )
    if scene.from_dumps:
        found.append("A dump is one moment: in a job that still moves it looks the same.")
    crossing = [len({scene.host(rank) for rank in meeting.group.ranks}) > 1 for meeting in meetings]
    if all(crossing) and len(scene.hosts(tuple(scene.members))) > 1:
        found.append("Only groups that span hosts stand still.")
    return tuple(found)


# --- rule 7: workers of which nothing is known, and stacks without a Flight Recorder, where nobody could look ---


_PAIRS_STEP = (
    "Compare the stacks of neighbouring pipeline stages in the evidence: which of them expects a message that the "
    "other never sends (another order of sends and receives, another number of micro-batches)."
)
_NO_RECORDER_STEP = (
    "Keep the Flight Recorder on (TORCH_FR_BUFFER_SIZE above 0) and Eroica's setting answering_thread too: then the "
    "next standstill tells who is missing. Until then compare the call sites in the evidence."
)


def find_unseen(scene: Scene, ranks: Sequence[int]) -> list[Origin]:
    """Find workers that others wait for and that nobody could look at, or whose stacks could not be read."""
    missing = tuple(rank for rank in ranks if rank not in scene.members)
    blind = tuple(rank for rank in ranks if rank in scene.members)
    origins = []
    if missing:
        origins.append(
            _unknown(
                missing,
                ("is", "are"),
                f"not seen by any agent, and others wait for {'it' if len(missing) == 1 else 'them'}",
                "Log in to the host of these workers: is it reachable, do their processes live, does Eroica's agent "
                "run there?",
            )
        )
    if blind:
        origins.append(
            _unknown(
                blind,
                ("is", "are"),
                f"waited for by others, but {'its stack' if len(blind) == 1 else 'their stacks'} could not be read",
                "Allow ptrace for Eroica's agent (CAP_SYS_PTRACE, kernel.yama.ptrace_scope), or run py-spy dump on "
                "this process yourself.",
            )
        )
    return origins


def find_unreadable_waits(scene: Scene, ranks: Sequence[int]) -> list[Origin]:
    """Name all workers where everybody sits in communication, and nothing tells which one is missing."""
    if not ranks:
        return []
    sites = [scene.members[rank].site for rank in ranks]
    pairs = any(word in site.inside for site in sites for word in ("send", "recv"))
    why = (
        "sends and receives leave no trace of their peer, so which pipeline stage is late cannot be told"
        if pairs
        else "no Flight Recorder could be read, so who is missing cannot be told"
    )
    origin = Origin(
        cause="unknown",
        ranks=tuple(ranks),
        function=function_of(sites[0]),
        verbs=("waits", "wait"),
        rest=f"in communication at {sites[0].label}; {why}",
        evidence=tuple(
            f"Worker {rank}: {scene.members[rank].site.inside or 'a collective'} called from "
            f"{scene.members[rank].site.label}."
            for rank in ranks[:6]
        ),
        confidence=0.3,
        is_all=len(ranks) == scene.expected > 1,
        next_step=_PAIRS_STEP if pairs else _NO_RECORDER_STEP,
    )
    return [origin]


def _unknown(ranks: tuple[int, ...], verbs: tuple[str, str], rest: str, next_step: str) -> Origin:
    return Origin(
        cause="unknown",
        ranks=ranks,
        function=FindingFunction(name="unknown", kind="other"),
        verbs=verbs,
        rest=rest,
        evidence=(f"The collectives of the others miss {name_workers(ranks)}.",),
        confidence=0.3,
        next_step=next_step,
    )
