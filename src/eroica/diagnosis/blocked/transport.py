"""Rule 5: everybody is in the collective and it does not end: the transport is stuck."""

from __future__ import annotations

from collections.abc import Sequence

from eroica.diagnosis.blocked.meetings import Meeting
from eroica.diagnosis.blocked.origin import Origin
from eroica.diagnosis.blocked.scene import Scene
from eroica.diagnosis.blocked.waiting import Waiting
from eroica.diagnosis.wording import name_workers
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
