"""Run a command within limits: namespaces without a network, a control group or resource limits, a deadline.

The module runs twice: in the parent, which watches time, output and disk, and once more inside the namespaces, where
it raises the loopback device, makes the repository read-only, and becomes the shell.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import resource
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from verici.errors import BuildRefused

_NAMESPACES = ("--user", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
_GROUPS = Path("/sys/fs/cgroup")
#: Bytes of output that are kept: the end, where the error stands.
_KEPT_OUTPUT = 64 << 10
_DISK_CHECK_S = 2.0


class Limits(msgspec.Struct, frozen=True):
    """Bounds of one command."""

    seconds: float = 600.0
    memory_bytes: int = 4 << 30
    processes: int = 512
    disk_bytes: int = 4 << 30
    output_bytes: int = 16 << 20


class Outcome(msgspec.Struct, frozen=True):
    """How a command ended: its status, the limit that it hit if any, and the end of its output."""

    status: int
    limit: str
    output: str


@functools.cache
def is_possible() -> bool:
    """Return True if this user may make namespaces here."""
    command = ["unshare", *_NAMESPACES, "--net", "true"]
    if not shutil.which("unshare"):
        return False
    return subprocess.run(command, capture_output=True, check=False, timeout=20).returncode == 0


def run(
    command: str, folder: Path, env: dict[str, str], limits: Limits, *, sandbox: bool, network: bool, read_only: Path
) -> Outcome:
    """Run a shell command in a folder and return how it ended; nothing of it is left running.

    In a sandbox it has no network unless asked, and cannot write the folder `read_only`. The disk limit counts the
    folder's parent.

    Raises:
        BuildRefused: Namespaces are wanted and cannot be made.
    """
    if sandbox and not is_possible():
        raise BuildRefused(
            "this machine allows no namespaces (unshare), so builds would run without limits and with the network; "
            "use --no-sandbox if you trust the commits"
        )
    with _control_groups(limits) as groups:
        namespaces = ["unshare", *_NAMESPACES, *([] if network else ["--net"]), "--"] if sandbox else []
        task = msgspec.json.encode((str(read_only) if sandbox else "", command, bool(groups), limits)).decode()
        join = "".join(f'echo $$ > "{group}/cgroup.procs"; ' for group in groups)
        process = subprocess.Popen(
            ["sh", "-c", f'{join}exec "$@"', "sh", *namespaces, sys.executable, "-c", _ENTRY, task],
            cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        try:
            limit, output = _watch(process, folder, limits)
        finally:
            _end(process, groups)
    killed = not limit and process.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL)
    return Outcome(process.returncode, "memory limit" if killed else limit, output.decode("utf-8", "replace"))


#: How the inner Python finds this package whatever the build's own variables say.
_ENTRY = (
    f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r}); from verici.sandbox import inside; inside()"
)


def _watch(process: subprocess.Popen[bytes], folder: Path, limits: Limits) -> tuple[str, bytes]:
    """Follow a process to its end or to a limit; return the limit's name and the end of the output."""
    deadline = time.monotonic() + limits.seconds
    output, written, next_disk = b"", 0, time.monotonic() + _DISK_CHECK_S
    assert process.stdout
    with selectors.DefaultSelector() as ready:
        ready.register(process.stdout, selectors.EVENT_READ)
        while time.monotonic() < deadline:
            if time.monotonic() > next_disk:
                next_disk = time.monotonic() + _DISK_CHECK_S
                if _size(folder.parent, limits.disk_bytes) > limits.disk_bytes:
                    return f"disk limit of {limits.disk_bytes >> 20} MiB", output
            part = os.read(process.stdout.fileno(), 1 << 16) if ready.select(timeout=0.2) else None
            if part:
                written += len(part)
                output = (output + part)[-_KEPT_OUTPUT:]
                if written > limits.output_bytes:
                    return f"output limit of {limits.output_bytes >> 20} MiB", output
            elif process.poll() is not None:  # a background process of the command may still hold the pipe
                return "", output
            elif part == b"":
                time.sleep(0.05)  # the pipe is closed, the command goes on
    return f"time limit of {limits.seconds:g} s", output


def _end(process: subprocess.Popen[bytes], groups: Sequence[Path]) -> None:
    """Kill what is left: the session, and in a control group also what left the session."""
    if process.poll() is None or groups:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdout:
        process.stdout.close()
    for group in groups:
        with contextlib.suppress(OSError):
            for pid in (group / "cgroup.procs").read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)


def _size(folder: Path, most: int) -> int:
    total, waiting = 0, [folder]
    while waiting and total <= most:
        with contextlib.suppress(OSError):
            for entry in os.scandir(waiting.pop()):
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(Path(entry.path))
                else:
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
    return total


@contextlib.contextmanager
def _control_groups(limits: Limits) -> Iterator[list[Path]]:
    """Make control groups for memory and processes, of version 2 or 1; none where that is not allowed."""
    name = f"verici-{os.getpid()}-{time.monotonic_ns()}"
    memory, processes = str(limits.memory_bytes), str(limits.processes)
    if (_GROUPS / "cgroup.controllers").exists():
        wanted = {_GROUPS / name: {"memory.max": memory, "pids.max": processes}}
    else:
        wanted = {
            _GROUPS / "memory" / name: {"memory.limit_in_bytes": memory},
            _GROUPS / "pids" / name: {"pids.max": processes},
        }  # fmt: skip
    made: list[Path] = []
    try:
        with contextlib.suppress(OSError):
            for group, values in wanted.items():
                group.mkdir()
                made.append(group)
                for file, value in values.items():
                    (group / file).write_text(value)
        yield made if len(made) == len(wanted) else []
    finally:
        for group in made:
            for _ in range(50):  # killed processes leave the group a little later
                with contextlib.suppress(OSError):
                    group.rmdir()
                    break
                time.sleep(0.02)


def inside() -> None:
    """Set limits within the namespaces, and become the shell."""
    read_only, command, grouped, limits = msgspec.json.decode(sys.argv[1], type=tuple[str, str, bool, Limits])
    if read_only:
        with contextlib.suppress(OSError):
            _raise_loopback()
        for options in (["--bind", read_only, read_only], ["-o", "remount,bind,ro", read_only]):
            subprocess.run(["mount", *options], check=False, capture_output=True)
    bounds = {resource.RLIMIT_CORE: 0, resource.RLIMIT_FSIZE: limits.disk_bytes}
    if not grouped:
        bounds |= {resource.RLIMIT_AS: limits.memory_bytes, resource.RLIMIT_NPROC: limits.processes}
    for name, value in bounds.items():
        resource.setrlimit(name, (value, value))
    os.execvp("sh", ["sh", "-c", command])


def _raise_loopback() -> None:
    """Set the flag "up" of the device `lo`: builds and tests may speak to themselves."""
    get_flags, set_flags, is_up = 0x8913, 0x8914, 1
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        request = struct.pack("16sH14s", b"lo", 0, b"\0" * 14)
        flags = struct.unpack("16sH14s", fcntl.ioctl(handle, get_flags, request))[1]
        fcntl.ioctl(handle, set_flags, struct.pack("16sH14s", b"lo", flags | is_up, b"\0" * 14))
