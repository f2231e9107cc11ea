"""Find where a thread sits, from its Python stack and from what the kernel says of it.

This is built on what py-spy shows of threads that wait (0.4.3, Python 3.11, torch 2.13, gloo). `with lock:` and
`work.wait()` have no frame of their own: the leaf is the user's. Queues, events, joins and futures end in frames of
`threading.py`, a socket ends in `socket.py` or in the user's frame. Collectives end in `distributed_c10d.py`, and all
threads that wait for a lock or for gloo sleep in a futex.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

import msgspec

from eroica.diagnosis.frames import is_own_frame, split_frame
from eroica.model.look import ThreadLook
from eroica.model.words import clean

Kind = Literal["communication", "backward", "device", "exit", "code", "unknown"]
Wait = Literal[
    "queue-get", "queue-put", "lock", "futex", "event", "join", "future", "children", "process", "storage", "sleep", ""
]

_LOADER_LOOP = "_worker_loop"
_EXIT = frozenset({"_shutdown", "_exit_function", "_run_exitfuncs", "destroy_process_group", "_python_exit"})
_BACKWARD = frozenset({"_engine_run_backward"})
_DEVICE_FILES = ("torch/cuda/", "torch/accelerator/", "torch/xpu/", "torch/npu/")
_COMMUNICATION_FILES = ("torch/distributed/", "torch/nn/parallel/distributed.py", "deepspeed/comm/", "horovod/")
_NO_COMMUNICATION = ("torch/distributed/checkpoint/", "torch/distributed/elastic/", "torch/distributed/launcher/")
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


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One stack entry taken apart; `last` is the name without its class, `label` what a sentence calls it."""

    name: str
    last: str
    file: str
    label: str
    is_own: bool


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """Where a thread sits.

    Attributes:
        kind: In a collective or its wait, in backward, in a wait for the device, at the process's end, in other code.
        wait: Kind of thing that the thread waits for, "" if it is not seen to wait.
        own: The user's innermost frame, else the innermost one; None without a stack.
        inside: The library function in which it stands below that frame, "" if none.
        stack: Frames, outermost first, bounded in number and length.
        has_own: `own` is the user's.
    """

    kind: Kind = "unknown"
    wait: Wait = ""
    own: Step | None = None
    inside: str = ""
    stack: tuple[str, ...] = ()
    has_own: bool = False

    @property
    def label(self) -> str:
        """For sentences: "next_batch (train.py:88)"."""
        return self.own.label if self.own else "an unknown place"

    @property
    def name(self) -> str:
        """Function name of the user's frame; "unknown" without one."""
        return self.own.name if self.own else "unknown"


@lru_cache(maxsize=16_384)
def take_apart(entry: str) -> Step:
    """Take a stack entry apart."""
    frame = split_frame(entry)
    name = clean(frame.name, 120)
    label = f"{name} ({clean(frame.place, 80)})" if frame.place else name
    own = is_own_frame(entry) and not frame.file.startswith("<")
    return Step(name=name, last=frame.name.rsplit(".", 1)[-1], file=frame.file, label=label, is_own=own)


@lru_cache(maxsize=16_384)
def without_line(entry: str) -> str:
    """Drop the line number of an entry: a loop moves in it all the time."""
    frame = split_frame(entry)
    return f"{frame.name} ({frame.file})"


def bounded(stack: Sequence[str]) -> tuple[str, ...]:
    """Keep at most 200 innermost frames of at most 300 characters."""
    return tuple(entry[:300] for entry in stack[-200:])


def find_site(thread: ThreadLook | None, *, in_child: bool = False) -> Site:
    """Find where a thread sits.

    Args:
        thread: The look at it; None where nobody could look.
        in_child: It belongs to a data-loader child: frames above its loop are the parent's, copied by the fork.
    """
    if thread is None or not thread.stack:
        return Site()
    stack = bounded(thread.stack)
    steps = [take_apart(entry) for entry in stack]
    if in_child:
        loops = [at for at, step in enumerate(steps) if step.last == _LOADER_LOOP]
        steps = steps[loops[-1] :] if loops else steps
    at = next((at for at in range(len(steps) - 1, -1, -1) if steps[at].is_own), -1)
    region = steps[at + 1 :]
    own = steps[at] if at >= 0 else steps[-1]
    return Site(
        kind=_kind(region, own),
        wait=_wait(region, own, thread),
        own=own,
        inside=_inside(region) if at >= 0 else "",
        stack=stack,
        has_own=at >= 0,
    )


def _kind(region: Sequence[Step], own: Step) -> Kind:
    """Classify a seat by the library frames below the user's innermost frame."""
    if own.last in _EXIT or any(step.last in _EXIT for step in region):
        return "exit"
    modules = [at for at, step in enumerate(region) if step.file.startswith("torch/nn/modules/")]
    below = region[modules[-1] + 1 :] if modules else region  # a layer inside DDP or FSDP computes
    if any(_communicates(step.file) for step in below):
        return "communication"
    if any(step.last in _BACKWARD for step in region):
        return "backward"
    if region and region[-1].file.startswith(_DEVICE_FILES) and region[-1].last in ("synchronize", "wait"):
        return "device"
    return "code"


def _communicates(file: str) -> bool:
    return file.startswith(_COMMUNICATION_FILES) and not file.startswith(_NO_COMMUNICATION)


def _inside(region: Sequence[Step]) -> str:
    """Find the library function that the user's frame called last, without the wrappers around and below it."""
    for step in region:
        if step.last not in ("wrapper", "inner", "_fn", "__call__", "_call_impl", "_wrapped_call_impl"):
            return step.name
    return ""


def _wait(region: Sequence[Step], own: Step, thread: ThreadLook) -> Wait:
    return _library_wait(region) or _storage(region, own, thread) or _kernel_wait(thread)


def _library_wait(region: Sequence[Step]) -> Wait:
    """Choose the most telling library frame of a wait: a queue is more than the condition it waits on."""
    for wait, files, names in _LIBRARY_WAITS:
        if any(step.file.startswith(files) and (not names or step.last in names) for step in region):
            return wait
    return ""


def _storage(region: Sequence[Step], own: Step, thread: ThreadLook) -> Wait:
    """Recognize storage or network: by library, by the kernel's channel, by uninterruptible sleep, or by name."""
    channel = thread.wait_channel
    if "accept" in channel or any(step.file in _PROMPTS for step in region):
        return ""  # a server without clients, a debugger without commands
    if thread.state == "D" or any(word in channel for word in _STORAGE_CHANNELS):
        return "storage"
    if channel.startswith(("futex", *_SLEEPS)) or thread.state == "R":
        return ""
    if any(step.file.startswith(_STORAGE_FILES) for step in region):
        return "storage"
    return "storage" if not region and _READING.search(own.last) else ""


def _kernel_wait(thread: ThreadLook) -> Wait:
    channel = thread.wait_channel
    if channel.startswith(_SLEEPS):
        return "sleep"
    if channel.startswith("do_wait"):
        return "process"
    return "futex" if channel.startswith("futex") else "storage" if "pipe_read" in channel else ""
