"""`python -m eroica.agent`: this host's agent, started by `eroica run` or by the first worker."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import shutil
import signal
import subprocess
import sys

from eroica.agent.loop import Agent
from eroica.settings import load_settings
from eroica.wire.logs import log_to
from eroica.wire.places import Places, places, private_directory, write_private
from eroica.worker.launch import program


def _lock(where: Places) -> int | None:
    """The host's lock for this job; None if another agent holds it."""
    handle = os.open(where.runtime / "agent.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    return handle


def _start_collector(where: Places) -> None:
    """Without `eroica run` somebody must collect: a child of ours, unless the job names another collector."""
    if os.environ.get("EROICA_COLLECTOR") or os.environ.get("EROICA_LAUNCHED"):
        return
    subprocess.Popen(
        program("eroica.collector"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def main() -> None:
    """Serve this host until the job ends."""
    os.umask(0o077)  # what we and our children write is the user's alone
    where = places(os.environ)
    for directory in (where.run, where.run / "log"):
        private_directory(directory)
    log_to(where.log("agent"))
    try:
        private_directory(where.runtime)
    except OSError as error:
        logging.error("this host is not watched: %s", error)
        raise
    try:
        private_directory(where.scratch)
    except OSError as error:  # each window will find out again
        logging.warning("no window can be captured on this host: %s", error)
    if _lock(where) is None:
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored by who started us, our children's ends would be lost
    os.environ.update(EROICA_JOB=where.job, EROICA_RUN_DIR=str(where.run))
    write_private(where.runtime / "run", os.fsencode(where.run) + b"\n")
    _start_collector(where)
    settings = load_settings()
    try:
        run_decides = bool(os.environ.get("EROICA_LAUNCHED"))
        our_parent = run_decides and os.environ.get("EROICA_STARTED_BY") != "worker"
        agent = Agent(where, settings, child_of_run=our_parent, ends_job=not run_decides)
        asyncio.run(agent.run())
    except Exception:  # last words of a process without a terminal; the beat files stay for the next agent
        logging.exception("the agent failed")
        raise
    if agent.leaves_workers:
        sys.exit(128 + signal.SIGTERM)
    shutil.rmtree(where.runtime, ignore_errors=True)
    if not settings.keep_traces:
        shutil.rmtree(where.scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
