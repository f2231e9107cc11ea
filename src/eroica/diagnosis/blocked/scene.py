"""Join the two looks of all hosts worker by worker: where each worker sits, and whether it moved between them.

Where a thread sits is read from its Python stack, and from what the kernel says of it. This is built on what py-spy
shows of threads that wait (0.4.3, Python 3.11, torch 2.13, gloo). `with lock:` and `work.wait()` have no frame of their
own: the leaf is the user's. Queues, events, joins and futures end in frames of `threading.py`, a socket ends in
`socket.py` or in the user's frame. Collectives end in `distributed_c10d.py`, and all threads that wait for a lock or
for gloo sleep in a futex.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from eroica.diagnosis.frames import Frame, is_own_frame, split_frame
from eroica.diagnosis.words import name_workers
from eroica.model.look import Blockage, Death, ThreadLook, WorkerLook
from eroica.model.verdict import FindingFunction
from eroica.model.window import FlightEntry
from eroica.model.words import clean
from eroica.model.worker import Worker

Seat = Literal["communication", "backward", "device", "exit", "code", "unknown"]
Wait = Literal[
    "queue-get", "queue-put", "lock", "futex", "event", "join", "future", "children", "process", "storage", "sleep", ""
]

_EXIT = frozenset({"_shutdown", "_exit_function", "_run_exitfuncs", "destroy_process_group", "_python_exit"})
_DEVICE_FILES = ("torch/cuda/", "torch/accelerator/", "torch/xpu/", "torch/npu/")
_COMMUNICATION_FILES = ("torch/distributed/", "torch/nn/parallel/distributed.py", "deepspeed/comm/", "horovod/")
_NO_COMMUNICATION = ("torch/distributed/checkpoint/", "torch/distributed/elastic/", "torch/distributed/launcher/")
_WRAPPERS = frozenset({"wrapper", "inner", "_fn", "__call__", "_call_impl", "_wrapped_call_impl"})
_STORAGE_FILES = (
    "socket.py", "ssl.py", "http/", "urllib/", "urllib3/", "requests/", "boto3/", "botocore/", "s3fs/", "fsspec/",
    "gzip.py", "zipfile", "tarfile.py", "shutil.py", "pathlib.py", "aiohttp/", "httpx/", "h5py/", "pyarrow/",
    "torch/distributed/checkpoint/", "torch/serialization.py",
)  # fmt: skip
_READING = re.compile(r"(?:^|_)(?:read\w*|recv\w*|pread|open|fetch|download|load|getresponse|write|fsync|save)(?:$|_)")
_STORAGE_CHANNELS = (
    "nfs", "fuse", "ceph", "lustre", "ll_", "io_schedule", "folio_wait", "wait_on_page", "rpc_wait", "blk_", "ext4",
    "xfs_", "jbd2", "cifs", "gpfs", "unix_stream_read", "tcp_recvmsg", "sk_wait_data", "wait_woken", "inet_",
    "wait_for_partner",
)  # fmt: skip
_PROMPTS = frozenset({"bdb.py", "pdb.py", "cmd.py", "code.py"})  # somebody at a terminal is waited for
_SLEEPS = ("hrtimer_nanosleep", "do_nanosleep")
_QUEUES = ("queue.py", "multiprocessing/queues.py")
#: Waits by files and functions of libraries (without names: any function), the most telling first.
_LIBRARY_WAITS: tuple[tuple[Wait, tuple[str, ...], tuple[str, ...]], ...] = (
    ("children", ("torch/utils/data/",), ()),
    ("queue-put", _QUEUES, ("put",)),
    ("queue-get", _QUEUES, ()),
    ("future", ("concurrent/futures/",), ()),
    ("process", ("subprocess.py",), ()),
    ("join", ("threading.py",), ("join", "_wait_for_tstate_lock", "_shutdown")),
    ("lock", ("threading.py", "logging/__init__.py", "multiprocessing/synchronize.py"), ("acquire", "__enter__")),
    ("event", ("threading.py",), ("wait", "wait_for")),
)
#: Share of a core from which a thread runs rather than waits; bytes read or written between the looks that are
#: progress.
_RUNS, _MOVED_BYTES = 0.25, 65_536


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """Where a thread sits.

    Attributes:
        seat: In a collective or its wait, in backward, in a wait for the device, at the process's end, in other code.
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
    region = frames[at + 1 :] if at >= 0 else frames[first:]
    own = frames[at]
    inside = next((frame.name for frame in region if frame.last not in _WRAPPERS), "") if at >= 0 else ""
    return Site(
        seat=_seat(region, own),
        wait=_library_wait(region) or _kernel_wait(region, own, thread),
        own=own,
        inside=clean(inside, 60),
        stack=stack,
        has_own=at >= 0,
    )


