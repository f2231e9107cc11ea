"""Where a job's files lie. Standard library only: the worker imports this.

    run directory      <cwd>/eroica-report/<job> or EROICA_RUN_DIR: verdicts, patterns, logs; stays
    runtime directory  eroica-<uid>/<job>@<host> under EROICA_RUNTIME_DIR, else /dev/shm, else the temporary
                       directory: beat files; goes with the job
    scratch directory  eroica-<uid>/<job>@<host> under EROICA_SCRATCH_DIR, else the temporary directory: raw traces;
                       emptied window by window, goes with the job

All are 0700 and belong to the user; several jobs and hosts (`EROICA_HOST`) never share one. What Eroica deletes is
always a directory of this form, never one that a variable names. Other users of the host may have been here before us:
what is a link, or theirs, is refused, not used.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

_LONGEST_HOST = 255
_MOST_LINKS = 40  # as the kernel
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_REPORTS = "eroica-report"
PROBE_FILE = "probe.json"
"""Trace of the iteration before a window, beside the window's, where only it tells whom sends go to."""
SAVING_PREFIX = ".saving-"
"""Begins the name of the directory, in a job's scratch directory, in which a worker saves; its process id follows."""
CLOSING_FILE = "closing"
"""In the runtime directory: the job is told to end, so windows that are open shall close; goes when they are saved."""


class Places(NamedTuple):
    """The directories of one job on one host."""

    job: str
    host: str
    run: Path
    runtime: Path
    scratch: Path

    def log(self, process: str) -> Path:
        """Log file of one of our processes on this host."""
        return self.run / "log" / f"{process}-{file_name(self.host)}.log"


def host_name(environ: Mapping[str, str]) -> str:
    """`EROICA_HOST`, default the host name; text that every message can carry."""
    name = environ.get("EROICA_HOST") or socket.gethostname()
    return name.encode("utf-8", "replace").decode()[:_LONGEST_HOST]


def job_name(environ: Mapping[str, str]) -> str:
    """The job's name, the same in all its processes on all hosts.

    `EROICA_JOB`; else what torchrun, Slurm or the rendezvous address say; else the process's own process group. On one
    host, a launcher's process id tells jobs apart that the same address would make one.
    """
    explicit = environ.get("EROICA_JOB")
    if explicit:
        return file_name(explicit)
    sources = ("SLURM_JOB_ID", "SLURM_STEP_ID", "TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT")
    parts = [environ.get(name, "") for name in sources]
    known = "-".join(part for part in parts if part and part != "none")
    if "TORCHELASTIC_RUN_ID" in environ and "SLURM_JOB_ID" not in environ and environ.get("GROUP_WORLD_SIZE") == "1":
        known = f"{known}-{os.getppid()}"  # workers are children of their torchrun
    return file_name(known or f"group-{os.getpgrp()}")


