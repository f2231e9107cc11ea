"""`python -m eroica.agent`: this host's agent, started by `eroica run` or by the first worker."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import shutil
import signal
import subprocess
import sys
import time

from eroica.agent.loop import Agent
from eroica.settings import load_settings
from eroica.start import COLLECTOR_NICENESS, isolated
from eroica.wire.logs import log_to
from eroica.wire.places import Places, places, private_directory, write_private

#: A worker that looks whether there is an agent holds the lock for microseconds.
_LOOKED_FOR_S = 0.3
_AGAIN_S = 0.02


def _lock(where: Places) -> int | None:
    """The host's lock for this job; None if another agent holds it, and not only a worker that looks for one."""
    handle = os.open(where.runtime / "agent.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    end = time.monotonic() + _LOOKED_FOR_S
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return handle
        except BlockingIOError:
            if time.monotonic() > end:
                os.close(handle)
                return None
        time.sleep(_AGAIN_S)


def _use_cores_of_the_job() -> None:
    """Leave the cores of the worker that started us, which may be bound to few, for those of its launcher."""
    launcher = os.environ.get("EROICA_LAUNCHER", "")
    with contextlib.suppress(OSError):
        if launcher.isdecimal():
            os.sched_setaffinity(0, os.sched_getaffinity(0) | os.sched_getaffinity(int(launcher)))


def _start_collector(where: Places) -> None:
    """Without `eroica run` somebody must collect: a child of ours, unless the job names another collector."""
    if os.environ.get("EROICA_COLLECTOR") or os.environ.get("EROICA_LAUNCHED"):
        return
    subprocess.Popen(
        isolated("eroica.collector", niceness=COLLECTOR_NICENESS),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def main() -> None:
    """Serve this host until the job ends."""
    os.umask(0o077)  # what we and our children write is the user's alone
    started_by_worker = os.environ.get("EROICA_STARTED_BY") == "worker"
    if started_by_worker:
        _use_cores_of_the_job()
    where = places(os.environ)
    for directory in (where.run, where.run / "log"):
        private_directory(directory)
    log_to(where.log("agent"))
    try:
        private_directory(where.runtime)
    except OSError as error:
        logging.error("this host is not watched: %s", error)
        raise
    if _lock(where) is None:
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored by who started us, our children's ends would be lost
    os.environ.update(EROICA_JOB=where.job, EROICA_RUN_DIR=str(where.run))
    write_private(where.runtime / "run", os.fsencode(where.run) + b"\n")
    try:
        settings = load_settings()
        run_decides = bool(os.environ.get("EROICA_LAUNCHED"))
        our_parent = run_decides and not started_by_worker
        agent = Agent(where, settings, child_of_run=our_parent, ends_job=not run_decides)
        try:
            agent.scratch.prepare()
        except OSError as error:  # each window will find out again
            logging.warning("no window can be captured on this host: %s", error)
        _start_collector(where)
        asyncio.run(agent.run())
    except Exception:  # last words of a process without a terminal; the beat files stay for the next agent
        logging.exception("the agent failed")
        raise
    if agent.leaves_workers:
        sys.exit(128 + signal.SIGTERM)
    shutil.rmtree(where.runtime, ignore_errors=True)
    agent.scratch.remove()


if __name__ == "__main__":
    main()
