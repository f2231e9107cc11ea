"""Why a job stands still: what a rule hands over, and the rules on collectives.

Workers may be in different collectives or on their way out, a transport may be stuck, and waits may be unseen. EROICA,
section 6.3, case 3: a debug print of a sharded array implied an all-gather that not every rank ran.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from eroica.diagnosis.blocked.scene import Member, Scene
from eroica.diagnosis.blocked.waiting import Meeting, Node, Waiting
from eroica.diagnosis.words import name_workers, verb
from eroica.model.shares import percent
from eroica.model.verdict import FindingFunction
from eroica.model.words import clean

#: Causes and symptoms that a verdict tells at most.
MOST_TOLD = 20
_ONE_MOMENT = ("A dump is one moment: in a job that still moves it looks the same.",)
#: Sentences of one kind that the evidence of a cause holds at most.
MOST_SENTENCES = 6


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """One cause, on one or several workers.

    Attributes:
        cause: Slug of the catalog.
        ranks: Global ranks of the accused.
        function: Function in which they sit.
        clause: The finding, such as "worker 2 sits in next_batch (train.py:88)".
        evidence: One fact each.
        confidence: Probability that this is the cause, before coverage.
        nodes: Where ways of the graph must end that it explains; by default the workers.
        next_step: Instead of the catalog's.
        is_all: Nobody is singled out.
    """

    cause: str
    ranks: tuple[int, ...]
    function: FindingFunction
    clause: str
    evidence: tuple[str, ...] = ()
    confidence: float
    nodes: tuple[Node, ...] = ()
    next_step: str = ""
    is_all: bool = False

    @property
    def targets(self) -> tuple[Node, ...]:
        """Nodes of the graph at which waits for this origin arrive."""
        return self.nodes or self.ranks


def named_by(origins: Iterable[Origin]) -> set[int]:
    """Return the workers that some origins accuse."""
    return {rank for origin in origins for rank in origin.ranks}


def remaining(waiting: Waiting, origins: Iterable[Origin]) -> frozenset[int]:
    """Find workers that wait and that none of the origins explains."""
    return waiting.waiters - waiting.reaching(node for origin in origins for node in origin.targets)


def describe(member: Member) -> str:
    """Describe in one sentence where a worker sits, in which state, and for how long."""
    silence = f"silent for {member.now.silent_s:.0f} s, after {member.now.iteration} iterations"
    facts = ", ".join(filter(None, [member.site.label, _state_words(member), silence]))
    return f"Worker {member.worker.global_rank}: {facts}."


def _state_words(member: Member) -> str:
    """Describe the training thread's state in the kernel: "asleep in futex_do_wait, no CPU used in 2.0 s"."""
    thread = member.thread
    if thread is None:
        return ""
    channel = clean(thread.wait_channel, 40)
    states = {"R": "running", "D": "in an uninterruptible wait", "T": "stopped", "t": "stopped"}
    words = "running" if member.runs else states.get(thread.state, "asleep")
    words += f" in {channel}" if channel not in ("", "0") and not member.runs else ""
    if member.cpu is None:
        return words
    used = f"{percent(member.cpu)} of a core" if member.cpu >= 0.01 else "no CPU"
    return f"{words}, {used} used in {member.interval_s:.1f} s"


# --- workers in different collectives ---


def find_mismatches(scene: Scene, waiting: Waiting) -> list[Origin]:
    """Find meetings at which members called different operations, or one operation with different sizes."""
    return [
        _apart(scene, places, 0.93, (-1 - at,), where=f" as number {meeting.sequence} of {meeting.group.label}")
        for at, meeting in enumerate(waiting.meetings)
        if len(places := meeting.places()) > 1
    ]


def find_circle(scene: Scene, waiting: Waiting) -> list[Origin]:
    """Find workers that wait for each other in different collectives, none of which sits elsewhere."""
    circle = waiting.circle()
    places: dict[str, list[int]] = defaultdict(list)
    for rank in sorted(node for node in circle if node >= 0):
        meetings = [waiting.meetings[-1 - node].label for node in waiting.onward[rank] if node in circle]
        places[" and ".join(meetings)].append(rank)
    absent = [one.standing for one in waiting.meetings_at(circle)[:MOST_SENTENCES]]
    return [_apart(scene, places, 0.88, tuple(sorted(circle)), absent)] if places else []


def find_unrecorded(scene: Scene, waiting: Waiting, ranks: Sequence[int], *, is_last: bool) -> list[Origin]:
    """Find workers that communicate, by their stacks, in what no Flight Recorder holds, while others are elsewhere.

    If nothing else explains the standstill (`is_last`), workers count that nobody is known to wait for.
    """
    late = [rank for rank in ranks if rank in waiting.back]
    places: dict[str, list[int]] = defaultdict(list)
    for meeting in waiting.meetings_at(waiting.reaching(late)):
        places[meeting.label] += meeting.waiting
    for rank in late or (ranks if is_last else ()):
        places[scene.members[rank].site.inside or "a collective"].append(rank)
    why = "No Flight Recorder holds what they are in (gloo's sends and receives, stores, set-up of groups)."
    return [_apart(scene, places, 0.6 if late else 0.5, tuple(late or ranks), [why])] if len(places) > 1 else []


