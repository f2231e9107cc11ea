"""Join the two looks of all hosts worker by worker: where each worker sits, and whether it moved between them.

Where a thread sits is read from its Python stack, and from what the kernel says of it. This is built on what py-spy
shows of threads that wait (0.4.3, Python 3.11, torch 2.13, gloo). `with lock:` and `work.wait()` have no frame of their
own: the leaf is the user's. Queues, events, joins and futures end in frames of `threading.py`, a socket ends in
`socket.py` or in the user's frame. Collectives end in `distributed_c10d.py`, and all threads that wait for a lock or
for gloo sleep in a futex.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from eroica.diagnosis.frames import Frame, activity_of, is_own_frame, split_frame
from eroica.model.look import Blockage, Death, ThreadLook, WorkerLook
from eroica.model.verdict import FindingFunction
from eroica.model.window import FlightEntry
from eroica.model.words import clean
from eroica.model.worker import Worker

Seat = Literal["communication", "device", "exit", "code", "unknown", "left", "missing"]
Wait = Literal["queue-get", "queue-put", "lock", "futex", "thread", "children", "process", "storage", "sleep", ""]

_EXIT = frozenset({"_shutdown", "_exit_function", "_run_exitfuncs", "destroy_process_group", "_python_exit"})
_COMMUNICATION_FILES = ("torch/distributed/", "torch/nn/parallel/distributed.py", "deepspeed/comm/", "horovod/")
_NO_COMMUNICATION = ("torch/distributed/checkpoint/", "torch/distributed/elastic/", "torch/distributed/launcher/")
_WRAPPERS = frozenset({"wrapper", "inner", "_fn", "__call__", "_call_impl", "_wrapped_call_impl"})
#: Names of functions that read or write.
_READING = re.compile(r"(?:^|_)(?:read\w*|recv\w*|pread|open|fetch|download|load|getresponse|write|fsync|save)(?:$|_)")
_PROMPTS = frozenset({"bdb.py", "pdb.py", "cmd.py", "code.py"})  # a worker there waits for a user at a terminal
_QUEUES = ("queue.py", "multiprocessing/queues.py")
#: Waits by files and functions of libraries (without names: any function), the most telling first.
_LIBRARY_WAITS: tuple[tuple[Wait, tuple[str, ...], tuple[str, ...]], ...] = (
    ("children", ("torch/utils/data/",), ()),
    ("queue-put", _QUEUES, ("put",)),
    ("queue-get", _QUEUES, ()),
    ("thread", ("concurrent/futures/",), ()),
    ("process", ("subprocess.py",), ()),
    ("lock", ("threading.py", "logging/__init__.py", "multiprocessing/synchronize.py"), ("acquire", "__enter__")),
    ("thread", ("threading.py",), ("join", "_wait_for_tstate_lock", "wait", "wait_for")),
)
#: Waits by a part of the kernel function that a thread sleeps in.
_KERNEL_WAITS: dict[Wait, tuple[str, ...]] = {
    "storage": (
        "nfs", "fuse", "ceph", "lustre", "ll_", "io_schedule", "folio_wait", "wait_on_page", "rpc_wait", "blk_", "ext4",
        "xfs_", "jbd2", "cifs", "gpfs", "unix_stream_read", "tcp_recvmsg", "sk_wait_data", "wait_woken", "inet_stream",
        "wait_for_partner", "pipe_read",
    ),
    "sleep": ("nanosleep",),
    "futex": ("futex",),
    "process": ("do_wait",),
}  # fmt: skip
#: Share of a core from which a thread runs rather than waits; bytes read or written between the looks that are
#: progress.
_RUNS, _MOVED_BYTES = 0.25, 65_536


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """Where a thread sits.

    Attributes:
        seat: In a collective or its wait, in a wait for the device or in backward ("device"), at the process's end, in
            other code; "left" and "missing" are workers without a thread.
        wait: Kind of thing that the thread waits for, "" if it is not seen to wait.
        own: The user's innermost frame, else the innermost one; None without a stack.
        inside: The library function in which it stands below that frame, "" if none.
        stack: Frames, outermost first, bounded in number and length.
        has_own: `own` is the user's.
    """

    seat: Seat = "unknown"
    wait: Wait = ""
    own: Frame | None = None
    inside: str = ""
    stack: tuple[str, ...] = ()
    has_own: bool = False

    @property
    def file(self) -> str:
        """File of the user's innermost frame, "" without one."""
        return self.own.file if self.own is not None and self.has_own else ""

    @property
    def label(self) -> str:
        """For sentences: "next_batch (train.py:88)"."""
        return clean(self.own.label, 200) if self.own else "an unknown place"

    @property
    def function(self) -> FindingFunction:
        """The function to name in a finding."""
        name = clean(self.own.name, 120) if self.own else "unknown"
        return FindingFunction(name=name, kind="python" if self.own else "other", stack=self.stack)