def file_name(text: str) -> str:
    """`text` as part of a file's name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip(".-")[:80] or "job"


def runtime_root(environ: Mapping[str, str]) -> Path:
    """Where the runtime directories of all jobs of this user lie."""
    shared = Path("/dev/shm")
    usable = shared.is_dir() and os.access(shared, os.W_OK) and not _anybody_may_rename_in(shared)
    memory = shared if usable else _temporary(environ)
    return Path(environ.get("EROICA_RUNTIME_DIR") or memory) / f"eroica-{os.getuid()}"


def _temporary(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("TMPDIR") or "/tmp")


def _working_directory(environ: Mapping[str, str]) -> Path:
    try:
        return Path.cwd()
    except OSError:  # removed under us, or not ours to see: the command may do without, so do we
        return _temporary(environ) / f"eroica-{os.getuid()}"


def places(environ: Mapping[str, str]) -> Places:
    """Work out the directories from the environment; creates nothing."""
    job, host = job_name(environ), host_name(environ)
    leaf = f"{job}@{file_name(host)}"
    scratch = Path(environ.get("EROICA_SCRATCH_DIR") or _temporary(environ))
    return Places(
        job=job,
        host=host,
        run=Path(environ.get("EROICA_RUN_DIR") or _working_directory(environ) / _REPORTS / job),
        runtime=runtime_root(environ) / leaf,
        scratch=scratch / f"eroica-{os.getuid()}" / leaf,
    )


def _anybody_may_rename_in(directory: Path) -> bool:
    """Everybody may write into it, and no sticky bit keeps them from what is not theirs.

    A volume that root or we have mounted counts as safe: Kubernetes makes every `emptyDir` like that, /tmp and /dev/shm
    of many pods among them. Somebody else who has it mounted could move our directory away, and so switch us off. They
    could not read what is ours (0700), and what they put in its place is theirs and refused, file by file.
    """
    facts = directory.stat()
    if not facts.st_mode & stat.S_IWOTH or facts.st_mode & stat.S_ISVTX:
        return False
    return not (facts.st_uid in (0, os.getuid()) and directory.is_mount())


def private_directory(path: Path) -> Path:
    """Create `path` and what is missing above it as 0700; refuse what others could have put or could put there.

    A directory of the user's own, as a run directory may be, keeps its mode; our own are narrowed to 0700.

    Raises:
        OSError: It cannot be created, is a link, is not ours, or everybody may write into it (or rename it).
    """
    for place in (*reversed([above for above in path.parents if not above.exists()]), path):
        place.mkdir(mode=0o700, exist_ok=True)
    of_ours = path.parent.name == f"eroica-{os.getuid()}"
    if of_ours and _anybody_may_rename_in(path.parent.parent):
        raise PermissionError(
            f"everybody may rename what lies in {path.parent.parent}: give it the sticky bit (chmod +t), or set "
            "EROICA_RUNTIME_DIR and EROICA_SCRATCH_DIR to another directory"
        )
    for place in (path.parent, path) if of_ours or path.parent.name == _REPORTS else (path,):
        _claim(place, narrow=of_ours)
    return path


def without_others_links(path: Path, links: int = 0) -> Path:
    """`path` made absolute, each link on the way followed; but only those that are the user's own or root's.

    The kernel refuses others' links in directories like /tmp, but only to who lets it follow them.

    Args:
        path: The path.
        links: How many led here.

    Raises:
        OSError: Another user has put a link there, or links lead in a circle.
    """
    place, parts = Path("/"), path.absolute().parts[1:]
    for at, name in enumerate(parts):
        try:
            facts = (place / name).lstat()
        except OSError:  # not there yet, or not ours to see: whoever uses it will find out
            return place.joinpath(*parts[at:])
        if name == "..":
            place = place.parent
        elif not stat.S_ISLNK(facts.st_mode):
            place /= name
        elif facts.st_uid not in (0, os.getuid()):
            raise PermissionError(f"{place / name} is a link of user {facts.st_uid}; name a directory of your own")
        elif links >= _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        else:
            place = without_others_links(place / (place / name).readlink(), links + 1)
    return place


def _claim(place: Path, narrow: bool) -> None:
    """Make sure that a directory is ours alone.

    Raises:
        PermissionError: It is a link, belongs to somebody else, or everybody may write into it.
    """
    if not belongs_to_us(place):
        raise PermissionError(f"{place} is a link or belongs to another user; remove it, or choose another directory")
    mode = place.lstat().st_mode
    if narrow and mode & _OTHERS:
        handle = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.fchmod(handle, 0o700)
        finally:
            os.close(handle)
    elif mode & stat.S_IWOTH:
        raise PermissionError(f"everybody may write into {place}; choose a directory of your own, or chmod o-w it")


def belongs_to_us(directory: Path) -> bool:
    """It is there, no link, and ours."""
    try:
        facts = directory.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid()


def private_file(path: Path, flags: int = os.O_WRONLY | os.O_CREAT | os.O_TRUNC) -> int:
    """A descriptor of a file that only its owner may read (0600); for `open`'s `opener`, too.

    Raises:
        OSError: It cannot be opened, is a link, or is no regular file of ours.
    """
    handle = os.open(path, flags & ~os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    try:
        facts = os.fstat(handle)
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.getuid():
            raise PermissionError(f"{path} is no regular file of ours")
        if flags & os.O_ACCMODE != os.O_RDONLY and facts.st_nlink > 1:
            raise PermissionError(f"{path} has a second name; remove it")
        if flags & os.O_ACCMODE != os.O_RDONLY and facts.st_mode & _OTHERS:
            os.fchmod(handle, 0o600)
        if flags & os.O_TRUNC:
            os.ftruncate(handle, 0)
    except OSError:
        os.close(handle)
        raise
    return handle


def write_private(path: Path, data: bytes, flags: int = os.O_WRONLY | os.O_CREAT | os.O_TRUNC) -> None:
    """Write a file that only its owner may read.

    Raises:
        OSError: It cannot be written, is a link, or is no regular file of ours.
    """
    with os.fdopen(private_file(path, flags), "wb") as file:
        file.write(data)


def read_private(path: Path, most_bytes: int = 65_536) -> bytes:
    """A small file of ours; what another user may have put there is not read.

    Raises:
        OSError: It is not there, is a link, is no regular file of ours, or is larger than that.
    """
    with os.fdopen(private_file(path, os.O_RDONLY), "rb") as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise OSError(f"{path} has more than {most_bytes} bytes; not read")
    return data


# --- files that appear whole ---


def write_whole(path: Path, data: bytes, *, on_disk: bool = False) -> None:
    """Write a file that appears at once, readable by its owner only.

    Args:
        path: The file.
        data: What it holds.
        on_disk: Return only when it would be there after a loss of power.

    Raises:
        OSError: The disk is full or the directory cannot be written; what was there before stays.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.unlink(missing_ok=True)  # of an earlier process with this id
        write_private(draft, data, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        if on_disk:
            with draft.open("rb") as file:
                os.fsync(file.fileno())
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
