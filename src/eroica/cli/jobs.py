"""Finding running jobs of this user on this host, and talking to their collectors."""

from __future__ import annotations

import os
import time
from pathlib import Path

import httpx
import msgspec

from eroica.errors import UnavailableError, UsageError
from eroica.wire.address import Address, read_address
from eroica.wire.messages import JobStatus
from eroica.wire.places import belongs_to_us, read_private, runtime_root

_MOST_BYTES = 64_000_000


def running_jobs() -> dict[str, Path]:
    """Jobs watched on this host: name -> run directory. What another user has put in our place is not looked at."""
    jobs: dict[str, Path] = {}
    root = runtime_root(os.environ)
    if not belongs_to_us(root):
        return jobs
    for pointer in sorted(root.glob("*/run")):
        try:
            run = Path(os.fsdecode(read_private(pointer)).rstrip("\n"))
        except OSError:
            continue
        if read_address(run) is not None:
            jobs[pointer.parent.name.partition("@")[0]] = run
    return jobs


def choose_run(job: str | None, directory: Path | None) -> Path:
    """The run directory meant by `--job` or `--out`, or the only one there is, here or below this directory.

    Raises:
        UsageError: There is none, or several and none was named.
    """
    if directory is not None:
        return directory
    jobs = running_jobs()
    if job is not None:
        if job not in jobs:
            raise UsageError(f"no job {job!r} is being watched here; there are: {', '.join(jobs) or 'none'}")
        return jobs[job]
    if not jobs:
        raise UsageError("no job is being watched on this host; start one with `eroica run -- COMMAND`")
    here = {name: run for name, run in jobs.items() if run.is_relative_to(Path.cwd())}
    meant = jobs if len(jobs) == 1 else here
    if len(meant) == 1:
        return next(iter(meant.values()))
    listed = "; ".join(f"{name} in {run}" for name, run in jobs.items())
    raise UsageError(f"several jobs are being watched: {listed}; choose one with --job")


def call(run: Path, method: str, path: str, body: bytes = b"", timeout_s: float = 10.0) -> bytes:
    """Ask the collector of a run directory.

    Raises:
        UnavailableError: It is not there or refuses.
    """
    address = read_address(run)
    if address is None:
        raise UnavailableError(f"no collector is running for {run}; its job has ended or has not begun")
    return ask(address, str(run), method, path, body, timeout_s)


def ask(address: Address, name: str, method: str, path: str, body: bytes = b"", timeout_s: float = 10.0) -> bytes:
    """Ask a collector.

    Args:
        address: Where it listens.
        name: What it is called in an error.
        method: Of HTTP.
        path: What is asked for.
        body: What is sent along.
        timeout_s: How long an answer may take.

    Raises:
        UnavailableError: It is not there or refuses.
    """
    try:
        with httpx.stream(
            method,
            address.url + path,
            content=body,
            headers={"Authorization": f"Bearer {address.token}", "Accept-Encoding": "identity"},
            timeout=timeout_s,
            trust_env=False,
        ) as answer:
            content = _bounded(answer, time.monotonic() + timeout_s)
            answer.raise_for_status()
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise UnavailableError(f"the collector of {name} does not answer: {error}") from error
    return content


def _bounded(answer: httpx.Response, end: float) -> bytes:
    """The answer's body, as it came: it may be somebody else who answers by now.

    Raises:
        httpx.HTTPError: It is longer than any of a collector, or drips.
    """
    content = b""
    for piece in answer.iter_raw():
        content += piece
        if len(content) > _MOST_BYTES:
            raise httpx.RemoteProtocolError(f"it says more than {_MOST_BYTES} bytes")
        if time.monotonic() > end:
            raise httpx.ReadTimeout("it does not come to an end")
    return content


def job_status(run: Path, timeout_s: float = 10.0) -> JobStatus:
    """The job right now, as the collector answers within `timeout_s`.

    Raises:
        UnavailableError: The collector is not there.
    """
    try:
        return msgspec.json.decode(call(run, "GET", "/v1/status", timeout_s=timeout_s), type=JobStatus)
    except (ValueError, RecursionError) as error:
        raise UnavailableError(f"the collector of {run} answers with something else than a status: {error}") from error