def find_site(thread: ThreadLook | None, *, in_child: bool = False) -> Site:
    """Find where a thread sits.

    Args:
        thread: The look at it; None where nobody could look.
        in_child: It belongs to a data-loader child: frames above its loop are the parent's, copied by the fork.
    """
    if thread is None or not thread.stack:
        return Site()
    stack = tuple(entry[:300] for entry in thread.stack[-200:])
    frames = [split_frame(entry) for entry in stack]
    loops = [at for at, frame in enumerate(frames) if in_child and frame.last == "_worker_loop"]
    first = loops[-1] if loops else 0
    at = next((at for at in range(len(stack) - 1, first - 1, -1) if is_own_frame(stack[at])), -1)
    below, own = at + 1 if at >= 0 else first, frames[at]
    inside = next((frame.name for frame in frames[below:] if frame.last not in _WRAPPERS), "") if at >= 0 else ""
    return Site(
        seat=_seat(stack[below:], own),
        wait=_wait(stack[below:], own, thread),
        own=own,
        inside=clean(inside, 60),
        stack=stack,
        has_own=at >= 0,
    )


def _seat(region: Sequence[str], own: Frame) -> Seat:
    """Classify a seat by the library frames below the user's innermost frame."""
    frames = [split_frame(entry) for entry in region]
    if not _EXIT.isdisjoint(frame.last for frame in (own, *frames)):
        return "exit"
    modules = [at for at, frame in enumerate(frames) if frame.file.startswith("torch/nn/modules/")]
    below = frames[modules[-1] + 1 :] if modules else frames  # a layer inside DDP or FSDP computes
    if any(one.file.startswith(_COMMUNICATION_FILES) and not one.file.startswith(_NO_COMMUNICATION) for one in below):
        return "communication"
    is_backward = any(frame.last == "_engine_run_backward" for frame in frames)
    return "device" if is_backward or activity_of(region) == "sync" else "code"


