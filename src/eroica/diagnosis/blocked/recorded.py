"""Find causes in Flight Recorder dumps alone: workers not in a collective, behind, or with a device that stands still.

The numbers of collectives entered and completed show three ways to hold the others up:

- A worker has not entered the collective of its peers, and is in none itself: its own code does not get there.
- A worker's first open collective has been completed by its peers: its device does not get on.
- A worker's dump is missing, and everybody else is in a collective: it is missing there, or waits with the others.

No dump tells the reason, so the cause is "unknown" in all three; the awaited collective is named as function.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

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


def find_stalled(scene: Scene, waiting: Waiting) -> list[Origin]:
    """Find workers whose device has not completed a collective that most of their peers have.

    What a worker enqueued first its device finishes first. If nobody is missing there and others are through, it waits
    for nobody: its own device (or the thread that watches it) stands still.
    """
    by_kind: dict[tuple[str, str], list[int]] = defaultdict(list)
    for node in sorted(waiting.ends(), reverse=True):
        meeting = waiting.meetings[-1 - node] if node < 0 else None
        if meeting is not None and meeting.finished:
            by_kind[meeting.name, meeting.group.label].append(-1 - node)
    return _largest_first(_stalled(scene, waiting, some) for some in by_kind.values())


def _stalled(scene: Scene, waiting: Waiting, at: list[int]) -> Origin:
    """Return the origin of meetings (indices) of one kind that have ended for most of their members."""
    meetings = [waiting.meetings[index] for index in at]
    ranks = sorted({rank for meeting in meetings for rank in meeting.waiting})
    numbers = {meeting.sequence for meeting in meetings}
    which = f"number {numbers.pop()} " if len(numbers) == 1 else ""
    evidence = []
    for rank, meeting in [(rank, one) for one in meetings for rank in one.waiting][:MOST_SENTENCES]:
        reached = max(meeting.group.completed[peer] for peer in meeting.finished)
        evidence.append(
            f"Worker {rank} has entered numbers {meeting.sequence} to {meeting.group.entered[rank]} of "
            f"{meeting.group.label} and completed none of them; {name_workers(meeting.finished)} "
            f"{verb(meeting.finished, 'has', 'have')} completed all up to {reached}."
        )
        evidence += [_missed_sentence(rank, one) for one in _missed(scene, waiting, rank)[:1]]
    evidence.append(
        "What a worker enters first, its device finishes first: it stands still there, or nobody watches it."
    )
    behind = max(1.0 - len(meeting.finished) / len(meeting.group.ranks) for meeting in meetings)
    name, label = meetings[0].name, meetings[0].group.label
    return Origin(
        cause="unknown",
        ranks=tuple(ranks),
        function=FindingFunction(name=name, kind="collective"),
        clause=f"{name_workers(ranks)} {verb(ranks, 'has', 'have')} entered {name} {which}of {label} but never "
        "finished it, although the peers did",
        evidence=tuple(evidence),
        # with many peers that are through a device stands still; with more members behind, it may be the transport
        confidence=round(0.9 - 0.4 * behind, 3),
        nodes=tuple(-1 - index for index in at),
        next_step=_DEVICE_STEP,
    )


def find_absent(scene: Scene, waiting: Waiting, ranks: Sequence[int]) -> list[Origin]:
    """Find workers that others wait for and that wait in nothing themselves."""
    by_kind: dict[tuple[str, str], list[int]] = defaultdict(list)
    for rank in ranks:
        first = _missed(scene, waiting, rank)[0]
        by_kind[first.name, first.group.label].append(rank)
    return _largest_first(_absent(scene, waiting, some) for some in by_kind.values())


def _absent(scene: Scene, waiting: Waiting, ranks: list[int]) -> Origin:
    missed = {rank: _missed(scene, waiting, rank) for rank in ranks}
    first = missed[ranks[0]][0]
    numbers = {meetings[0].sequence for meetings in missed.values()}
    which = f"entered {first.name} number {numbers.pop()}" if len(numbers) == 1 else f"entered {first.name}"
    which = f"answered {first.name}" if first.is_pair else which
    evidence = []
    for rank in ranks[:MOST_SENTENCES]:
        evidence += [_missed_sentence(rank, meeting) for meeting in missed[rank][:2]]
        if scene.members[rank].now.flight is not None and not scene.members[rank].open:
            evidence.append(f"Nothing is open on worker {rank}: it waits in no collective and has stopped calling any.")
    return Origin(
        cause="unknown",
        ranks=tuple(ranks),
        function=FindingFunction(name=first.name, kind="collective"),
        clause=f"{name_workers(ranks)} {verb(ranks, 'has', 'have')} not {which} of {first.group.label}",
        evidence=tuple(dict.fromkeys(evidence)),
        confidence=0.75,
        next_step=_STACKS_STEP,
    )


def _missed(scene: Scene, waiting: Waiting, rank: int) -> list[Meeting]:
    """List the meetings that miss this worker, first the one that is the oldest open one of most waiting workers."""
    return sorted(
        waiting.meetings_at(waiting.back.get(rank, ())),
        key=lambda one: (one.is_pair, -sum(is_first(scene, other, one) for other in one.waiting), -len(one.waiting)),
    )


def _missed_sentence(rank: int, meeting: Meeting) -> str:
    last = meeting.group.entered.get(rank)
    there = f"{name_workers(meeting.waiting, capital=True)} {verb(meeting.waiting, 'waits', 'wait')} in {meeting.label}"
    if last is None:
        return f"{there}; nothing tells whether worker {rank} has {'answered' if meeting.is_pair else 'entered'} it."
    if last >= meeting.sequence:
        return f"{there}; worker {rank} has entered it, too, but its device has not come to it."
    return f"{there}; worker {rank} has entered {f'none after number {last}' if last >= 0 else 'none of that group'}."


def find_without_dump(scene: Scene, waiting: Waiting, ranks: Sequence[int]) -> list[Origin]:
    """Find workers without a dump that others may wait for: they may as well be inside with the others."""
    if not ranks:
        return []
    meetings = [_missed(scene, waiting, rank)[0] for rank in ranks]
    return [
        Origin(
            cause="unknown",
            ranks=tuple(ranks),
            function=FindingFunction(name=meetings[0].name, kind="collective"),
            clause=f"the {verb(ranks, 'dump', 'dumps')} of {name_workers(ranks)} {verb(ranks, 'is', 'are')} missing, "
            f"so whether {verb(ranks, 'it has', 'they have')} entered {meetings[0].label} cannot be told",
            evidence=tuple(
                f"{one.label}: every other member has entered, as far as dumps tell." for one in meetings[:4]
            ),
            confidence=0.3,  # below what counts as known: it may be inside like the others
            next_step=_MISSING_STEP,
        )
    ]


def _largest_first(origins: Iterable[Origin]) -> list[Origin]:
    return sorted(origins, key=lambda one: (-len(one.ranks), one.ranks))
