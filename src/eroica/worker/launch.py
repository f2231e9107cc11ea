"""Start this host's agent from a worker, unless it was started already."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
from pathlib import Path

from eroica.start import isolated
from eroica.wire.places import Places
from eroica.worker.pristine import posix

_STANDARD_ERROR = 2
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)  # that `subprocess` gives back to children, too
_DETACH = '"$@" </dev/null >/dev/null 2>&1 &'


def agent_is_missing(runtime: Path) -> bool:
    """No agent holds the host's lock of the job with this runtime directory."""
    handle = os.open(runtime / "agent.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(handle)
    return True


def start_agent(where: Places) -> None:
    """Start the agent detached from this process, so that the training's own `wait` never sees it.

    Several workers may do this at once; all agents but one find the lock taken and end.

    Raises:
        OSError: No process can be started.
    """
    environment = {
        **os.environ,
        "EROICA_JOB": where.job,
        "EROICA_HOST": where.host,
        "EROICA_RUN_DIR": str(where.run),
        "EROICA_STARTED_BY": "worker",
        # who started all workers of this host may use what they may together; a shell is nobody to go by
        "EROICA_LAUNCHER": str(os.getppid()) if "LOCAL_RANK" in os.environ else "",
    }
    shell = ["/bin/sh", "-c", _DETACH, "sh", *isolated("eroica.agent")]
    streams = range(_STANDARD_ERROR + 1)
    nowhere = [(posix.POSIX_SPAWN_OPEN, stream, os.devnull, os.O_RDWR, 0) for stream in streams]
    # every file that the training has open, also those that its C libraries let children inherit
    held = [int(name) for name in posix.listdir("/proc/self/fd")]
    closed = [(posix.POSIX_SPAWN_CLOSE, handle) for handle in held if handle not in streams]
    starter = posix.posix_spawn(
        shell[0], shell, environment,
        file_actions=[*nowhere, *closed], setsid=True, setsigmask=(), setsigdef=_IGNORED_BY_PYTHON,
    )  # fmt: skip
    with contextlib.suppress(ChildProcessError):  # the training waits for any child, and had it
        posix.waitpid(starter, 0)
