"""Run a command on a host for `eroica steer`, and end it there with all that it has started.

The text of this file is sent to the host: standard library only, Python 3.8 or newer. EROICA_STEER holds, as JSON, the
words of the command, its variables, and how long it may take to end. It is ended when standard input ends: because
`eroica steer` closed it or is gone, or because the connection is lost. No signal needs to come through.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

#: Status instead of 0, which is what the shell that starts us ends with where nothing comes in by standard input.
DONE = 79
#: Status where processes of the command are left that SIGKILL does not end.
LEFT = 80
_ADOPT = 36  # PR_SET_CHILD_SUBREAPER of prctl(2), Linux: orphans below us become our children
_POLL_S, _KILL_S = 0.1, 3.0


def main() -> int:
    """Run the command of EROICA_STEER until it ends, or is to end.

    Returns:
        Its status, 128 and more for a signal; `DONE` for 0, and 1 for what has another meaning here. `LEFT` where it
        was to end, and processes of it have not.
    """
    told = json.loads(os.environ.pop("EROICA_STEER"))
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_ADOPT, 1, 0, 0, 0)
    asked: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda got, _: asked.append(got))
    try:
        command = subprocess.Popen(
            told["words"], stdin=subprocess.DEVNULL, env={**os.environ, **told["variables"]}, start_new_session=True
        )
    except OSError as error:
        sys.stderr.write(f"{told['words'][0]}: {error.strerror}\n")
        return 127 if isinstance(error, FileNotFoundError) else 126
    while not (asked or _input_ended()):
        status = _reap(command)
        if status is not None:
            return {0: DONE, DONE: 1, LEFT: 1}.get(status, status)
    return _end(command, told["stop_s"])


def _input_ended() -> bool:
    """Wait a moment for the end of standard input."""
    readable, _, _ = select.select([0], [], [], _POLL_S)
    return bool(readable) and not os.read(0, 4096)


def _reap(command: subprocess.Popen[bytes]) -> int | None:
    """Status of the command if it has ended; adopted children that have ended are cleared away."""
    with contextlib.suppress(ChildProcessError):
        pid, status = os.waitpid(-1, os.WNOHANG)
        while pid:
            if pid == command.pid:
                command.returncode = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
            pid, status = os.waitpid(-1, os.WNOHANG)
    return command.returncode


def _end(command: subprocess.Popen[bytes], stop_s: float) -> int:
    """SIGTERM for the command's process group; SIGKILL for all below us once it has ended or `stop_s` are over.

    Returns:
        128 and SIGTERM; `LEFT` if some live on, as one that waits in the kernel for a disk or a device.
    """
    with contextlib.suppress(OSError):
        os.killpg(command.pid, signal.SIGTERM)
    end = time.monotonic() + stop_s
    while _reap(command) is None and time.monotonic() < end:
        time.sleep(_POLL_S / 2)
    end = time.monotonic() + _KILL_S
    while (left := _below()) and time.monotonic() < end:
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL_S / 5)
    _reap(command)
    if left:
        sys.stderr.write(f"processes {', '.join(map(str, left))} do not end, not even by SIGKILL\n")
        return LEFT
    return 128 + signal.SIGTERM


def _below() -> list[int]:
    """All living processes below this one, by their parents."""
    parents = {}
    for entry in Path("/proc").iterdir() if Path("/proc/self/stat").exists() else ():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                state, parent = (entry / "stat").read_bytes().rpartition(b")")[2].split()[:2]
                if state != b"Z":
                    parents[int(entry.name)] = int(parent)
    found, level = [], {os.getpid()}
    while level:
        level = {pid for pid, parent in parents.items() if parent in level}
        found += sorted(level)
    return found


if __name__ == "__main__":
    sys.exit(main())
