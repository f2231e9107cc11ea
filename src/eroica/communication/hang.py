"""A job in which nothing moves: the worker that has not entered, or the data that does not arrive.

A process is stopped inside an operation if data waits unread at its sockets: peers only send data for a receive that
was announced.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from msgspec.structs import replace as replace_fields

from eroica.communication.stretch import Cell, Matched, read_places
from eroica.model.communication import CommunicationClass, GroupCount, Place, WorkerOperations
from eroica.model.worker import ProcessGroup

#: Least unread bytes of one connection that are data, not notices.
_DATA_BYTES = 4096
_STOPPED = ("t", "T")
#: Confidence in workers that sleep outside, few or many of them: they may still wake up.
_ASLEEP, _MANY_ASLEEP = 0.75, 0.6
#: Maximum workers of which "it may be either" is told.
_MOST_EITHER = 3


@dataclass(frozen=True)
class Scene:
    """Records of a job that stands still.

    Attributes:
        operations: Global rank -> its last record.
        groups: Communicators by name.
        hosts: Global rank -> host.
        matched: Connections of the last records.
        busy: Workers that compute, read or write while the job stands still.
        unheard: Hosts whose agents fell silent meanwhile.
        used: Cells with traffic while the job moved.
        home: The collector's host.
        busiest: Global rank -> group in which it communicated most while the job moved.
        at_work: Workers that go on by other signs than their use of a core: hooks, files, other threads, children,
            connections with others than workers.
    """

    operations: Mapping[int, WorkerOperations]
    groups: Mapping[str, ProcessGroup]
    hosts: Mapping[int, str]
    matched: tuple[Matched, ...] = ()
    busy: frozenset[int] = frozenset()
    unheard: frozenset[str] = frozenset()
    used: frozenset[Cell] = frozenset()
    home: str = ""
    at_work: frozenset[int] = frozenset()
    busiest: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Hang:
    """A hang and its place.

    Attributes:
        kind: The class.
        places: The first is the likeliest.
        operation: The collective that waits.
        group: Its group.
        waiting: Workers that wait in it.
        confidence: 0-1.
        evidence: Sentences with numbers.
        is_busy: Whether a named worker's process is active: it may only be late.
    """

    kind: CommunicationClass
    places: tuple[Place, ...]
    operation: str
    group: str
    waiting: tuple[int, ...]
    confidence: float
    evidence: tuple[str, ...] = field(default=())
    is_busy: bool = False


def find_hang(scene: Scene) -> Hang | None:
    """Read a standstill; None if nobody waits in a collective, or if it cannot be told for whom.

    Of workers that are lost, stopped or missing, it names the group that waits for them with most members inside.
    """
    meetings = [meeting for name, counts in _counts(scene).items() if (meeting := _meeting(scene, name, counts)).inside]
    if not meetings or is_suspended(scene.operations.values()):
        return None
    meetings.sort(key=lambda one: (len(one.inside), len(one.absent)), reverse=True)
    members = sorted({worker for meeting in meetings for worker in meeting.members})
    lost = tuple(worker for worker in members if scene.hosts.get(worker) in scene.unheard)
    if scene.home in scene.unheard or 1 < len(scene.unheard) >= len(set(scene.hosts.values())) / 2:
        return None  # it is we who hear nobody
    if lost:
        return _cut_off(scene, _meeting_of(meetings, lost), lost)
    stopped = _stopped(scene, members)
    if stopped:
        return _of_stopped(scene, _meeting_of(meetings, stopped), stopped)
    return _not_come(scene, meetings)


@dataclass(frozen=True)
class _Meeting:
    name: str
    label: str
    sequence: int
    members: tuple[int, ...]
    inside: tuple[int, ...]
    absent: tuple[int, ...]

    @property
    def operation(self) -> str:
        return f"collective number {self.sequence} of {self.label}"


def _meeting_of(meetings: Sequence[_Meeting], workers: Collection[int]) -> _Meeting:
    """Return the largest meeting with any of these workers."""
    return next(meeting for meeting in meetings if set(workers) & set(meeting.members))


def _not_come(scene: Scene, meetings: Sequence[_Meeting]) -> Hang | None:
    """Return the workers that have not entered and are not held up themselves.

    A worker that waits in one group is absent from others because of that. Messages leave no counters, so a worker that
    waits for one is absent and waits in no group. A worker that hangs by itself is missed in the group in which it
    communicates most; one that is not missed there is held up with its mates. If nobody is missed directly, a
    collective that all have entered does not end. A worker in a message with a hanging one is missed as well, and so is
    one whose mates went on without it: then either may be the one, and the place says so.
    """
    waiting = {worker for meeting in meetings for worker in meeting.inside}
    owing = {worker for meeting in meetings for worker in meeting.absent} - waiting
    missed = {(meeting.name, worker): meeting for meeting in meetings for worker in meeting.absent}
    direct = {worker: one for worker in sorted(owing) if (one := missed.get((scene.busiest.get(worker, ""), worker)))}
    complete = [meeting for meeting in meetings if not meeting.absent]
    if complete and not direct:
        return _under_way(scene, complete[0])
    if not owing:
        return _in_another(scene, meetings)
    named = set(direct or owing)
    common = sorted((one for one in meetings if named <= set(one.absent)), key=lambda one: one not in direct.values())
    free = {scene.busiest[worker] for worker in scene.busiest.keys() - waiting - owing}
    passed = {worker for worker in owing - direct.keys() if scene.busiest.get(worker) in free}
    if len(meetings) > 1 and _are_owed_data(scene, named):
        return None
    if common and not passed:
        return _not_entered(scene, replace(common[0], absent=tuple(sorted(named))))
    if direct and len(direct) + len(passed) <= _MOST_EITHER:
        return _either(scene, direct | {worker: _meeting_of(meetings, {worker}) for worker in passed})
    together = {scene.busiest.get(worker, "") for worker in named}
    if len(together) != 1 or "" in together:
        return None
    return _not_entered(scene, replace(_meeting_of(meetings, named), absent=tuple(sorted(named))))


def _in_another(scene: Scene, meetings: Sequence[_Meeting]) -> Hang | None:
    """Return workers that wait for each other in different collectives: the few may have gone another way."""
    most = meetings[0]
    found = _not_entered(scene, most) if len(most.absent) < len(most.inside) else None
    if found is None:
        return None
    inside = {worker: one for one in meetings[1:] for worker in one.inside}
    instead = [
        f"Worker {worker} waits in {inside[worker].operation}." for worker in most.absent[:6] if worker in inside
    ]
    return replace(found, confidence=_MANY_ASLEEP, evidence=(*found.evidence, *instead))


def _are_owed_data(scene: Scene, workers: Collection[int]) -> bool:
    """Return whether data waits on a connection of these workers, as in a message that does not end."""
    return any(
        max(one.flow.queued_bytes, one.flow.unread_bytes) >= _DATA_BYTES
        for one in scene.matched
        if one.flow.worker in workers or one.peer in workers
    )


def _either(scene: Scene, direct: Mapping[int, _Meeting]) -> Hang | None:
    """Return a few workers that different groups miss, of which one waits for another."""
    first, *others = direct
    found = _not_entered(scene, replace(direct[first], absent=(first,)))
    if found is None:
        return None
    instead = tuple(
        f"worker {other} on {scene.hosts.get(other, 'its host')}, if worker {first} waits for a message of it"
        for other in others
    )
    places = tuple(replace_fields(place, instead=instead) for place in found.places)
    missed = [f"Worker {other} has not entered {direct[other].operation} either." for other in others]
    return replace(found, places=places, confidence=_MANY_ASLEEP, evidence=(*found.evidence, *missed))


def _counts(scene: Scene) -> dict[str, dict[int, GroupCount]]:
    """Return the counters of each worker by name of the group, without groups that have no name yet."""
    found: dict[str, dict[int, GroupCount]] = {}
    for worker, one in scene.operations.items():
        for count in one.counts:
            if not count.group.startswith("#"):
                found.setdefault(count.group, {})[worker] = count
    return dict(sorted(found.items()))


def _meeting(scene: Scene, name: str, counts: Mapping[int, GroupCount]) -> _Meeting:
    """Return the newest collective of a group; a name may stand for several disjoint groups.

    A worker without counters is absent only if no worker with counters is behind.
    """
    group = scene.groups.get(name)
    members = (
        tuple(sorted(set(group.ranks))) if group is not None and set(counts) <= set(group.ranks) else tuple(counts)
    )
    newest = max(count.entered for count in counts.values())
    inside = tuple(
        worker for worker in members if worker in counts and counts[worker].entered == newest > counts[worker].completed
    )
    done = any(counts[worker].completed >= newest for worker in members if worker in counts)
    behind = tuple(worker for worker in members if worker in counts and counts[worker].entered < newest)
    mute = tuple(worker for worker in members if worker not in counts)
    absent = () if done else behind or mute
    label = (group.description or f"group {name}") if group is not None else f"group {name}"
    return _Meeting(name, label, newest, members, inside, absent)


def _stopped(scene: Scene, members: Iterable[int]) -> tuple[int, ...]:
    return tuple(
        worker
        for worker in members
        if worker in scene.operations and scene.operations[worker].state.startswith(_STOPPED)
    )


def is_suspended(operations: Iterable[WorkerOperations]) -> bool:
    """Return whether all processes are stopped, as by a scheduler that suspends the job: that is no fault of any."""
    return all(one.state.startswith(_STOPPED) for one in operations)


def _place(scene: Scene, workers: tuple[int, ...]) -> tuple[Place, ...]:
    """Return a place per worker, or a host if all of its workers are named and there are others."""
    found = []
    left = set(workers)
    on: dict[str, set[int]] = {scene.hosts[worker]: set() for worker in workers if worker in scene.hosts}
    for worker, host in scene.hosts.items():
        if host in on:
            on[host].add(worker)
    for host, here in sorted(on.items()):
        if len(here) > 1 and here <= left and len(here) < len(scene.hosts):
            left -= here
            found.append(Place(kind="host", workers=tuple(sorted(here)), hosts=(host,)))
    for worker in sorted(left):
        hosts = tuple(filter(None, (scene.hosts.get(worker, ""),)))
        found.append(Place(kind="worker", workers=(worker,), hosts=hosts))
    return tuple(found)


def _of_stopped(scene: Scene, meeting: _Meeting, stopped: tuple[int, ...]) -> Hang:
    """Return stopped processes, inside the operation if data waits for them."""
    unread = {
        worker: max((one.flow.unread_bytes for one in scene.matched if one.flow.worker == worker), default=0)
        for worker in stopped
    }
    owed = {
        worker: max((one.flow.queued_bytes for one in scene.matched if one.peer == worker), default=0)
        for worker in stopped
    }
    inside = all(max(unread[worker], owed[worker]) >= _DATA_BYTES for worker in stopped)
    evidence = [
        f"Worker {worker}'s process is stopped; {max(unread[worker], owed[worker])} bytes for it wait unread."
        for worker in stopped[:6]
    ]
    kind: CommunicationClass = "communication-hang" if inside else "non-communication-hang"
    return Hang(kind, _place(scene, stopped), meeting.operation, meeting.label, meeting.inside, 0.97, tuple(evidence))


def _not_entered(scene: Scene, meeting: _Meeting) -> Hang | None:
    """Return the workers that a collective waits for; None if they are unknown, or if it may take any time.

    It may if a missing worker is at work on something else, or if the job has not done such a collective before.
    """
    unknown = all(worker not in scene.operations for worker in meeting.absent)
    if unknown or set(meeting.absent) & scene.at_work or _is_first(scene, meeting):
        return None
    evidence = [f"{len(meeting.inside)} of {len(meeting.members)} members wait in {meeting.operation}."]
    for worker in meeting.absent[:6]:
        one = scene.operations.get(worker)
        count = next((count for count in one.counts if count.group == meeting.name), None) if one else None
        last = f" (its last: number {count.entered})" if count is not None else ""
        mute = f"; it has owed an answer for {one.unanswered_s:.1f} s" if one and one.unanswered_s > 1 else ""
        evidence.append(f"Worker {worker} has not entered it{last}{mute}.")
    few = len(meeting.absent) <= len(meeting.members) / 2
    return Hang(
        "non-communication-hang", _place(scene, meeting.absent), meeting.operation, meeting.label, meeting.inside,
        _ASLEEP if few else _MANY_ASLEEP, tuple(evidence), bool(set(meeting.absent) & scene.busy),
    )  # fmt: skip


def _is_first(scene: Scene, meeting: _Meeting) -> bool:
    """Return whether the job has not done such a collective before: its loop begins or ends."""
    told = [
        count.before
        for worker in meeting.inside
        for count in scene.operations[worker].counts
        if count.group == meeting.name and count.before >= 0
    ]
    return bool(told) and not any(told)


def _cut_off(scene: Scene, meeting: _Meeting, lost: tuple[int, ...]) -> Hang:
    """Return hosts that neither peers nor the collector can reach, or the ways there if some peers can."""
    hosts = sorted({scene.hosts[worker] for worker in lost})
    ways = [place for host in hosts for place in _ways_to(scene, host)]
    if ways:
        seen = (*_stuck_sentences(scene), "The other hosts' data for it has arrived.")
        return Hang("communication-hang", tuple(ways), meeting.operation, meeting.label, meeting.inside, 0.9, seen)
    evidence = [f"Nothing has been heard of {host} either, while its peers wait for its workers." for host in hosts]
    evidence += _stuck_sentences(scene)
    places = tuple(
        Place(kind="link", hosts=(host,), instead=(f"{host} itself: whether it still runs cannot be seen from here",))
        for host in hosts
    )
    return Hang("communication-hang", places, meeting.operation, meeting.label, meeting.inside, 0.9, tuple(evidence))


def _ways_to(scene: Scene, host: str) -> list[Place]:
    """Return the way to a silent host if only the collector's host cannot reach it."""
    talking = {i for i, j in scene.used if j == host and i not in scene.unheard}
    stuck = {i for i, j in _stuck(scene) if j == host} | {scene.home}
    if len(stuck) > 1 or len(talking) < 2:
        return []
    return [Place(kind="connection", hosts=(peer, host)) for peer in sorted(stuck)]


