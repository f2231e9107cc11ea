"""Join the two looks of all hosts worker by worker, and tell which workers moved between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

from eroica.diagnosis.blocked.places import Site, find_site, without_line
from eroica.diagnosis.words import name_workers
from eroica.model.look import Blockage, Death, ThreadLook, WorkerLook
from eroica.model.worker import Worker

_STOPPED = ("T", "t")

Seat = Literal["communication", "exit", "code", "unknown"]


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that somebody looked at.

    Attributes:
        now: The second look, the first where there is no second.
        before: The first look, None where only one exists.
        thread: Its training thread in the second look, None if its stack could not be read.
        site: Where that thread sits.
        cpu: Share of a core that this thread used between the looks, None if unknown.
        interval_s: Time between the looks.
    """

    now: WorkerLook
    before: WorkerLook | None
    thread: ThreadLook | None
    site: Site
    cpu: float | None
    interval_s: float

    @property
    def worker(self) -> Worker:
        """Worker that is looked at."""
        return self.now.worker

    @property
    def rank(self) -> int:
        """Global rank."""
        return self.now.worker.global_rank

    @property
    def runs(self) -> bool:
        """True if the training thread uses a quarter of a core or more: it runs rather than waits."""
        return self.cpu is not None and self.cpu >= 0.25

    @property
    def is_stopped(self) -> bool:
        """True if the process is stopped, by a signal or by a debugger."""
        return self.now.process.state in _STOPPED

    @property
    def seat(self) -> Seat:
        """Kind of seat; with a Flight Recorder, backward and device waits are communication only if an entry is open.

        Without a Flight Recorder backward that uses no core is a wait: DDP's collectives run below it.
        """
        kind = self.site.kind
        if kind in ("backward", "device"):
            if self.now.flight is not None:
                return "communication" if self.now.flight.open else "code"
            return "communication" if not self.runs or self.worker.device != "cpu" else "code"
        return kind  # type: ignore[return-value]


