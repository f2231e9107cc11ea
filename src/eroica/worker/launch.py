"""Starting this host's agent from a worker, where nobody else has."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

from eroica.wire.places import Places

_WITHOUT_CWD = (
    "import sys; sys.path.pop(0); import runpy; runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)
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


def program(module: str, *arguments: str) -> list[str]:
    """Command that runs a module of ours in this Python.

    Not from the working directory, which a plain `-m` would put first on the path: another user may have put modules
    there, and the user's own may bear the names of ours.
    """
    how = ["-P", "-m"] if sys.version_info >= (3, 11) else ["-c", _WITHOUT_CWD]
    return [sys.executable, *how, module, *arguments]


def start_agent(where: Places) -> None:
    """Start the agent as nobody's child: it is no process that the training's own `wait` could ever see.

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
    shell = ["/bin/sh", "-c", _DETACH, "sh", *program("eroica.agent")]
    with subprocess.Popen(
        shell, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as starter:  # fmt: skip
        starter.wait()
