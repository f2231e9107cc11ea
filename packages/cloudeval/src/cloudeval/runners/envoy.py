"""The check API of Envoy problems: the real Envoy in a container, and upstreams that the test starts.

An Envoy configuration is a program: a Lua filter runs commands, an access log writes files. So Envoy never runs outside of
the container, not even to validate: no privileges, a read-only tree, the sandbox's network, which has no way out.
"""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from cloudeval.errors import ReadError, RunnerError
from cloudeval.reading import read
from cloudeval.runners.containers import Container, ContainerSpec, Mount
from cloudeval.runners.expectations import Checks, Response, listens, request
from cloudeval.runners.images import PATH
from cloudeval.runners.sandbox import SCRATCH
from cloudeval.schema import Fault
from cloudeval.values import dig

#: Bytes that Envoy may use; it needs about 70 MB.
MEMORY_BYTES = 400 * 2**20


@dataclass
class Upstream:
    """A small HTTP server that says who it is and what it was asked.

    The answer's body is `NAME METHOD PATH`. `/status/503` in the path answers with that status, `/slow/300` waits so many
    milliseconds. Paths arrive as Envoy sends them, with double slashes.
    """

    port: int
    name: str
    status: int = 200
    fail_next: int = 0
    healthy: bool = True
    delay_s: float = 0.0
    headers: dict[str, str] = field(default_factory=dict)
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    plain_tcp: bool = False
    address: str = "127.0.0.1"

    def start(self) -> Upstream:
        """Listen, in a thread of this process."""
        server = socket.create_server((self.address, self.port), backlog=64, reuse_port=False)
        threading.Thread(target=self._accept, args=(server,), daemon=True).start()
        return self

    def _accept(self, server: socket.socket) -> None:
        while True:
            client, _ = server.accept()
            threading.Thread(target=self._talk if self.plain_tcp else self._serve, args=(client,), daemon=True).start()

    def _talk(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            client.sendall(f"{self.name} {client.recv(65536).decode(errors='replace')}".encode())

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError, ValueError):
            stream = client.makefile("rb")
            while line := stream.readline():
                method, path, _ = line.decode().split(" ", 2)
                message = http.client.parse_headers(stream)
                headers = {key.lower(): ",".join(message.get_all(key, [])) for key in message}
                stream.read(int(headers.get("content-length", 0)))
                client.sendall(self._answer(method, path, headers))

    def _answer(self, method: str, path: str, headers: dict[str, str]) -> bytes:
        self.requests.append((method, path, headers))
        asked, slow = re.search(r"/status/(\d+)", path), re.search(r"/slow/(\d+)", path)
        status = int(asked[1]) if asked else self.status
        if self.fail_next > 0:
            self.fail_next, status = self.fail_next - 1, 503
        if not self.healthy and path.startswith("/health"):
            status = 503
        time.sleep(self.delay_s + (int(slow[1]) / 1000 if slow else 0))
        body = "" if method == "HEAD" else f"{self.name} {method} {path}"
        fields = {"content-type": "text/plain", **self.headers, "content-length": str(len(body))}
        head = "".join(f"{key}: {value}\r\n" for key, value in fields.items())
        return f"HTTP/1.1 {status} X\r\n{head}\r\n{body}".encode()


