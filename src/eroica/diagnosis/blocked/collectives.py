"""Rules on collectives: workers in different ones or on their way out, transports that are stuck, and waits unseen.

EROICA, section 6.3, case 3: a debug print of a sharded array implied an all-gather that not every rank ran.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from eroica.diagnosis.blocked.meetings import Meeting
from eroica.diagnosis.blocked.scene import Scene
from eroica.diagnosis.blocked.waiting import MOST_SENTENCES, Node, Origin, Waiting, describe, function_of
from eroica.diagnosis.words import name_workers
from eroica.model.verdict import FindingFunction
from eroica.model.words import clean

_CAUSE = "desynchronized-collective"
_FROM_DUMPS = (
    "Find where these workers call what the evidence names: a collective is called under a condition that is not the "
    "same on all workers (rank, loss, end of data, an exception), or in another order; call it on all or on none."
)


def find_mismatches(scene: Scene, waiting: Waiting) -> list[Origin]:
    """Find meetings at which members called different operations, or one operation with different sizes."""
    origins = []
    for index, meeting in enumerate(waiting.meetings.items):
        places = meeting.places()
        if len(places) > 1:
            named = {place.label: ranks for place, ranks in places.items()}
            where = f" as number {meeting.sequence} of {meeting.group.label}"
            origins.append(_origin(scene, named, 0.93, (-1 - index,), where=where))
    return origins


def find_circle(scene: Scene, waiting: Waiting) -> list[Origin]:
    """Find workers that wait for each other in different collectives, none of which sits elsewhere."""
    circle = waiting.circle()
    workers = sorted(node for node in circle if node >= 0)
    if not workers:
        return []
    labels = {node: waiting.meeting(node).label for node in circle if node < 0}
    places: dict[str, list[int]] = {}
    for rank in workers:
        label = " and ".join(labels[node] for node in waiting.onward[rank] if node in labels) or "a send or receive"
        places.setdefault(label, []).append(rank)
    nodes = tuple(sorted(circle))
    return [_origin(scene, places, 0.88, nodes, _missing(waiting, circle))]


def find_leavers(scene: Scene, ranks: Sequence[int], waiting: Waiting) -> list[Origin]:
    """Find workers that have left or are at the end of their program while others wait for them in a collective."""
    left = [rank for rank in ranks if rank in scene.left]
    leaving = [rank for rank in ranks if rank in scene.members]
    origins = []
    if left:
        its = "its program" if len(left) == 1 else "their programs"
        end = FindingFunction(name="end of the program", kind="other")
        origins.append(_leaver(scene, left, ("ended", "ended"), f"{its} in order", end, waiting))
    if leaving:
        its = "its program" if len(leaving) == 1 else "their programs"
        function = _function(scene, leaving[0])
        origins.append(_leaver(scene, leaving, ("is", "are"), f"at the end of {its}", function, waiting))
    return origins


def find_unrecorded(scene: Scene, ranks: Sequence[int], waiting: Waiting) -> list[Origin]:
    """Find workers that others wait for and that communicate in something that no Flight Recorder holds."""
    late = [rank for rank in ranks if rank in waiting.back]
    reached = waiting.reaching(late)
    places: dict[str, list[int]] = {}
    for at, meeting in enumerate(waiting.meetings.items):
        if -1 - at in reached:
            places.setdefault(meeting.label, []).extend(meeting.waiting)
    for rank in late:
        places.setdefault(clean(scene.members[rank].site.inside, 60) or "unrecorded communication", []).append(rank)
    if not late or len(places) < 2:
        return []
    why = "No Flight Recorder holds what they are in (gloo's sends and receives, stores, set-up of groups)."
    return [_origin(scene, places, 0.6, tuple(late), [why])]


def find_stacks_apart(scene: Scene, ranks: Sequence[int]) -> list[Origin]:
    """Find workers that communicate in different functions, by stacks alone, without any Flight Recorder."""
    places: dict[str, list[int]] = {}
    for rank in ranks:
        places.setdefault(clean(scene.members[rank].site.inside, 60) or "a collective", []).append(rank)
    why = "No Flight Recorder could be read; this is by stacks."
    return [_origin(scene, places, 0.5, tuple(ranks), [why])] if len(places) > 1 else []


def _origin(
    scene: Scene,
    places: Mapping[str, Sequence[int]],
    confidence: float,
    nodes: tuple[Node, ...],
    more: Sequence[str] = (),
    where: str = "",
) -> Origin:
    """Name the minority: all that are not where most are; both sides where no place has most."""
    ordered = sorted(places, key=lambda place: (-len(places[place]), min(places[place])))
    is_tie = len(ordered) < 2 or len(places[ordered[0]]) == len(places[ordered[1]])
    blamed = ordered if is_tie else ordered[1:]
    named = blamed[-1] if is_tie else blamed[0]
    subject, most = sorted(places[named]), sorted(places[ordered[0]])
    verb, against = ("is" if len(some) == 1 else "are" for some in (subject, most))
    evidence = [_who_is_where(scene, place, sorted(places[place])) for place in ordered[:MOST_SENTENCES]]
    evidence += [f"{len(ordered) - MOST_SENTENCES} more collectives are open."] if len(ordered) > MOST_SENTENCES else []
    return Origin(
        cause=_CAUSE,
        ranks=tuple(sorted({rank for place in blamed for rank in places[place]})),
        function=_function(scene, subject[0], named),
        verbs=(verb, verb),
        who=name_workers(subject),
        rest=f"in {named}{where}{_called_from(scene, subject[0])}, but {name_workers(most)} {against} in {ordered[0]}",
        evidence=(*evidence, *more),
        confidence=confidence * (0.65 if is_tie else 1.0),
        nodes=nodes,
        next_step=_FROM_DUMPS if scene.from_dumps else "",
    )


def _function(scene: Scene, rank: int, place: str = "unknown") -> FindingFunction:
    """Return the function in which the worker sits; from dumps only the collective is known."""
    member = scene.members.get(rank)
    if scene.from_dumps:
        return FindingFunction(name=place, kind="collective")
    if member is None or member.site.own is None:
        return FindingFunction(name="unknown", kind="other")
    return FindingFunction(name=member.site.name, kind="python", stack=member.site.stack)


def _called_from(scene: Scene, rank: int) -> str:
    member = scene.members.get(rank)
    return f" called from {member.site.label}" if member is not None and member.site.own is not None else ""


def _who_is_where(scene: Scene, place: str, ranks: Sequence[int]) -> str:
    verb = "is" if len(ranks) == 1 else "are"
    return f"{name_workers(ranks, capital=True)} {verb} in {place}{_called_from(scene, ranks[0])}."


def _missing(waiting: Waiting, circle: frozenset[Node]) -> list[str]:
    """List the collectives of a circle with the workers that have not entered each."""
    meetings: list[Meeting] = [waiting.meeting(node) for node in sorted(circle, reverse=True) if node < 0]
    return [
        f"{meeting.label}: {name_workers(meeting.absent)} {'has' if len(meeting.absent) == 1 else 'have'} not entered."
        for meeting in meetings[:MOST_SENTENCES]
        if meeting.absent
    ]


def _leaver(
    scene: Scene, ranks: Sequence[int], verbs: tuple[str, str], rest: str, function: FindingFunction, waiting: Waiting
) -> Origin:
    first = ranks[0]
    waiters = sorted(node for node in waiting.reaching(ranks) if node >= 0 and node not in ranks)
    evidence = [describe(first, scene.members[first])] if first in scene.members else []
    evidence += [f"{len(waiters)} workers wait in collectives that it never entered."] if waiters else []
    return Origin(
        cause=_CAUSE,
        ranks=tuple(ranks),
        function=function,
        verbs=verbs,
        rest=f"{rest} while others are still in collectives",
        evidence=tuple(evidence),
        confidence=0.85,
        next_step="Look at the end of this worker's output: it left the loop early (an exception, fewer batches than "
        "the others, a condition that differs between workers).",
    )


# --- a collective that everybody has entered and that does not end: the transport is stuck ---


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
            who=f"the collective {first.label}"
            if len(meetings) == 1
            else f"each of {len(meetings)} collectives, such as {first.label},",
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


# --- workers of which nothing is known, and stacks without a Flight Recorder ---


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
    it, its_stack = "it" if len(missing) == 1 else "them", "its stack" if len(blind) == 1 else "their stacks"
    log_in = (
        "Log in to the host of these workers: is it reachable, do their processes live, does Eroica's agent run there?"
    )
    allow = (
        "Allow ptrace for Eroica's agent (CAP_SYS_PTRACE, kernel.yama.ptrace_scope), or run py-spy dump on this "
        "process yourself."
    )
    found = (
        (missing, f"not seen by any agent, and others wait for {it}", log_in),
        (blind, f"waited for by others, but {its_stack} could not be read", allow),
    )
    return [
        Origin(
            cause="unknown",
            ranks=some,
            function=FindingFunction(name="unknown", kind="other"),
            verbs=("is", "are"),
            rest=rest,
            evidence=(f"The collectives of the others miss {name_workers(some)}.",),
            confidence=0.3,
            next_step=step,
        )
        for some, rest, step in found
        if some
    ]


def find_unreadable_waits(scene: Scene, ranks: Sequence[int]) -> list[Origin]:
    """Name all workers where everybody sits in communication, and nothing tells which one is missing."""
    if not ranks:
        return []
    sites = {rank: scene.members[rank].site for rank in ranks}
    first = sites[ranks[0]]
    why, step = "no Flight Recorder could be read, so who is missing cannot be told", _NO_RECORDER_STEP
    if any(word in site.inside for site in sites.values() for word in ("send", "recv")):
        why = "sends and receives leave no trace of their peer, so which pipeline stage is late cannot be told"
        step = _PAIRS_STEP
    told = [f"Worker {rank}: {site.inside or 'a collective'} called from {site.label}." for rank, site in sites.items()]
    return [
        Origin(
            cause="unknown",
            ranks=tuple(ranks),
            function=function_of(first),
            verbs=("waits", "wait"),
            rest=f"in communication at {first.label}; {why}",
            evidence=tuple(told[:MOST_SENTENCES]),
            confidence=0.3,
            is_all=len(ranks) == scene.expected > 1,
            next_step=step,
        )
    ]
