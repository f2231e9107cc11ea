"""Find causes in Flight Recorder dumps alone: workers not in a collective, behind, or with a device that stands still.

The numbers of collectives entered and completed show three ways to hold the others up:

- A worker has not entered the collective of its peers, and is in none itself: its own code does not get there.
- A worker's first open collective has been completed by its peers: its device does not get on.
- A worker's dump is missing, and everybody else is in a collective: it is missing there, or waits with the others.

No dump tells the reason, so the cause is "unknown" in all three; the awaited collective is named as function.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from eroica.diagnosis.blocked.meetings import Meeting, Stall, is_first, operation_of
from eroica.diagnosis.blocked.scene import Scene
from eroica.diagnosis.blocked.waiting import MOST_SENTENCES, Origin, Waiting, remaining
from eroica.diagnosis.words import name_workers
from eroica.model.verdict import FindingFunction
from eroica.model.window import FlightEntry
from eroica.model.words import clean

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
_PAIR_STEP = (
    "Check the network and the devices of these workers; if their neighbours' sizes differ, compare what one sends "
    "with what the other expects."
)


def find_stalled(scene: Scene, waiting: Waiting) -> list[Origin]:
    """Find workers whose device has not completed a collective that those of their peers have."""
    stalls = waiting.meetings.stalls
    by_kind: dict[tuple[str, str], list[int]] = defaultdict(list)
    for rank, stall in sorted(stalls.items()):
        by_kind[clean(stall.entry.name, 80), stall.group.label].append(rank)
    return [_stalled(scene, waiting, kind, ranks) for kind, ranks in _largest_first(by_kind)]


def _stalled(scene: Scene, waiting: Waiting, kind: tuple[str, str], ranks: list[int]) -> Origin:
    stalls = waiting.meetings.stalls
    first = stalls[ranks[0]]
    which = f"number {first.entry.sequence} " if len({stalls[rank].entry.sequence for rank in ranks}) == 1 else ""
    evidence = [_stall_sentence(rank, stalls[rank]) for rank in ranks[:MOST_SENTENCES]]
    evidence += [
        _missed_sentence(rank, meeting)
        for rank in ranks[:MOST_SENTENCES]
        for meeting in _missed(scene, waiting, rank)[:1]
    ]
    evidence.append(
        "What a worker enters first, its device finishes first: it stands still there, or nobody watches it."
    )
    return Origin(
        cause="unknown",
        ranks=tuple(ranks),
        function=FindingFunction(name=kind[0], kind="collective"),
        verbs=("has", "have"),
        rest=f"entered {kind[0]} {which}of {kind[1]} but never finished it, although the peers did",
        evidence=tuple(evidence),
        # with many peers that are through a device stands still; with more members behind, it may be the transport
        confidence=round(0.9 - 0.4 * max(stalls[rank].left_behind for rank in ranks), 3),
        next_step=_DEVICE_STEP,
    )


def _stall_sentence(rank: int, stall: Stall) -> str:
    reached = max(stall.group.completed[peer] for peer in stall.finished)
    peers = name_workers(stall.finished)
    verb = "has" if len(stall.finished) == 1 else "have"
    last = stall.group.entered[rank]
    return (
        f"Worker {rank} has entered numbers {stall.entry.sequence} to {last} of {stall.group.label} and completed none "
        f"of them; {peers} {verb} completed all up to {reached}."
    )


def find_absent(scene: Scene, waiting: Waiting, ranks: Sequence[int]) -> list[Origin]:
    """Find workers that others wait for and that wait in nothing themselves."""
    by_kind: dict[tuple[str, str], list[int]] = defaultdict(list)
    for rank in ranks:
        meetings = _missed(scene, waiting, rank)
        label = meetings[0].group.label if meetings else ""
        by_kind[meetings[0].name if meetings else _pair_names(waiting, rank), label].append(rank)
    return [_absent(scene, waiting, kind, found) for kind, found in _largest_first(by_kind)]


def _absent(scene: Scene, waiting: Waiting, kind: tuple[str, str], ranks: list[int]) -> Origin:
    name, label = kind
    missed = {rank: _missed(scene, waiting, rank) for rank in ranks}
    numbers = {meetings[0].sequence for meetings in missed.values() if meetings}
    which = f" number {next(iter(numbers))}" if len(numbers) == 1 else ""
    what = f"entered {name}{which} of {label}" if label else f"answered {name}"
    evidence = []
    for rank in ranks[:MOST_SENTENCES]:
        evidence += [_missed_sentence(rank, meeting) for meeting in missed[rank][:2]]
        evidence += list(_pair_sentences(scene, waiting, rank))[:1]
        flight = scene.members[rank].now.flight
        if flight is not None and not flight.open:
            evidence.append(f"Nothing is open on worker {rank}: it waits in no collective and has stopped calling any.")
    return Origin(
        cause="unknown",
        ranks=tuple(ranks),
        function=FindingFunction(name=name, kind="collective"),
        verbs=("has", "have"),
        rest=f"not {what}",
        evidence=tuple(dict.fromkeys(evidence)),
        confidence=0.75,
        next_step=_STACKS_STEP,
    )


def _missed(scene: Scene, waiting: Waiting, rank: int) -> list[Meeting]:
    """List the meetings that miss this worker, first the one that is the oldest open one of most waiting workers."""
    nodes = [node for node in waiting.back.get(rank, ()) if node < 0]
    meetings = [waiting.meeting(node) for node in sorted(nodes, reverse=True)]
    return sorted(
        meetings, key=lambda one: (-sum(is_first(scene, other, one) for other in one.waiting), -len(one.waiting))
    )


def _missed_sentence(rank: int, meeting: Meeting) -> str:
    last = meeting.group.entered.get(rank)
    wait = "waits" if len(meeting.waiting) == 1 else "wait"
    there = f"{name_workers(meeting.waiting, capital=True)} {wait} in {meeting.label}"
    if last is None:
        return f"{there}; nothing tells whether worker {rank} has entered it."
    if last >= meeting.sequence:
        return f"{there}; worker {rank} has entered it, too, but its device has not come to it."
    return f"{there}; worker {rank} has entered {f'none after number {last}' if last >= 0 else 'none of that group'}."


def _pair_names(waiting: Waiting, rank: int) -> str:
    """Name the sends and receives that nobody answers, as in "nccl:send"."""
    names = [operation_of(waiting.meetings.pairs[node]) for node in waiting.back.get(rank, ()) if node >= 0]
    return max(sorted(set(names)), key=names.count) if names else "a send or receive"


def _pair_sentences(scene: Scene, waiting: Waiting, rank: int) -> Iterator[str]:
    for node in waiting.back.get(rank, ()):
        if node >= 0:
            entry = waiting.meetings.pairs[node]
            groups = scene.members[node].now.groups
            group = next((one.description for one in groups if one.name == entry.group), "") or entry.group
            yield f"Worker {node} waits in {clean(entry.name, 60)} of group {clean(group, 60)} for worker {rank}."


def find_without_dump(scene: Scene, waiting: Waiting, ranks: Sequence[int]) -> list[Origin]:
    """Find workers without a dump that others may wait for: they may as well be inside with the others."""
    if not ranks:
        return []
    meetings = [meeting for rank in ranks for meeting in _missed(scene, waiting, rank)[:1]]
    pairs = [sentence for rank in ranks for sentence in _pair_sentences(scene, waiting, rank)]
    which, they = ("the dump", "it has") if len(ranks) == 1 else ("the dumps", "they have")
    where = f"entered {meetings[0].label}" if meetings else f"answered {_pair_names(waiting, ranks[0])}"
    return [
        Origin(
            cause="unknown",
            ranks=tuple(ranks),
            function=FindingFunction(name=meetings[0].name if meetings else "unknown", kind="collective"),
            who=f"{which} of {name_workers(ranks)}",
            verbs=("is" if len(ranks) == 1 else "are", ""),
            rest=f"missing, so whether {they} {where} cannot be told",
            evidence=tuple(
                [f"{one.label}: every other member has entered, as far as dumps tell." for one in meetings[:4]]
                + pairs[:2]
            ),
            confidence=0.3,  # below what counts as known: it may be inside like the others
            next_step=_MISSING_STEP,
        )
    ]


def find_facing(waiting: Waiting, found: Sequence[Origin]) -> list[Origin]:
    """Find pairs of which one sends and the other receives, and the transfer does not end."""
    left = remaining(waiting, found) | (waiting.ends() & waiting.meetings.facing)
    origins = []
    for rank in sorted(waiting.meetings.facing):
        peer = waiting.meetings.peers[rank]
        if rank < peer and not left.isdisjoint((rank, peer, *waiting.back.get(rank, ()), *waiting.back.get(peer, ()))):
            entries = [waiting.meetings.pairs[one] for one in (rank, peer)]
            origins.append(_facing(rank, peer, entries))
    return origins


def _facing(rank: int, peer: int, entries: Sequence[FlightEntry]) -> Origin:
    names = [clean(entry.name, 60) for entry in entries]
    return Origin(
        cause="slow-link",
        ranks=(rank, peer),
        function=FindingFunction(name=operation_of(entries[0]), kind="collective"),
        who=f"{names[0]} of worker {rank} and {names[1]} of worker {peer}",
        verbs=("do not end", ""),
        rest="although both are there; the network between them is the suspect",
        evidence=(f"{names[0]} and {names[1]} are the first that is open on either side.",),
        confidence=0.4,
        next_step=_PAIR_STEP,
    )


def _largest_first(by_kind: dict[tuple[str, str], list[int]]) -> list[tuple[tuple[str, str], list[int]]]:
    return sorted(by_kind.items(), key=lambda item: (-len(item[1]), item[1]))
