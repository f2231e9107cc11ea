"""Where a job's files lie. Standard library only: the worker imports this.

    run directory      <cwd>/eroica-report/<job> or EROICA_RUN_DIR: verdicts, patterns, logs; stays
    runtime directory  eroica-<uid>/<job>@<host> under EROICA_RUNTIME_DIR, else /dev/shm, else the temporary
                       directory: beat files; goes with the job
    scratch directory  eroica-<uid>/<job>@<host> under EROICA_SCRATCH_DIR, else the temporary directory: raw traces;
                       emptied window by window, goes with the job

All are 0700 and belong to the user; several jobs and hosts (`EROICA_HOST`) never share one. What Eroica deletes is
always a directory of this form, never one that a variable names.
"""

from __future__ import annotations

import os
import re
import socket
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple


class Places(NamedTuple):
    """The directories of one job on one host."""

    job: str
    host: str
    run: Path
    runtime: Path
    scratch: Path


def host_name(environ: Mapping[str, str]) -> str:
    """`EROICA_HOST`, default the host name."""
    return environ.get("EROICA_HOST") or socket.gethostname()


def job_name(environ: Mapping[str, str]) -> str:
    """The job's name, the same in all its processes on all hosts.

    `EROICA_JOB`; else what torchrun, Slurm or the rendezvous address say; else the process's own process group. On one
    host, a launcher's process id tells jobs apart that the same address would make one.
    """
    explicit = environ.get("EROICA_JOB")
    if explicit:
        return _file_name(explicit)
    parts = [environ.get(name, "") for name in ("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT")]
    known = "-".join(part for part in parts if part and part != "none")
    if "TORCHELASTIC_RUN_ID" in environ and "SLURM_JOB_ID" not in environ and environ.get("GROUP_WORLD_SIZE") == "1":
        known = f"{known}-{os.getppid()}"  # workers are children of their torchrun
    return _file_name(known or f"group-{os.getpgrp()}")


def _file_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip(".-")[:80] or "job"


def runtime_root(environ: Mapping[str, str]) -> Path:
    """Where the runtime directories of all jobs of this user lie."""
    shared = Path("/dev/shm")
    memory = shared if shared.is_dir() and os.access(shared, os.W_OK) else _temporary(environ)
    return Path(environ.get("EROICA_RUNTIME_DIR") or memory) / f"eroica-{os.getuid()}"


def _temporary(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("TMPDIR") or tempfile.gettempdir())


def places(environ: Mapping[str, str]) -> Places:
    """Work out the directories from the environment; creates nothing."""
    job, host = job_name(environ), host_name(environ)
    leaf = f"{job}@{_file_name(host)}"
    scratch = Path(environ.get("EROICA_SCRATCH_DIR") or _temporary(environ))
    return Places(
        job=job,
        host=host,
        run=Path(environ.get("EROICA_RUN_DIR") or Path.cwd() / "eroica-report" / job),
        runtime=runtime_root(environ) / leaf,
        scratch=scratch / f"eroica-{os.getuid()}" / leaf,
    )


def private_directory(path: Path) -> Path:
    """Create `path` (and a parent of ours) as 0700; refuse one that is a link or belongs to somebody else.

    Raises:
        OSError: It cannot be created, is a link, or is not ours.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)
    for place in (path, path.parent) if path.parent.name == f"eroica-{os.getuid()}" else (path,):
        facts = place.lstat()
        if place.is_symlink() or facts.st_uid != os.getuid():
            raise PermissionError(f"{place} is a link or belongs to another user; remove it or set EROICA_RUNTIME_DIR")
    return path