def _wait(region: Sequence[str], own: Frame, thread: ThreadLook) -> Wait:
    """Tell a wait by the most telling library frame (a queue is more than its condition), else by the kernel.

    Storage and the network are also told by what a library is for, or by the name of the innermost function.
    """
    frames = [split_frame(entry) for entry in region]
    for wait, files, names in _LIBRARY_WAITS:
        if any(frame.file.startswith(files) and (not names or frame.last in names) for frame in frames):
            return wait
    if any(frame.file in _PROMPTS for frame in frames):
        return ""
    if thread.state == "D":
        return "storage"
    for wait, words in _KERNEL_WAITS.items():
        if any(word in thread.wait_channel for word in words):
            return wait
    reads = activity_of(region) in ("network", "file", "save", "service") or _READING.search((own, *frames)[-1].last)
    return "storage" if reads and thread.state != "R" else ""


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that somebody looked at.

    Attributes:
        now: The second look, the first where there is no second.
        before: The first look, None where only one exists.
        thread: Its training thread in the second look, None if its stack could not be read.
        then: The same in the first look.
        site: Where that thread sits.
    """

    now: WorkerLook
    before: WorkerLook | None
    thread: ThreadLook | None
    then: ThreadLook | None
    site: Site

    @property
    def worker(self) -> Worker:
        """Worker that is looked at."""
        return self.now.worker

    @property
    def interval_s(self) -> float:
        """Time between the looks, s."""
        return max(self.now.silent_s - self.before.silent_s, 0.0) if self.before is not None else 0.0

    @property
    def cpu(self) -> float | None:
        """Share of a core that the training thread, else the process, used between the looks; None if unknown."""
        if self.before is None or self.interval_s <= 0:
            return None
        for then, later in ((self.then, self.thread), (self.before.process, self.now.process)):
            if then is not None and later is not None and then.cpu_s is not None and later.cpu_s is not None:
                return max(later.cpu_s - then.cpu_s, 0.0) / self.interval_s
        return None

    @property
    def open(self) -> tuple[FlightEntry, ...]:
        """Open entries of its Flight Recorder, oldest first; empty if it could not be read."""
        return self.now.flight.open if self.now.flight is not None else ()

    @property
    def runs(self) -> bool:
        """True if the training thread runs rather than waits."""
        return self.cpu is not None and self.cpu >= _RUNS

    @property
    def is_stopped(self) -> bool:
        """True if the process is stopped, by a signal or by a debugger."""
        return self.now.process.state in ("T", "t")

    @property
    def seat(self) -> Seat:
        """Seat of its training thread, with backward and device waits told apart into communication and code.

        With a Flight Recorder they are communication only if an entry is open. Without one, backward that uses no core
        is a wait: DDP's collectives run below it. A stopped process is in none of them.
        """
        if self.is_stopped or self.site.seat != "device":
            return "unknown" if self.is_stopped else self.site.seat
        waits = bool(self.open) if self.now.flight is not None else not self.runs or self.worker.device != "cpu"
        return "communication" if waits else "code"


class Scene(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known, by global rank.

    Attributes:
        members: Workers that were looked at.
        deaths: Workers that are gone without signing off, first death first.
        left: Workers that ended in order while others live on.
        workers: All of these.
        missing: Global ranks of which nothing is known.
        expected: Workers of the job.
        from_dumps: All that is known are Flight Recorder dumps.
    """

    members: Mapping[int, Member]
    deaths: Mapping[int, Death]
    left: frozenset[int]
    workers: Mapping[int, Worker]
    missing: tuple[int, ...]
    expected: int
    from_dumps: bool = False

    @property
    def heard(self) -> int:
        """Number of workers of which something is known."""
        return self.expected - len(self.missing)

    def seat(self, rank: int) -> Seat:
        """Return where the worker's training thread sits, or why there is none to look at."""
        if rank in self.members:
            return self.members[rank].seat
        return "left" if rank in self.left else "missing"

    def host(self, rank: int) -> str:
        """Return the worker's host, "" if unknown."""
        return clean(self.workers[rank].host, 100) if rank in self.workers else ""

    def hosts(self, ranks: Iterable[int]) -> tuple[str, ...]:
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
    latest = first | second
    members = {
        rank: _member(latest[rank], first.get(rank) if rank in second else None)
        for rank in sorted(latest.keys() - deaths.keys())
    }
    workers = {one.global_rank: one for one in blockage.left}
    workers |= {rank: member.worker for rank, member in members.items()}
    workers |= {rank: death.worker for rank, death in deaths.items()}
    stated = max((look.worker.world_size for look in latest.values()), default=0)
    expected = max(blockage.world_size, min(stated, 1_000_000), len(workers))
    return Scene(
        members=members,
        deaths=deaths,
        left=frozenset(workers.keys() - members.keys() - deaths.keys()),
        workers=workers,
        missing=tuple(rank for rank in range(expected) if rank not in workers)[: expected - len(workers)],
        expected=expected,
        from_dumps=blockage.source == "dumps",
    )


def _member(now: WorkerLook, before: WorkerLook | None) -> Member:
    thread, then = _training_thread(now), _training_thread(before) if before is not None else None
    return Member(now=now, before=before, thread=thread, then=then, site=find_site(thread))


def _training_thread(look: WorkerLook) -> ThreadLook | None:
    """Find the thread in which the hooks fire; Python's main thread where its id is not known."""
    threads = look.process.threads
    found = next((one for one in threads if one.thread_id == look.training_thread_id and one.thread_id), None)
    return found or next((one for one in threads if one.name == "MainThread"), None)


def has_moved(member: Member) -> bool:
    """True if the worker made progress between the looks.

    Progress is a hooked event, an iteration, a collective entered or completed, data read or written by the training
    thread (a checkpoint), or other functions on its stack while it uses a core (an evaluation). Other lines of the same
    functions are none: a worker in an endless loop for which everybody waits is the origin.
    """
    before, now = member.before, member.now
    if before is None:
        return False
    earlier = {group.name: group for group in before.flight.progress} if before.flight is not None else {}
    pairs = [(group, earlier.get(group.name, group)) for group in now.flight.progress] if now.flight is not None else []
    if any(group.completed > was.completed or group.enqueued > was.enqueued for group, was in pairs):
        return True
    if now.events > before.events or now.iteration > before.iteration:
        return True
    then, later = member.then, member.thread
    if then is None or later is None or member.seat == "communication":
        return False
    if then.io_bytes is not None and later.io_bytes is not None and later.io_bytes - then.io_bytes >= _MOVED_BYTES:
        return True
    frames = ([split_frame(entry[:300]) for entry in one.stack] for one in (then, later))
    functions = [[(frame.name, frame.file) for frame in some] for some in frames]
    return member.runs and functions[0] != functions[1]
