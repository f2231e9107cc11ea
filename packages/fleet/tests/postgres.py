"""A PostgreSQL server of the test's own: Debian's package, a temporary directory, a Unix socket, no network."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

_PROGRAMS = sorted(Path("/usr/lib/postgresql").glob("*/bin")) if Path("/usr/lib/postgresql").is_dir() else []
#: It refuses to run as root.
_USER = "postgres"
UP_S = 30.0


def why_no_postgres() -> str:
    """Why there can be none here; empty if there can."""
    if not _PROGRAMS:
        return "no PostgreSQL server (Debian: postgresql)"
    if find_spec("psycopg") is None:
        return "psycopg is not here: pip install 'eroica[fleet,postgres]'"
    if os.geteuid() == 0 and subprocess.run(["id", _USER], capture_output=True, check=False).returncode:
        return f"PostgreSQL refuses root, and there is no user {_USER}"
    return ""


class Postgres:
    """One server.

    Attributes:
        root: Its directory.
    """

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="eroica-postgres-"))
        self._as = {"user": _USER, "group": _USER} if os.geteuid() == 0 else {}
        if self._as:
            shutil.chown(self.root, _USER, _USER)
        command = [_PROGRAMS[-1] / "initdb", "-D", self.root / "data", "-A", "trust", "-U", _USER, "--no-sync"]
        subprocess.run(command, check=True, capture_output=True, cwd="/", **self._as)
        self._databases = 0
        self.start()

    def start(self) -> None:
        options = {
            "listen_addresses": "", "unix_socket_directories": str(self.root), "fsync": "off",
            "max_connections": "60", "shared_buffers": "64MB",
        }  # fmt: skip
        given = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        self._log = (self.root / "log").open("ab")
        command = [_PROGRAMS[-1] / "postgres", "-D", self.root / "data", *given]
        self.process = subprocess.Popen(command, stdout=self._log, stderr=self._log, cwd="/", **self._as)
        self._wait()

    def _wait(self) -> None:
        end = time.monotonic() + UP_S
        ask = [_PROGRAMS[-1] / "pg_isready", "-h", self.root, "-q"]
        while subprocess.run(ask, check=False, cwd="/").returncode:
            assert self.process.poll() is None, (self.root / "log").read_text()
            assert time.monotonic() < end, "PostgreSQL does not come up"
            time.sleep(0.1)

    def new_database(self) -> str:
        """The URL of an empty database."""
        self._databases += 1
        name = f"fleet{self._databases}"
        command = [_PROGRAMS[-1] / "createdb", "-h", self.root, "-U", _USER, name]
        subprocess.run(command, check=True, capture_output=True, cwd="/")
        return f"postgresql://{_USER}@/{name}?host={self.root}"

    def kill(self) -> None:
        """As a machine that loses power would: no last words."""
        self.process.send_signal(signal.SIGQUIT)
        self._end()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGINT)
        self._end()
        shutil.rmtree(self.root, ignore_errors=True)

    def _end(self) -> None:
        self.process.wait(UP_S)
        self._log.close()