def _under_way(scene: Scene, meeting: _Meeting) -> Hang | None:
    """Return the connections on which data waits in a collective that all have entered."""
    stuck = _stuck(scene)
    places = read_places({cell: float(waiting) for cell, waiting in stuck.items()}, scene.used | frozenset(stuck))
    if not places:
        return None
    if len(places) > 1:
        places = _common(stuck) or places
    entered = f"All {len(meeting.members)} members have entered {meeting.operation}."
    seen = (entered, *_stuck_sentences(scene))
    return Hang("communication-hang", places, meeting.operation, meeting.label, meeting.inside, 0.9, seen)


def _stuck(scene: Scene) -> dict[Cell, int]:
    """Return the unacknowledged bytes from host to host."""
    stuck: dict[Cell, int] = {}
    for one in scene.matched:
        if one.host != one.peer_host and one.flow.queued_bytes:
            cell = (one.host, one.peer_host)
            stuck[cell] = stuck.get(cell, 0) + one.flow.queued_bytes
    return stuck


def _common(stuck: Mapping[Cell, int]) -> tuple[Place, ...]:
    """Return the one host, or the one pair, that all stuck connections share."""
    pairs = {frozenset(cell) for cell in stuck}
    if len(pairs) == 1:
        sender, receiver = max(stuck, key=lambda cell: stuck[cell])
        return (Place(kind="connection", hosts=(sender, receiver)),)
    common = frozenset.intersection(*pairs) if pairs else frozenset()
    if len(common) != 1:
        return ()
    host = next(iter(common))
    senders, receivers = {cell[0] for cell in stuck}, {cell[1] for cell in stuck}
    kind = "sending" if senders == {host} else "receiving" if receivers == {host} else "link"
    return (Place(kind=kind, hosts=(host,)),)  # type: ignore[arg-type]


def _stuck_sentences(scene: Scene) -> list[str]:
    stuck = sorted(_stuck(scene).items(), key=lambda item: -item[1])
    return [
        f"{waiting:,} bytes from {i} to {j} are not acknowledged, and none has moved." for (i, j), waiting in stuck[:6]
    ]