class Scene(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known, by global rank.

    Attributes:
        members: Workers that were looked at.
        deaths: Workers that are gone without signing off, first death first.
        left: Workers that ended in order while others live on.
        missing: Global ranks of which nothing is known.
        expected: Workers of the job.
        notes: Notes of the agents on what failed.
        from_dumps: All that is known are Flight Recorder dumps.
    """

    members: Mapping[int, Member]
    deaths: Mapping[int, Death]
    left: Mapping[int, Worker]
    missing: tuple[int, ...]
    expected: int
    notes: tuple[str, ...]
    from_dumps: bool = False

    @property
    def heard(self) -> int:
        """Number of workers of which something is known."""
        return self.expected - len(self.missing)

    def host(self, rank: int) -> str:
        """Return the worker's host, "" if unknown."""
        seen = self.members.get(rank) or self.deaths.get(rank)
        worker = seen.worker if seen is not None else self.left.get(rank)
        return worker.host if worker is not None else ""

    def hosts(self, ranks: tuple[int, ...]) -> tuple[str, ...]:
        """List the hosts of some workers, sorted."""
        return tuple(sorted({self.host(rank) for rank in ranks} - {""}))


def build_scene(blockage: Blockage) -> Scene:
    """Join the looks; of two hosts that speak of the same worker the one sorted last counts."""
    looks = sorted(blockage.looks, key=lambda one: one.host)
    first = {look.worker.global_rank: look for host in looks for look in host.first}
    second = {look.worker.global_rank: look for host in looks for look in host.second}
    deaths: dict[int, Death] = {}
    for death in blockage.deaths:
        deaths.setdefault(death.worker.global_rank, death)
    members = {
        rank: _member(second.get(rank, first.get(rank)), first.get(rank) if rank in second else None)
        for rank in sorted(first.keys() | second.keys())
        if rank not in deaths
    }
    left = {one.global_rank: one for one in blockage.left if one.global_rank not in members.keys() | deaths.keys()}
    known = members.keys() | deaths.keys() | left.keys()
    stated = max((look.worker.world_size for look in (*first.values(), *second.values())), default=0)
    expected = max(blockage.world_size, min(stated, 1_000_000), len(known))
    return Scene(
        members=members,
        deaths=deaths,
        left=left,
        missing=tuple(rank for rank in range(expected) if rank not in known)[: expected - len(known)],
        expected=expected,
        notes=tuple(_notes(blockage, members)),
        from_dumps=blockage.source == "dumps",
    )


def _notes(blockage: Blockage, members: Mapping[int, Member]) -> Iterator[str]:
    for host in sorted(blockage.looks, key=lambda one: one.host):
        yield from (f"{host.host}: {note}" for note in host.notes)
    if blockage.source == "dumps":
        alike: dict[str, list[int]] = {}
        for rank, member in members.items():
            for note in member.now.notes:
                alike.setdefault(note, []).append(rank)
        yield from (f"{name_workers(ranks)}: {note}" for note, ranks in alike.items())
        return
    for rank, member in members.items():
        yield from (f"worker {rank}: {note}" for note in member.now.notes)


def _member(now: WorkerLook | None, before: WorkerLook | None) -> Member:
    assert now is not None
    thread = training_thread(now)
    interval_s = max(now.silent_s - before.silent_s, 0.0) if before is not None else 0.0
    return Member(
        now=now,
        before=before,
        thread=thread,
        site=find_site(thread),
        cpu=_cpu(before, now, interval_s),
        interval_s=interval_s,
    )


def training_thread(look: WorkerLook) -> ThreadLook | None:
    """Find the thread in which the hooks fire; Python's main thread where its id is not known."""
    threads = look.process.threads
    found = next((one for one in threads if one.thread_id == look.training_thread_id and one.thread_id), None)
    return found or next((one for one in threads if one.name == "MainThread"), None)


def _cpu(before: WorkerLook | None, now: WorkerLook, interval_s: float) -> float | None:
    if before is None or interval_s <= 0:
        return None
    threads = training_thread(before), training_thread(now)
    used = [one.cpu_s if one is not None else None for one in threads]
    if used[0] is None or used[1] is None:
        used = [before.process.cpu_s, now.process.cpu_s]
    if used[0] is None or used[1] is None:
        return None
    return max(used[1] - used[0], 0.0) / interval_s


def has_moved(member: Member) -> bool:
    """True if the worker made progress between the looks.

    Progress is a hooked event, an iteration, a collective entered or completed, data read or written by the training
    thread (a checkpoint), or other functions on its stack while it uses a core (an evaluation). Other lines of the same
    functions are none: a worker in an endless loop for which everybody waits is the origin.
    """
    before, now = member.before, member.now
    if before is None:
        return False
    if now.events > before.events or now.iteration > before.iteration:
        return True
    return _entered_or_completed(before, now) or _moves_data(member, before) or _runs_elsewhere(member, before)


def _entered_or_completed(before: WorkerLook, now: WorkerLook) -> bool:
    if before.flight is None or now.flight is None:
        return False
    earlier = {group.name: group for group in before.flight.progress}
    return any(
        group.name in earlier
        and (group.completed > earlier[group.name].completed or group.enqueued > earlier[group.name].enqueued)
        for group in now.flight.progress
    )


def _moves_data(member: Member, before: WorkerLook) -> bool:
    earlier, later = training_thread(before), member.thread
    if earlier is None or later is None or earlier.io_bytes is None or later.io_bytes is None:
        return False
    return member.seat != "communication" and later.io_bytes - earlier.io_bytes >= 65_536


def _runs_elsewhere(member: Member, before: WorkerLook) -> bool:
    earlier = training_thread(before)
    if not member.runs or earlier is None or member.thread is None or member.seat == "communication":
        return False
    return list(map(without_line, earlier.stack)) != list(map(without_line, member.thread.stack))
