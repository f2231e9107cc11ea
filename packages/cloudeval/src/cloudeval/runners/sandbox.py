"""One fresh sandbox per test: a process in namespaces of its own, which the kernel ends with everything in it.

The test runs in a child that is process 1 of a new PID namespace, with its own network (no way out), mounts, host name
and control groups. Scratch files lie on a small tmpfs that only this mount namespace has. When process 1 ends, by
itself, by the time limit, or because the run was killed, the kernel kills every process inside and drops the mounts.
"""

import contextlib
import gc
import os
import pickle
import select
import shutil
import signal
import socket
import subprocess
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloudeval.errors import CloudEvalError, RunnerError
from cloudeval.runners import cgroups, linux

#: Where a sandbox has its scratch files. The folder on the host stays empty: the tmpfs is mounted inside only.
SCRATCH = Path("/run/cloudeval")
#: Size of the scratch tmpfs, which holds container files, volumes and logs of one test.
SCRATCH_BYTES = 96 * 2**20


@dataclass(frozen=True)
class Ended:
    """The end of a sandbox: a value, or an error of the machine."""

    value: Any = None
    error: str | None = None


_TOOLS = {"runc": "runc", "ip": "iproute2", "busybox": "busybox-static"}


def can_run() -> str | None:
    """Return why sandboxes cannot run on this machine, or None."""
    if os.geteuid() != 0:
        return "sandboxes need root"
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    return f"{', '.join(missing)} missing; install {' '.join(_TOOLS[tool] for tool in missing)}" if missing else None


def run(work: Callable[[str], Any], name: str, timeout_s: float) -> Ended:
    """Run a function in a fresh sandbox, destroy the sandbox whole, and return how it ended.

    Args:
        work: The function to run inside; its return value comes back pickled.
        name: A name that starts with the pid of the process whose end ends the sandbox.
        timeout_s: Seconds after which the sandbox is ended.
    """
    cgroups.create(name)
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        _outer(work, name, writer)
    os.close(writer)
    deadline, chunks = time.monotonic() + timeout_s, [b""]
    try:
        while (left := deadline - time.monotonic()) > 0:
            if select.select([reader], [], [], left)[0]:
                chunks.append(os.read(reader, 1 << 16))
                if not chunks[-1]:
                    break
        timed_out = time.monotonic() >= deadline
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.close(reader)
        os.waitpid(pid, 0)
        cgroups.remove(name)
    if timed_out:
        return Ended(error=f"the test did not end within {timeout_s:.0f} s")
    try:
        ended: Ended = pickle.loads(b"".join(chunks))  # noqa: S301  our own child wrote it
    except (EOFError, pickle.UnpicklingError):
        return Ended(error="the sandbox ended without a result")
    return ended


def _outer(work: Callable[[str], Any], name: str, writer: int) -> None:
    """Make the namespaces, start process 1 in them, and wait for it: the life of the child."""
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        linux.die_with_parent()
        linux.unshare(linux.EVERY_NAMESPACE)
        pid = os.fork()
        if pid == 0:
            _inner(work, name, writer)
        os.close(writer)
        os.waitpid(pid, 0)
        status = 0
    except BaseException as error:  # noqa: BLE001  nothing may return into the caller's code
        with contextlib.suppress(OSError):
            os.write(writer, pickle.dumps(Ended(error=f"no sandbox could be made: {error}")))
    finally:
        os._exit(status)


def _inner(work: Callable[[str], Any], name: str, writer: int) -> None:
    try:
        linux.die_with_parent()
        linux.adopt_orphans()
        gc.freeze()
        _furnish()
        ended = Ended(value=work(name))
    except CloudEvalError as error:
        ended = Ended(error=str(error))
    except MemoryError:
        ended = Ended(error="the test's own process ran out of memory")
    except BaseException as error:  # noqa: BLE001  reported to the parent as a failure of the runner
        place = traceback.format_exc().strip().splitlines()[-2].strip()
        ended = Ended(error=f"{type(error).__name__}: {error} ({place})")
    with contextlib.suppress(OSError), os.fdopen(writer, "wb") as pipe:
        pipe.write(pickle.dumps(ended))
    os._exit(0)


def _furnish() -> None:
    linux.mount("none", "/", flags=linux.MS_REC | linux.MS_PRIVATE)
    SCRATCH.mkdir(parents=True, exist_ok=True)
    linux.mount("tmpfs", SCRATCH, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, f"size={SCRATCH_BYTES},mode=755")
    linux.mount("proc", "/proc", "proc", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)
    socket.sethostname("node-1")
    linux.loopback_up()


def command(arguments: list[str], *, text: str | None = None, timeout_s: float = 10) -> str:
    """Run a tool of the machine and return what it printed; a failure is the runner's."""
    try:
        done = subprocess.run(arguments, input=text, capture_output=True, text=True, timeout=timeout_s, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RunnerError(f"{arguments[0]}: {error}") from error
    if done.returncode != 0:
        raise RunnerError(f"{' '.join(arguments[:4])}: {done.stderr.strip()[-300:]}")
    return done.stdout
