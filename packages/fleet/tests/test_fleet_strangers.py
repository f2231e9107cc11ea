"""Clients without a token at the fleet's service: it goes on answering, and its log and memory do not grow."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

pytest.importorskip("sqlalchemy", reason="the service's libraries are not here: pip install 'eroica[fleet]'")

from serving import Serving

FEW_FILES = 1024
CROWD = 1200
GUESSES = {
    "silence": b"",
    "half a request": b"GET / HTTP/1.1\r\nHost: c\r\n",
    "garbage": b"\x00\x01garbage\r\n\r\n",
    "a wrong token": b"GET /v1/runs HTTP/1.1\r\nHost: c\r\nAuthorization: Bearer eroica_guess\r\n\r\n",
    "a slow login": b"POST /login HTTP/1.1\r\nHost: c\r\nOrigin: http://c\r\nContent-Length: 1900\r\n\r\ntoken=",
}


@contextlib.contextmanager
def certified(folder: Path) -> Iterator[tuple[Path, Path]]:
    certificate, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out", str(certificate),
         "-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    yield certificate, key


@pytest.fixture(scope="module", params=["plain", "tls"])
def crowded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp(request.param)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with certified(folder) as (certificate, key):
        options = ("--tls-cert", str(certificate), "--tls-key", str(key)) if request.param == "tls" else ()
        resource.setrlimit(resource.RLIMIT_NOFILE, (FEW_FILES, hard))
        try:
            one = Serving(folder / "data", *options, ca=certificate if options else None)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    yield one
    one.kill()


def cost(one: Serving) -> tuple[int, int, int]:
    """Descriptors, megabytes and bytes of log."""
    pid = one.process.pid
    resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20
    log = Path(one.log.name).stat().st_size
    return len(os.listdir(f"/proc/{pid}/fd")), resident, log  # noqa: PTH208


@pytest.mark.parametrize("words", GUESSES.values(), ids=GUESSES.keys())
def test_a_crowd_without_a_token_makes_the_service_neither_deaf_nor_larger(words: bytes, crowded: Serving) -> None:
    token = crowded.token("read")
    crowded.ask("GET", "/v1/runs", token)
    before, most = cost(crowded), cost(crowded)
    port, calls = int(crowded.url.rpartition(":")[2]), []
    try:
        for at in range(CROWD):
            call = socket.socket()
            call.setblocking(False)
            call.connect_ex(("127.0.0.1", port))
            calls.append(call)
            if at % 100 == 0:
                time.sleep(0.02)
        for _ in range(4):
            for call in calls:
                with contextlib.suppress(OSError):
                    call.send(words)
            crowded.ask("GET", "/v1/runs", token)
            most = tuple(map(max, most, cost(crowded)))  # type: ignore[assignment]
            time.sleep(0.3)
    finally:
        for call in calls:
            call.close()
    descriptors, megabytes, logged = (now - then for now, then in zip(most, before, strict=True))
    assert descriptors < 250
    assert megabytes < 60
    assert logged < 1000


def test_guesses_delay_neither_a_new_token_nor_a_login(crowded: Serving) -> None:
    over, guesses = threading.Event(), [0]
    trust: ssl.SSLContext = crowded._trust

    def guess() -> None:
        with httpx.Client(base_url=crowded.url, verify=trust, trust_env=False, timeout=20) as client:
            while not over.is_set():
                with contextlib.suppress(httpx.HTTPError):
                    client.get("/v1/runs", headers={"authorization": f"Bearer eroica_{guesses[0]}"})
                    guesses[0] += 1

    threads = [threading.Thread(target=guess) for _ in range(8)]
    for thread in threads:
        thread.start()
    try:
        time.sleep(3)
        wish = {"name": "new", "scopes": ["read", "report"], "project": "main"}
        token = crowded.ask("POST", "/v1/tokens", crowded.operator, wish)["token"]
        for _ in range(5):
            crowded.ask("GET", "/v1/runs", token)
            with httpx.Client(base_url=crowded.url, verify=trust, trust_env=False, timeout=20) as browser:
                answer = browser.post("/login", data={"token": token}, headers={"origin": crowded.url})
                assert answer.status_code == 303
                assert browser.get("/v1/runs").status_code == 200
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert guesses[0] > 50, sys.version