def _seat(region: Sequence[Frame], own: Frame) -> Seat:
    """Classify a seat by the library frames below the user's innermost frame."""
    if not _EXIT.isdisjoint(frame.last for frame in (own, *region)):
        return "exit"
    modules = [at for at, frame in enumerate(region) if frame.file.startswith("torch/nn/modules/")]
    below = region[modules[-1] + 1 :] if modules else region  # a layer inside DDP or FSDP computes
    if any(one.file.startswith(_COMMUNICATION_FILES) and not one.file.startswith(_NO_COMMUNICATION) for one in below):
        return "communication"
    if any(frame.last == "_engine_run_backward" for frame in region):
        return "backward"
    if region and region[-1].file.startswith(_DEVICE_FILES) and region[-1].last in ("synchronize", "wait"):
        return "device"
    return "code"


def _library_wait(region: Sequence[Frame]) -> Wait:
    """Choose the most telling library frame of a wait: a queue is more than the condition it waits on."""
    for wait, files, names in _LIBRARY_WAITS:
        if any(frame.file.startswith(files) and (not names or frame.last in names) for frame in region):
            return wait
    return ""


def _kernel_wait(region: Sequence[Frame], own: Frame, thread: ThreadLook) -> Wait:
    """Tell a wait by the kernel's channel; storage and network also by library, uninterruptible sleep, or name."""
    channel = thread.wait_channel
    if "accept" in channel or any(frame.file in _PROMPTS for frame in region):
        return ""  # a server without clients, a debugger without commands
    if thread.state == "D" or any(word in channel for word in _STORAGE_CHANNELS):
        return "storage"
    if channel.startswith(_SLEEPS):
        return "sleep"
    if channel.startswith("futex"):
        return "futex"
    reads = any(frame.file.startswith(_STORAGE_FILES) for frame in region) or (not region and _READING.search(own.last))
    if reads and thread.state != "R":
        return "storage"
    return "process" if channel.startswith("do_wait") else "storage" if "pipe_read" in channel else ""


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
        is a wait: DDP's collectives run below it.
        """
        if self.site.seat not in ("backward", "device"):
            return self.site.seat
        waits = bool(self.open) if self.now.flight is not None else not self.runs or self.worker.device != "cpu"
        return "communication" if waits else "code"


class Scene(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known, by global rank.

    Attributes:
        members: Workers that were looked at.
        deaths: Workers that are gone without signing off, first death first.
        left: Workers that ended in order while others live on.
        missing: Global ranks of which nothing is known.
        expected: Workers of the job.
        from_dumps: All that is known are Flight Recorder dumps.
    """

    members: Mapping[int, Member]
    deaths: Mapping[int, Death]
    left: Mapping[int, Worker]
    missing: tuple[int, ...]
    expected: int
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
    members = {
        rank: _member(second[rank], first.get(rank)) if rank in second else _member(first[rank], None)
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
        from_dumps=blockage.source == "dumps",
    )


def list_notes(blockage: Blockage, members: Mapping[int, Member]) -> Iterator[str]:
    """Yield the notes of the agents on what failed, equal ones of several workers together."""
    for host in sorted(blockage.looks, key=lambda one: one.host):
        yield from (f"{host.host}: {note}" for note in host.notes)
    alike: dict[str, list[int]] = {}
    for rank, member in members.items():
        for note in member.now.notes:
            alike.setdefault(note, []).append(rank)
    yield from (f"{name_workers(ranks)}: {note}" for note, ranks in alike.items())


def _member(now: WorkerLook, before: WorkerLook | None) -> Member:
    thread = training_thread(now)
    interval_s = max(now.silent_s - before.silent_s, 0.0) if before is not None else 0.0
    used_s = _used_s(before, now) if before is not None and interval_s > 0 else None
    return Member(
        now=now,
        before=before,
        thread=thread,
        site=find_site(thread),
        cpu=None if used_s is None else used_s / interval_s,
        interval_s=interval_s,
    )


def training_thread(look: WorkerLook) -> ThreadLook | None:
    """Find the thread in which the hooks fire; Python's main thread where its id is not known."""
    threads = look.process.threads
    found = next((one for one in threads if one.thread_id == look.training_thread_id and one.thread_id), None)
    return found or next((one for one in threads if one.name == "MainThread"), None)


def _used_s(before: WorkerLook, now: WorkerLook) -> float | None:
    """Return the CPU time between the looks of the training thread, else of the whole process; None if unknown."""
    threads = training_thread(before), training_thread(now)
    for then, later in ((one.cpu_s if one else None for one in threads), (before.process.cpu_s, now.process.cpu_s)):
        if then is not None and later is not None:
            return max(later - then, 0.0)
    return None


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
    for group in now.flight.progress if now.flight is not None else ():
        was = earlier.get(group.name, group)
        if group.completed > was.completed or group.enqueued > was.enqueued:
            return True
    if now.events > before.events or now.iteration > before.iteration:
        return True
    then, later = training_thread(before), member.thread
    if then is None or later is None or member.seat == "communication":
        return False
    if then.io_bytes is not None and later.io_bytes is not None and later.io_bytes - then.io_bytes >= _MOVED_BYTES:
        return True
    return member.runs and _functions(then) != _functions(later)


def _functions(thread: ThreadLook) -> list[tuple[str, str]]:
    return [(frame.name, frame.file) for frame in (split_frame(entry[:300]) for entry in thread.stack)]
