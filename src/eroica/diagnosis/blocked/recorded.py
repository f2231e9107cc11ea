"""Find causes in Flight Recorder dumps alone: workers not in a collective, behind, or with a device that stands still.

The numbers of collectives entered and completed show three ways to hold the others up:

- A worker has not entered the collective of its peers, and is in none itself: its own code does not get there.
- A worker's first open collective has been completed by its peers: its device does not get on.
- A worker's dump is missing, and everybody else is in a collective: it is missing there, or waits with the others.

No dump tells the reason, so the cause is "unknown" in all three; the awaited collective is named as function.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from eroica.diagnosis.blocked.origins import MOST_SENTENCES, Origin
from eroica.diagnosis.blocked.scene import Scene
from eroica.diagnosis.blocked.waiting import Meeting, Waiting, is_first
from eroica.diagnosis.words import name_workers, verb
from eroica.model.verdict import FindingFunction

_STACKS_STEP = (
    "While it stands still: py-spy dump --pid of these processes shows where they sit. Afterwards: the end of their "
    "output (an exception, a loader, a lock that is never released), compared with a worker that did get there."
)
_DEVICE_STEP = (
    "Look at the devices of these workers and at the end of their output: CUDA errors, Xid messages in dmesg, "
    "nvidia-smi -q; restart the job without a device that failed."
)
_MISSING_STEP = (
    "Find out whether these processes still exist (a worker that died writes no dump) and read the end of their "
    "output; if their dumps were only left behind on another host, add them."
)


def find_stalled(waiting: Waiting) -> list[Origin]:
    """Find workers whose device has not completed a collective that most of their peers have.

    What a worker enqueued first its device finishes first. If nobody is missing there and others are through, it waits
    for nobody: its own device (or the thread that watches it) stands still.
    """
    ended = [meeting for meeting in waiting.meetings_at(waiting.ends()) if meeting.finished]
    origins = []
    for places in _by_kind((rank, meeting) for meeting in ended for rank in meeting.waiting):
        meetings = [meeting for _, meeting in places]
        evidence = [
            f"Worker {rank} has entered numbers {one.sequence} to {one.group.entered[rank]} of {one.group.label} and "
            f"completed none of them; {name_workers(one.finished)} {verb(one.finished, 'has', 'have')} completed it."
            for rank, one in places
        ]
        # with many peers that are through a device stands still; with more members behind, it may be the transport
        behind = max(1.0 - len(one.finished) / len(one.group.ranks) for one in meetings)
        ranks = sorted({rank for rank, _ in places})
        clause = f"{name_workers(ranks)} {verb(ranks, 'has', 'have')} entered {_name(meetings)} but never finished it, "
        clause += "although the peers did"
        origins.append(_origin(ranks, meetings, clause, evidence, 0.9 - 0.4 * behind, _DEVICE_STEP))
    return origins


def find_absent(scene: Scene, waiting: Waiting, ranks: Iterable[int]) -> list[Origin]:
    """Find workers that others wait for and that wait in nothing themselves.

    Either all have a dump or none. A worker without a dump may as well be inside with the others: the confidence is
    below what counts as known.
    """
    origins = []
    for places in _by_kind((rank, _missed(scene, waiting, rank)) for rank in sorted(ranks)):
        named, meetings = [rank for rank, _ in places], [meeting for _, meeting in places]
        evidence = [_missed_sentence(rank, meeting) for rank, meeting in places]
        if named[0] in scene.members:
            done = "answered" if meetings[0].is_pair else "entered"
            clause = f"{name_workers(named)} {verb(named, 'has', 'have')} not {done} {_name(meetings)}"
            origins.append(_origin(named, meetings, clause, evidence, 0.75, _STACKS_STEP))
        else:
            clause = f"the {verb(named, 'dump', 'dumps')} of {name_workers(named)} {verb(named, 'is', 'are')} missing, "
            clause += f"so whether {verb(named, 'it has', 'they have')} entered {_name(meetings)} cannot be told"
            origins.append(_origin(named, meetings, clause, evidence, 0.3, _MISSING_STEP))
    return origins


def _by_kind(places: Iterable[tuple[int, Meeting]]) -> list[list[tuple[int, Meeting]]]:
    """Group workers, each with a meeting that it holds up, by operation and group; most workers first."""
    kinds: dict[tuple[str, str], list[tuple[int, Meeting]]] = defaultdict(list)
    for rank, meeting in places:
        kinds[meeting.name, meeting.group.label].append((rank, meeting))
    return sorted(kinds.values(), key=lambda some: (-len(some), min(rank for rank, _ in some)))


def _name(meetings: list[Meeting]) -> str:
    """Name meetings of one operation and one kind of group, with their number if they share it."""
    labels = {meeting.label for meeting in meetings}
    is_one = len(labels) == 1 and not meetings[0].is_pair  # a pair's label has ranks of its group
    return labels.pop() if is_one else f"{meetings[0].name} of {meetings[0].group.label}"


def _origin(
    ranks: list[int], meetings: list[Meeting], clause: str, evidence: list[str], confidence: float, next_step: str
) -> Origin:
    return Origin(
        cause="unknown",
        ranks=tuple(ranks),
        function=FindingFunction(name=meetings[0].name, kind="collective"),
        clause=clause,
        evidence=tuple(evidence[:MOST_SENTENCES]),
        confidence=confidence,
        next_step=next_step,
    )


def _missed(scene: Scene, waiting: Waiting, rank: int) -> Meeting:
    """Return the meeting that misses this worker and is the oldest open one of most waiting workers."""
    return max(
        waiting.meetings_at(waiting.back[rank]),
        key=lambda one: (not one.is_pair, sum(is_first(scene, other, one) for other in one.waiting), len(one.waiting)),
    )


def _missed_sentence(rank: int, meeting: Meeting) -> str:
    last = meeting.group.entered.get(rank)
    here = f"has entered numbers up to {last}" if last is not None and last >= 0 else "has entered none of that group"
    return (
        f"{name_workers(meeting.waiting, capital=True)} {verb(meeting.waiting, 'waits', 'wait')} in {meeting.label}; "
        f"worker {rank} {here if last is not None else 'is not known to be there'}."
    )