def _apart(
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
    ranks, most = sorted(places[named]), sorted(places[ordered[0]])
    evidence = [
        f"{name_workers(some, capital=True)} {verb(some, 'is', 'are')} in {place}{_called_from(scene, some[0])}."
        for place in ordered[:MOST_SENTENCES]
        for some in (sorted(places[place]),)
    ]
    function = FindingFunction(name=named, kind="collective")
    return Origin(
        cause="desynchronized-collective",
        ranks=tuple(sorted({rank for place in blamed for rank in places[place]})),
        function=function if scene.from_dumps else scene.members[ranks[0]].site.function,
        clause=f"{name_workers(ranks)} {verb(ranks, 'is', 'are')} in {named}{where}{_called_from(scene, ranks[0])}, "
        f"but {name_workers(most)} {verb(most, 'is', 'are')} in {ordered[0]}",
        evidence=(*evidence, *more),
        confidence=confidence * (0.65 if is_tie else 1.0),
        nodes=nodes,
    )


def _called_from(scene: Scene, rank: int) -> str:
    site = scene.members[rank].site
    return f" called from {site.label}" if site.own is not None else ""


def find_leavers(scene: Scene, ranks: Sequence[int]) -> list[Origin]:
    """Find workers, all gone or none, that have left or are at the end of their program while others wait for them."""
    if not ranks:
        return []
    member, its = scene.members.get(ranks[0]), verb(ranks, "its program", "their programs")
    how = f"ended {its} in order" if member is None else f"{verb(ranks, 'is', 'are')} at the end of {its}"
    ended = FindingFunction(name="end of the program", kind="other")
    return [
        Origin(
            cause="desynchronized-collective",
            ranks=tuple(ranks),
            function=member.site.function if member is not None else ended,
            clause=f"{name_workers(ranks)} {how} while others are still in collectives",
            evidence=(describe(member),) if member is not None else (),
            confidence=0.85,
            next_step="Look at the end of this worker's output: it left the loop early (an exception, fewer batches "
            "than the others, a condition that differs between workers).",
        )
    ]


# --- a collective that everybody has entered and that does not end: the transport is stuck ---


def find_stuck_transport(scene: Scene, waiting: Waiting, unexplained: frozenset[int]) -> list[Origin]:
    """Build one origin for all meetings that everybody has entered; a host is named if it alone is in all of them."""
    nodes = [
        node for node in waiting.ends() if node < 0 and not unexplained.isdisjoint(waiting.meetings[-1 - node].waiting)
    ]
    meetings = waiting.meetings_at(nodes)
    if not meetings:
        return []
    host = _host_that_stands_out(scene, meetings)
    waiters = sorted({rank for meeting in meetings for rank in meeting.waiting})
    ranks = tuple(rank for rank in waiters if not host or scene.host(rank) == host)
    first, stack = meetings[0], scene.members[meetings[0].waiting[0]].site.stack
    where = f"of host {host}: {name_workers(ranks)}" if host else "between the workers"
    which = f"the collective {first.label}"
    if len(meetings) > 1:
        which = f"each of {len(meetings)} collectives, such as {first.label},"
    return [
        Origin(
            cause="slow-link",
            ranks=ranks,
            function=FindingFunction(name=first.name, kind="collective", stack=stack),
            clause=f"{which} does not end although all members have entered; the network {where} is the suspect",
            evidence=(*(meeting.standing for meeting in meetings[:MOST_SENTENCES]), *_ONE_MOMENT[: scene.from_dumps]),
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
    if len(scene.hosts(scene.members)) < 2:
        return ""
    common = set.intersection(*({*scene.hosts(meeting.group.ranks)} for meeting in meetings))
    waiting_hosts = scene.hosts(rank for meeting in meetings for rank in meeting.waiting)
    if len(meetings) > 1 and len(common) == 1:
        return common.pop()
    return waiting_hosts[0] if len(waiting_hosts) == 1 else ""


# --- workers of which nothing is known, and stacks without a Flight Recorder ---


def find_unseen(ranks: Sequence[int], *, is_missing: bool) -> list[Origin]:
    """Find workers that others wait for and that nobody could look at, or whose stacks could not be read."""
    if not ranks:
        return []
    it, its_stack = verb(ranks, "it", "them"), verb(ranks, "its stack", "their stacks")
    rest = f"waited for by others, but {its_stack} could not be read"
    step = (
        "Allow ptrace for Eroica's agent (CAP_SYS_PTRACE, kernel.yama.ptrace_scope), or run py-spy dump on this "
        "process yourself."
    )
    if is_missing:
        rest = f"not seen by any agent, and others wait for {it}"
        step = "Log in to the host of these workers: is it reachable, do their processes live, does Eroica's agent run?"
    return [
        Origin(
            cause="unknown",
            ranks=tuple(ranks),
            function=FindingFunction(name="unknown", kind="other"),
            clause=f"{name_workers(ranks)} {verb(ranks, 'is', 'are')} {rest}",
            confidence=0.3,
            next_step=step,
        )
    ]
