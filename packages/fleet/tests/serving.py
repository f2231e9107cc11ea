"""A real service in a process of its own, its commands, and a reporter."""

from __future__ import annotations

import os
import re
import signal
import ssl
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import msgspec

EROICA = (sys.executable, "-c", "from eroica.cli import main; main()")
UP_S = 30.0


class Serving:
    """`eroica serve` on a port that the system picks; started again, it listens there again.

    Attributes:
        url: Where.
        operator: The operator's token.
    """

    def __init__(
        self, data: Path, *options: str, environ: Mapping[str, str] | None = None, ca: Path | None = None
    ) -> None:
        self._data = data
        self._trust = ssl.create_default_context(cafile=ca)
        self._options = options
        self._environ = {**os.environ, **(environ or {})}
        self._listen = "127.0.0.1:0"
        self._tokens: dict[tuple[str, ...], str] = {}
        self.start()
        self.operator = (data / "operator.token").read_text().strip()

    def start(self) -> None:
        self.log = (self._data.parent / f"{self._data.name}.log").open("ab")
        command = [*EROICA, "serve", "--listen", self._listen, "--data", str(self._data), *self._options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, env=self._environ)
        assert self.process.stdout is not None
        said = self.process.stdout.readline().decode()
        found = re.search(r"https?://\S+", said)
        assert found, f"it says {said!r}: {(self._data.parent / f'{self._data.name}.log').read_text()}"
        self.url = found.group()
        self._listen = self.url.partition("//")[2]

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.close()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.close()

    def close(self) -> int:
        status = self.process.wait(UP_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.log.close()
        return status

    def token(self, *scopes: str, project: str = "main") -> str:
        """A token of a project with these scopes; the project is made if there is none."""
        known = self._tokens.get((project, *scopes))
        if known is None:
            if project != "main":
                self.ask("POST", "/v1/projects", self.operator, {"name": project}, check=False)
            wish = {"name": "-".join(scopes), "scopes": list(scopes), "project": project}
            known = self.ask("POST", "/v1/tokens", self.operator, wish)["token"]
            self._tokens[(project, *scopes)] = known
        return known

    def ask(
        self, method: str, path: str, token: str = "", body: Any = None, *, check: bool = True, **query: Any
    ) -> Any:
        with httpx.Client(base_url=self.url, trust_env=False, timeout=30, verify=self._trust) as client:
            content = None if body is None else msgspec.json.encode(body)
            headers = {"Authorization": f"Bearer {token or self.token('read')}"}
            answer = client.request(method, path, headers=headers, content=content, params=query)
        assert answer.is_success or not check, answer.text
        return answer.json() if answer.content else None

    def environ(self, project: str = "main", **more: str) -> dict[str, str]:
        """The environment of a job that reports here."""
        token = self.token("report", project=project)
        return {**os.environ, "EROICA_FLEET": self.url, "EROICA_FLEET_TOKEN": token, **more}


def command(environ: Mapping[str, str], *arguments: str) -> str:
    """What `eroica ...` prints."""
    done = subprocess.run([*EROICA, *arguments], env=dict(environ), capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def reporter(environ: Mapping[str, str], run: Path, job: str, collector: int = 0) -> subprocess.Popen[bytes]:
    """The reporter of a run directory, as a collector starts it."""
    (run / "log").mkdir(exist_ok=True)
    module = [sys.executable, "-m", "eroica.fleet.reporting", str(run), job, "node0", str(collector)]
    return subprocess.Popen(module, env=dict(environ))