class Proxy(Checks):
    """The real Envoy with the answer's configuration.

    Args:
        sandbox: Name of the sandbox that this process runs in.
        text: The configuration.
    """

    def __init__(self, sandbox: str, text: str) -> None:
        super().__init__()
        self.upstreams: dict[str, Upstream] = {}
        folder = SCRATCH / "envoy"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "envoy.yaml").write_text(text)
        (folder / "out").mkdir(exist_ok=True)
        (folder / "out").chmod(0o777)
        options = "--concurrency 1 --disable-hot-restart -l warning --drain-time-s 1 --file-flush-interval-msec 50"
        spec = ContainerSpec(
            name="envoy",
            arguments=["envoy", "-c", "/config/envoy.yaml", "--log-format", "%l %v", *options.split()],
            env={"PATH": PATH, "LD_LIBRARY_PATH": "/lib/x86_64-linux-gnu"},
            tree="envoy",
            user=65534,
            group=65534,
            mounts=(Mount(folder / "envoy.yaml", "/config/envoy.yaml", read_only=True), Mount(folder / "out", "/tmp")),
            read_only=True,
            capabilities=(),
            new_privileges=False,
            memory_bytes=MEMORY_BYTES,
        )
        self.text, self.container = text, Container(spec, sandbox)

    @staticmethod
    def admit(text: str) -> list[Fault]:
        """Return why the text is no configuration at all: not YAML, a key twice, several documents."""
        try:
            documents = read(text, json_first=False)
        except ReadError as error:
            return [Fault("", str(error), "yaml")]
        if len(documents) != 1 or not isinstance(documents[0].value, dict):
            return [Fault("", "an Envoy configuration is one mapping", "yaml")]
        if "static_resources" not in documents[0].value:
            return [Fault("static_resources", "is required")]
        return []

    def start(self) -> str | None:
        """Start Envoy. Return its own message if it refuses the configuration."""
        if reason := self.container.start():
            raise RunnerError(f"Envoy did not start: {reason}")
        ports = self._ports()
        deadline = time.monotonic() + 15
        while time.monotonic() < deadline:
            if (code := self.container.poll()) is not None:
                return self._message(code)
            if all(listens(*port) for port in ports):
                return None
            time.sleep(0.02)
        return None  # a listener that never opens is for the checks to find

    def _ports(self) -> list[tuple[str, int]]:
        found = []
        for listener in dig(read(self.text, json_first=False)[0].value, "static_resources.listeners", []):
            with contextlib.suppress(KeyError, TypeError, AttributeError):
                address = listener["address"]["socket_address"]
                if address.get("protocol", "TCP") == "TCP":
                    anywhere = address["address"] in ("0.0.0.0", "::")
                    found.append(("127.0.0.1" if anywhere else str(address["address"]), int(address["port_value"])))
        return found

    def _message(self, code: int) -> str:
        lines = [line for line in self.container.logs().splitlines() if re.search("error|critical", line.lower())]
        text = lines[0] if lines else f"Envoy ended with {code}"
        return re.sub(r"\s+", " ", text.split("error initializing configuration '/config/envoy.yaml': ")[-1])[:400]

    # ---- what checks use

    def upstream(self, port: int, name: str = "", **options: Any) -> Upstream:
        """Start an HTTP server on 127.0.0.1, or return the one that is there; see `Upstream` for options."""
        address = options.get("address", "127.0.0.1")
        key = f"{address}:{port}"
        if key not in self.upstreams:
            self.upstreams[key] = Upstream(port, name or str(port), **options).start()
        return self.upstreams[key]

    def http(
        self,
        port: int,
        path: str = "/",
        *,
        status: int | None = None,
        host: str | None = None,
        method: str = "GET",
        body: str | None = None,
        headers: dict[str, str] | None = None,
        timeout_s: float = 5,
    ) -> Response:
        """Send a request to Envoy; fail if no answer comes, or another status than the expected one."""
        self._behaved()
        sent = {**({"Host": host} if host else {}), **(headers or {})}

        def tried() -> Response | None:
            answer = request("127.0.0.1", port, path, method=method, headers=sent, body=body, timeout_s=timeout_s)
            return answer if answer.status else None

        response: Response = self.eventually(tried, f"{method} {path} on port {port} gets no answer", 3)
        if status is not None and response.status != status:
            self.fail(f"{method} {host or ''}{path} on port {port} answers {response.status}, expected {status}")
        return response

    def upstream_of(self, port: int, path: str = "/", **options: Any) -> str:
        """Return the name of the upstream that answers a request, or its status as text."""
        answer = self.http(port, path, **options)
        return answer.text.split(" ")[0] if answer.status == 200 else str(answer.status)

    def spread(self, port: int, path: str = "/", count: int = 40, **options: Any) -> dict[str, int]:
        """Return how many of `count` requests each upstream answers."""
        found: dict[str, int] = {}
        for _ in range(count):
            name = self.upstream_of(port, path, **options)
            found[name] = found.get(name, 0) + 1
        return found

    def tcp(self, port: int, data: str, timeout_s: float = 2) -> str:
        """Send bytes over TCP and return the answer, empty if the connection is refused or closed."""
        self._behaved()
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout_s) as client:
            client.sendall(data.encode())
            client.settimeout(timeout_s)
            return client.recv(65536).decode(errors="replace")
        return ""

    def printed(self, pattern: str) -> str:
        """Wait until Envoy has printed a line that the regular expression finds, and return the line."""
        self._behaved()

        def found() -> str | None:
            return next((line for line in self.container.logs().splitlines() if re.search(pattern, line)), None)

        missing = lambda: f'Envoy prints no line with "{pattern}"; it printed "{self.container.logs()[-120:]}"'  # noqa: E731
        return str(self.eventually(found, missing, 3))
