"""Find causes in Flight Recorder dumps alone: workers not in a collective, behind, or with a device that stands still.

The numbers of collectives entered and completed show three ways to hold the others up:

- A worker has not entered the collective of its peers, and is in none itself: its own code does not get there.
- A worker's first open collective has been completed by its peers: its device does not get on.
- A worker's dump is missing, and everybody else is in a collective: it is missing there, or waits with the others.

No dump tells the reason, so the cause is "unknown" in all three; the awaited collective is named as function.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from eroica.diagnosis.blocked.origins import MOST_SENTENCES, Origin
from eroica.diagnosis.blocked.scene import Scene
from eroica.diagnosis.blocked.waiting import Meeting, Waiting, is_first, operation_of
from eroica.diagnosis.words import name_workers, verb
from eroica.model.verdict import FindingFunction
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
#: Operation and group of a collective.
_Kind = tuple[str, str]


def find_stalled(scene: Scene, waiting: Waiting) -> list[Origin]:
    """Find workers whose device has not completed a collective that those of their peers have."""
    by_kind: dict[_Kind, list[int]] = defaultdict(list)
    for rank, stall in sorted(waiting.stalls.items()):
        by_kind[clean(stall.entry.name, 80), stall.group.label].append(rank)
    return [_stalled(scene, waiting, kind, ranks) for kind, ranks in _largest_first(by_kind)]


def _stalled(scene: Scene, waiting: Waiting, kind: _Kind, ranks: list[int]) -> Origin:
    stalls = {rank: waiting.stalls[rank] for rank in ranks}
    numbers = {stall.entry.sequence for stall in stalls.values()}
    which = f"number {numbers.pop()} " if len(numbers) == 1 else ""
    evidence = []
    for rank, stall in list(stalls.items())[:MOST_SENTENCES]:
        reached = max(stall.group.completed[peer] for peer in stall.finished)
        evidence.append(
            f"Worker {rank} has entered numbers {stall.entry.sequence} to {stall.group.entered[rank]} of "
            f"{stall.group.label} and completed none of them; {name_workers(stall.finished)} "
            f"{verb(stall.finished, 'has', 'have')} completed all up to {reached}."
        )
        evidence += [_missed_sentence(rank, meeting) for meeting in _missed(scene, waiting, rank)[:1]]
    evidence.append(
        "What a worker enters first, its device finishes first: it stands still there, or nobody watches it."
    )
    behind = max(1.0 - len(stall.finished) / len(stall.group.ranks) for stall in stalls.values())
    return Origin(
        cause="unknown",
        ranks=tuple(ranks),
        function=FindingFunction(name=kind[0], kind="collective"),
        clause=f"{name_workers(ranks)} {verb(ranks, 'has', 'have')} entered {kind[0]} {which}of {kind[1]} but never "
        "finished it, although the peers did",
        evidence=tuple(evidence),
        # with many peers that are through a device stands still; with more members behind, it may be the transport
        confidence=round(0.9 - 0.4 * behind, 3),
        next_step=_DEVICE_STEP,
    )


def find_absent(scene: Scene, waiting: Waiting, ranks: Sequence[int]) -> list[Origin]:
    """Find workers that others wait for and that wait in nothing themselves."""
    by_kind: dict[_Kind, list[int]] = defaultdict(list)
    for rank in ranks:
        meetings = _missed(scene, waiting, rank)
        kind = (meetings[0].name, meetings[0].group.label) if meetings else (_pair_names(waiting, rank), "")
        by_kind[kind].append(rank)
    return [_absent(scene, waiting, kind, found) for kind, found in _largest_first(by_kind)]


def _absent(scene: Scene, waiting: Waiting, kind: _Kind, ranks: list[int]) -> Origin:
    name, label = kind
    missed = {rank: _missed(scene, waiting, rank) for rank in ranks}
    numbers = {meetings[0].sequence for meetings in missed.values() if meetings}
    which = f" number {numbers.pop()}" if len(numbers) == 1 else ""
    evidence = []
    for rank in ranks[:MOST_SENTENCES]:
        evidence += [_missed_sentence(rank, meeting) for meeting in missed[rank][:2]]
        evidence += _pair_sentences(scene, waiting, rank)[:1]
        if scene.members[rank].now.flight is not None and not scene.members[rank].open:
            evidence.append(f"Nothing is open on worker {rank}: it waits in no collective and has stopped calling any.")
    return Origin(
        cause="unknown",
        ranks=tuple(ranks),
        function=FindingFunction(name=name, kind="collective"),
        clause=f"{name_workers(ranks)} {verb(ranks, 'has', 'have')} not "
        + (f"entered {name}{which} of {label}" if label else f"answered {name}"),
        evidence=tuple(dict.fromkeys(evidence)),
        confidence=0.75,
        next_step=_STACKS_STEP,
    )


def _missed(scene: Scene, waiting: Waiting, rank: int) -> list[Meeting]:
    """List the meetings that miss this worker, first the one that is the oldest open one of most waiting workers."""
    return sorted(
        waiting.meetings_at(waiting.back.get(rank, ())),
        key=lambda one: (-sum(is_first(scene, other, one) for other in one.waiting), -len(one.waiting)),
    )


def _missed_sentence(rank: int, meeting: Meeting) -> str:
    last = meeting.group.entered.get(rank)
    there = f"{name_workers(meeting.waiting, capital=True)} {verb(meeting.waiting, 'waits', 'wait')} in {meeting.label}"
    if last is None:
        return f"{there}; nothing tells whether worker {rank} has entered it."
    if last >= meeting.sequence:
        return f"{there}; worker {rank} has entered it, too, but its device has not come to it."
    return f"{there}; worker {rank} has entered {f'none after number {last}' if last >= 0 else 'none of that group'}."


def _pair_names(waiting: Waiting, rank: int) -> str:
    """Name the sends and receives that nobody answers, as in "nccl:send"."""
    names = [operation_of(waiting.pairs[node][1]) for node in waiting.back.get(rank, ()) if node >= 0]
    return max(sorted(set(names)), key=names.count) if names else "a send or receive"


def _pair_sentences(scene: Scene, waiting: Waiting, rank: int) -> list[str]:
    told = []
    for node in waiting.back.get(rank, ()):
        if node >= 0:
            entry = waiting.pairs[node][1]
            groups = {one.name: one.description for one in scene.members[node].now.groups}
            group = clean(groups.get(entry.group) or entry.group, 60)
            told.append(f"Worker {node} waits in {clean(entry.name, 60)} of group {group} for worker {rank}.")
    return told


def find_without_dump(scene: Scene, waiting: Waiting, ranks: Sequence[int]) -> list[Origin]:
    """Find workers without a dump that others may wait for: they may as well be inside with the others."""
    if not ranks:
        return []
    meetings = [meeting for rank in ranks for meeting in _missed(scene, waiting, rank)[:1]]
    pairs = [sentence for rank in ranks for sentence in _pair_sentences(scene, waiting, rank)]
    where = f"entered {meetings[0].label}" if meetings else f"answered {_pair_names(waiting, ranks[0])}"
    told = [f"{one.label}: every other member has entered, as far as dumps tell." for one in meetings[:4]]
    return [
        Origin(
            cause="unknown",
            ranks=tuple(ranks),
            function=FindingFunction(name=meetings[0].name if meetings else "unknown", kind="collective"),
            clause=f"the {verb(ranks, 'dump', 'dumps')} of {name_workers(ranks)} {verb(ranks, 'is', 'are')} missing, "
            f"so whether {verb(ranks, 'it has', 'they have')} {where} cannot be told",
            evidence=(*told, *pairs[:2]),
            confidence=0.3,  # below what counts as known: it may be inside like the others
            next_step=_MISSING_STEP,
        )
    ]


def _largest_first(by_kind: dict[_Kind, list[int]]) -> list[tuple[_Kind, list[int]]]:
    return sorted(by_kind.items(), key=lambda item: (-len(item[1]), item[1]))
