"""Attacks by clients without a token on every listening socket of Eroica, its fleet service, c4p and trainmover.

Each attack is a row of `ATTACKS`: what many connections of another user say, and how. While it runs, a client with the
token asks the same service, and the service's process is measured: threads, descriptors, memory, log. `HELD` says what
may not be exceeded.

    python benchmarks/attacks_services.py [SERVICE...] [--only ATTACK] [--json FILE] [--write-docs]

Two of the services are training processes: members of a c4p group and of a trainmover job. Acting as another user needs
root; without it, the attacks come from the same user.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import random
import re
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil

RESULTS = Path(__file__).parent / "results" / "attacks_services.json"
DOCS = Path(__file__).parents[1] / "docs" / "results" / "attacks-services.md"
TOKEN = "attacked-secret-0123456789"
STRANGER = 12345
SECONDS = 2.0
ANSWER_S = 10.0


class Held(NamedTuple):
    """The most that an attack may cost.

    Attributes:
        threads: More of them.
        descriptors: More of them.
        megabytes: More resident memory.
        log_bytes: More bytes of log.
    """

    threads: int
    descriptors: int
    megabytes: float
    log_bytes: int


HELD = {"training process": Held(0, 34, 1.0, 0), "service": Held(6, 200, 32.0, 2000)}
GET = b"GET / HTTP/1.1\r\nHost: c\r\n"
PUT = b"POST /v1/reports HTTP/1.1\r\nHost: c\r\n"


def http(*headers: str, line: bytes = GET, body: bytes = b"") -> bytes:
    return line + "".join(f"{header}\r\n" for header in headers).encode() + b"\r\n" + body


def greeting(token: Any, **more: Any) -> bytes:
    """The first message of both of trainmover's protocols."""
    hello = {"kind": "operator", "token": token, "version": 3}
    data = {"token": token, "purpose": "copy", "group": "", "generation": 0, "source": 1, "target": 0}
    return json.dumps({**(data if more.pop("data", False) else hello), **more}).encode() + b"\n"


def c4p(kind: int, length: int, body: bytes = b"", magic: bytes = b"C4P1", piece: int = 1) -> bytes:
    return struct.pack("<4sBxxxIIII", magic, kind, 0, piece, length, 0) + body


NOISE = random.Random(1).randbytes(4096)
HELLO_TLS = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + NOISE[:506]


class Attack(NamedTuple):
    """The behavior of many connections.

    Attributes:
        what: In words.
        words: What each connection says, one after the other of these.
        how: "hold" (say it once), "drip" (a byte at a time), "repeat" (again and again on the same connection),
            "churn" (say it, close, connect anew), "reset" (as churn, closed by a reset), "deaf" (repeat without
            reading, with a small receive buffer), "shut" (say it and close the own direction), "urgent" (as urgent
            data), "tls" (a TLS handshake first).
        count: Connections.
    """

    what: str
    words: tuple[bytes, ...] = (b"",)
    how: str = "hold"
    count: int = 600


ATTACKS = {
    "silent": Attack("1,500 silent connections", count=1500),
    "descriptors": Attack("4,000 silent connections", count=4000),
    "half-closed": Attack("connections whose own direction is closed at once", how="shut"),
    "one-byte": Attack("a byte, then nothing", (b" ", b"G", b"{", b"C")),
    "drip": Attack("a request or greeting, byte by byte", (GET, greeting("x"), c4p(1, 16)), "drip"),
    "slow-headers": Attack("a header line every 0.2 s", (b"X-A: b\r\n",), "repeat"),
    "huge-headers": Attack("a megabyte of headers", (GET + b"X: " + b"y" * 1_000_000,), count=100),
    "many-headers": Attack("20,000 headers", (GET + b"a: b\r\n" * 20_000,), count=100),
    "huge-length": Attack("a declared length of a terabyte", (
        http("Content-Length: 1000000000000", line=PUT), json.dumps({"blob": 10**12}).encode() + b"\n" + bytes(50_000),
        c4p(1, 2**32 - 1) + bytes(50_000),
    )),
    "negative-length": Attack("a negative or absurd length", (
        http("Content-Length: -1", line=PUT), b'{"blob": -1}\n', http("Content-Length: 9e99", line=PUT),
    )),
    "wrong-magic": Attack("the wrong protocol's magic", (
        c4p(1, 16, b"x" * 16, b"C4P9"), b"SSH-2.0-x\r\n", bytes(64),
    )),
    "unknown-kind": Attack("c4p kinds that do not exist", tuple(c4p(kind, 16, b"x" * 16) for kind in (0, 9, 255))),
    "data-first": Attack("c4p data before the greeting", (c4p(2, 1 << 20, bytes(60_000)),)),
    "abort-first": Attack("c4p farewells and aborts before the greeting", (c4p(4, 0), c4p(5, 4, b"over"))),
    "guesses": Attack("a flood of wrong tokens", (
        http("Authorization: Bearer eroica_guess", line=b"GET /v1/status HTTP/1.1\r\nHost: c\r\n"), greeting("guess"),
        greeting("guess", data=True), c4p(1, 16, b"x" * 16),
    ), "churn", 200),
    "odd-tokens": Attack("tokens that are no text", (
        greeting(1), greeting(None), greeting([TOKEN]), greeting(True, data=True), b'{"token": "\\ud800"}\n',
        '{"token": "ü"}\n'.encode(), http("Authorization: Bearer \xfc"),
    ), "churn", 200),
    "half-token": Attack("the first half of the token", (
        http(f"Authorization: Bearer {TOKEN[:13]}"), greeting(TOKEN[:13]), greeting(TOKEN[:13], data=True),
    ), "churn", 200),
    "empty-token": Attack("an empty token", (
        http("Authorization: Bearer "), greeting(""), greeting("", data=True), c4p(1, 0),
    ), "churn", 200),
    "two-tokens": Attack("several Authorization headers", (http(*["Authorization: Bearer x"] * 40),), "churn", 200),
    "cookies": Attack("12 kB of cookies", (
        http("Cookie: " + "; ".join(f"c{at}=x" for at in range(1500))),
    ), "repeat", 200),
    "pipelined": Attack("64 requests at once, then garbage", (http() * 64 + NOISE, greeting("x") * 64), "repeat", 200),
    "websocket": Attack("an upgrade to a WebSocket", (http(
        "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Key: eHh4eHh4eHh4eHh4eHh4eA==",
        "Sec-WebSocket-Version: 13",
    ),)),
    "http2": Attack("HTTP/2 without asking", (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(64), http(
        "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__",
    ))),
    "chunked": Attack("an endless body in chunks", (
        http("Transfer-Encoding: chunked", line=PUT, body=b"4000\r\n" + bytes(0x4000) + b"\r\n"),
    ), "repeat", 200),
    "chunk-size": Attack("a chunk of 2^64 bytes", (
        http("Transfer-Encoding: chunked", line=PUT, body=b"FFFFFFFFFFFFFFFF\r\n" + bytes(20_000)),
    )),
    "smuggling": Attack("a length and chunks together", (
        http("Content-Length: 5", "Transfer-Encoding: chunked", line=PUT, body=b"0\r\n\r\n" + http()),
    ), "churn", 200),
    "compressed": Attack("a body that unpacks to a gigabyte", (
        http("Content-Encoding: gzip", "Content-Length: 60000", line=PUT, body=b"\x1f\x8b\x08" + bytes(59_997)),
    )),
    "continue": Attack("Expect: 100-continue, then nothing", (
        http("Expect: 100-continue", "Content-Length: 9", line=PUT),
    )),
    "slow-login": Attack("a login that stays unfinished", (
        http("Origin: http://c", "Content-Length: 1900", line=b"POST /login HTTP/1.1\r\nHost: c\r\n", body=b"token="),
    )),
    "logins": Attack("a flood of wrong logins", (
        http("Origin: http://c", "Content-Length: 7", line=b"POST /login HTTP/1.1\r\nHost: c\r\n", body=b"token=x"),
    ), "churn", 200),
    "events": Attack("followers of events, pages and metrics", tuple(
        http(line=f"GET /{path} HTTP/1.1\r\nHost: c\r\n".encode()) for path in ("v1/events", "", "metrics", "healthz")
    )),
    "paths": Attack("long and odd paths", (
        http(line=b"GET /" + b"../" * 1500 + b"etc HTTP/1.1\r\nHost: c\r\n"),
        http(line=b"GET /%00%0a HTTP/1.1\r\nHost: c\r\n"),
    ), "churn", 200),
    "nesting": Attack("100,000 opening brackets", (b"[" * 100_000 + b"\n", b'{"a":' * 20_000), count=200),
    "endless-line": Attack("a line that does not end", (b"x" * 100_000,), "repeat", 100),
    "noise": Attack("random bytes", (NOISE, NOISE[7:], NOISE[99:]), "churn", 200),
    "churn": Attack("connect and close, as fast as it goes", how="churn", count=400),
    "reset": Attack("connect and reset, as fast as it goes", (b"x",), "reset", 400),
    "deaf": Attack("requests whose answers nobody reads", (http() * 50, greeting("x")), "deaf", 200),
    "urgent": Attack("urgent data", (b"!",), "urgent"),
    "tls-noise": Attack("a TLS handshake that breaks off", (HELLO_TLS,)),
    "tls-churn": Attack("broken TLS handshakes, as fast as it goes", (
        HELLO_TLS, b"\x16\x03\x01\xff\xff",
    ), "churn", 200),
    "tls-silent": Attack("a whole TLS handshake, then nothing", how="tls", count=150),
    "tls-guesses": Attack("wrong tokens within TLS", (http("Authorization: Bearer x"), greeting("x")), "tls", 150),
}  # fmt: skip


# -- the attacker -----------------------------------------------------------------------------------------------------


def attack(port: int, name: str, until: float) -> None:
    """Run in a process of its own, as another user."""
    import resource

    what = ATTACKS[name]
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if os.getuid() == 0:
        os.setgroups([])
        os.setresgid(STRANGER, STRANGER, STRANGER)
        os.setresuid(STRANGER, STRANGER, STRANGER)
    calls: list[socket.socket] = []
    while time.time() < until:
        if not calls or what.how in ("churn", "reset"):
            for call in calls:
                call.close()
            calls = list(_connected(port, what, until))
        for at, call in enumerate(calls):
            with contextlib.suppress(OSError):
                _speak(call, what, what.words[at % len(what.words)], first=what.how in ("churn", "reset"))
        time.sleep(0.02 if what.how in ("churn", "reset") else 0.2)


def _connected(port: int, what: Attack, until: float) -> Iterator[socket.socket]:
    context = ssl._create_unverified_context()
    for at in range(what.count):
        if time.time() > until:
            return
        call = socket.socket()
        if what.how == "deaf":
            call.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        if what.how == "reset":
            call.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if what.how == "tls":
            call.settimeout(0.5)
            with contextlib.suppress(OSError):
                call.connect(("127.0.0.1", port))
                call = context.wrap_socket(call)
        else:
            call.setblocking(False)
            call.connect_ex(("127.0.0.1", port))
        yield call
        if at % 100 == 99:
            time.sleep(0.01)
    time.sleep(0.05)


_said: dict[socket.socket, int] = {}


def _speak(call: socket.socket, what: Attack, words: bytes, first: bool) -> None:
    at = 0 if first else _said.get(call, 0)
    if what.how == "drip":
        call.send(words[at % len(words) : at % len(words) + 1])
        _said[call] = at + 1
    elif what.how in ("repeat", "deaf") or not at:
        call.send(words, socket.MSG_OOB if what.how == "urgent" else 0) if words else None
        _said[call] = 1
        if what.how == "shut":
            call.shutdown(socket.SHUT_WR)


# -- the attacked -----------------------------------------------------------------------------------------------------


class Service(NamedTuple):
    """A service that runs.

    Attributes:
        kind: Of `HELD`.
        pid: The process that listens.
        port: Where.
        ask: Asks it as somebody with the token does; raises if there is no answer.
        logs: Files that it writes.
    """

    kind: str
    pid: int
    port: int
    ask: Callable[[], None]
    logs: tuple[Path, ...]


def _await(ready: Callable[[], Any], limit_s: float = 60.0) -> Any:
    end = time.monotonic() + limit_s
    while True:
        with contextlib.suppress(OSError, ValueError, IndexError, KeyError):
            found = ready()
            if found:
                return found
        if time.monotonic() > end:
            raise SystemExit("a service did not start")
        time.sleep(0.1)


def _get(url: str, token: str, cafile: Path | None = None) -> None:
    context = ssl.create_default_context(cafile=cafile) if cafile else None
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}", "Connection": "close"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    with opener.open(request, timeout=ANSWER_S) as answer:
        answer.read()


class _Processes(contextlib.ExitStack):
    """Processes that end with the block; their output is in files of its folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def start(self, name: str, *command: str, **environ: str) -> tuple[subprocess.Popen[bytes], Path]:
        log = self.folder / f"{name}.out"
        clean = {
            key: value for key, value in os.environ.items() if not key.startswith(("EROICA_", "TRAINMOVER_", "C4P_"))
        }
        with log.open("wb") as out:
            process = subprocess.Popen(command, stdout=out, stderr=out, cwd=self.folder, env={**clean, **environ})
        self.callback(_end, process)
        return process, log


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _certificate(folder: Path) -> tuple[Path, Path]:
    certificate, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out", str(certificate),
         "-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    return certificate, key


def _eroica(*arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-c", "from eroica.cli import main; main()", *arguments)


def collector(processes: _Processes) -> Service:
    """Eroica's collector, with its live page and metrics, beside a job."""
    loop = "import time, eroica\nwhile True: time.sleep(0.02); eroica.step()"
    run = processes.folder / "run"
    places = {f"EROICA_{name}_DIR": str(processes.folder / name.lower()) for name in ("RUNTIME", "SCRATCH")}
    eroica = str(Path(sys.executable).with_name("eroica"))
    processes.start("job", eroica, "run", "--out", str(run), "--", sys.executable, "-c", loop, **places)
    address = _await(lambda: json.loads((run / "collector.json").read_bytes()))
    port = int(address["url"].rpartition(":")[2])
    log = _await(lambda: list((run / "log").glob("collector*.log")))[0]
    return Service(
        "service", address["pid"], port, lambda: _get(f"{address['url']}/v1/status", address["token"]), (log,)
    )


def _fleet(processes: _Processes, *options: str, cafile: Path | None = None) -> Service:
    process, log = processes.start("fleet", *_eroica("serve", "--listen", "127.0.0.1:0", "--data", "data", *options))
    url = _await(lambda: [word for word in log.read_text().split() if word.startswith("http")])[0]
    token = _await((processes.folder / "data" / "operator.token").read_text).strip()
    port = int(url.rpartition(":")[2])
    return Service("service", process.pid, port, lambda: _get(f"{url}/v1/runs", token, cafile), (log,))


def fleet(processes: _Processes) -> Service:
    """`eroica serve` without TLS."""
    return _fleet(processes)


def fleet_tls(processes: _Processes) -> Service:
    """`eroica serve` with TLS."""
    certificate, key = _certificate(processes.folder)
    return _fleet(processes, "--tls-cert", str(certificate), "--tls-key", str(key), cafile=certificate)


def controller(processes: _Processes) -> Service:
    """Trainmover's controller."""
    from trainmover.cli import ask

    folder = processes.folder / "job"
    command = (sys.executable, "-m", "trainmover.controller", "--folder", str(folder))
    process, log = processes.start("controller", *command, TRAINMOVER_TOKEN=TOKEN)
    address = _await(lambda: json.loads((folder / "controller.json").read_text())["address"])
    access = {"TRAINMOVER_CONTROLLER": address, "TRAINMOVER_TOKEN": TOKEN}
    logs = (log, folder / "controller.log")
    return Service(
        "service", process.pid, int(address.rpartition(":")[2]), lambda: ask(access, {"ask": "status"}), logs
    )


MOVED = """
import sys, time
from trainmover.transport import Listener, Wake
listener, wake = Listener("127.0.0.1", sys.argv[1], lambda hello: ""), Wake()
print(listener.address[1], flush=True)
while True:
    listener.take("collective", "", 0, 1, wake, time.monotonic() + 1e6).close()
"""
GROUPED = """
import sys, time
import c4p, numpy
rank, folder = int(sys.argv[1]), sys.argv[2]
with c4p.Group(rank, 2, c4p.Folder(folder)) as group:
    array = numpy.ones(10_000, dtype=numpy.float32)
    for number in range(10**9):
        array[:] = 1
        group.allreduce(array)
        if number % 10 == 0: open(f"{folder}/../progress-{rank}", "w").write(str(number))
        time.sleep(0.005)
"""


def member(processes: _Processes) -> Service:
    """The data port of a member of a trainmover job: a training process."""
    from trainmover.transport import Hello, dial

    process, log = processes.start("member", sys.executable, "-c", MOVED, TOKEN)
    port = int(_await(log.read_text))
    hello = Hello(TOKEN, "collective", "", 0, 1, 0)
    return Service(
        "training process", process.pid, port, lambda: dial(("127.0.0.1", port), hello, ANSWER_S).close(), (log,)
    )


def group(processes: _Processes) -> Service:
    """The port of a member of a c4p group: a training process, while its all-reduces go on."""
    folder = processes.folder / "group"
    folder.mkdir()
    first, log = processes.start("first", sys.executable, "-c", GROUPED, "0", str(folder))
    processes.start("second", sys.executable, "-c", GROUPED, "1", str(folder))
    port = int(_await(lambda: json.loads((folder / "key-c4p-0").read_text()))[1])
    progress = processes.folder / "progress-0"
    _await(progress.read_text)

    def ask() -> None:
        before, end = progress.read_text(), time.monotonic() + ANSWER_S
        while progress.read_text() == before:
            if time.monotonic() > end:
                raise TimeoutError("all-reduces stand still")
            time.sleep(0.005)

    return Service("training process", first.pid, port, ask, (log,))


def planner(processes: _Processes) -> Service:
    """c4p's planner."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = (sys.executable, "-m", "c4p.cli", "serve", "--port", str(port), "--state", "planner.sqlite")
    process, log = processes.start("planner", *command, C4P_PLANNER_TOKEN=TOKEN)

    def ask() -> None:
        _get(f"http://127.0.0.1:{port}/", TOKEN)

    _await(lambda: ask() is None)
    return Service("service", process.pid, port, ask, (log,))


SERVICES = {
    "collector": collector, "fleet": fleet, "fleet-tls": fleet_tls, "controller": controller,
    "member": member, "group": group, "planner": planner,
}  # fmt: skip


# -- the measurement --------------------------------------------------------------------------------------------------


def _cost(service: Service) -> tuple[float, ...]:
    process = psutil.Process(service.pid)
    logged = sum(log.stat().st_size for log in service.logs)
    return process.num_threads(), process.num_fds(), process.memory_info().rss / 1e6, logged


def try_one(service: Service, name: str) -> dict[str, Any]:
    """Attack a service for `SECONDS`, and measure it meanwhile."""
    service.ask()
    before = most = _cost(service)
    until = time.time() + SECONDS
    command = [sys.executable, __file__, "--attack", name, str(service.port), str(until)]
    answers, failures, slowest = 0, 0, 0.0
    with subprocess.Popen(command) as attacker:
        time.sleep(0.3)  # its start
        while attacker.poll() is None or time.time() < until:
            began = time.monotonic()
            try:
                service.ask()
                answers += 1
            except Exception:  # noqa: BLE001 - whatever the client of a service says when there is no answer
                failures += 1
            slowest = max(slowest, time.monotonic() - began)
            most = tuple(map(max, most, _cost(service)))
            time.sleep(0.05)
    grown = [now - then for now, then in zip(most, before, strict=True)]
    held = Held(*HELD[service.kind])
    kept = all(now <= limit for now, limit in zip(grown, held, strict=True))
    return {
        "answers": answers, "failures": failures, "slowest_s": round(slowest, 3), "threads": int(grown[0]),
        "descriptors": int(grown[1]), "megabytes": round(grown[2], 2), "log_bytes": int(grown[3]),
        "held": bool(kept and answers and answers > 10 * failures),
    }  # fmt: skip


PAGE = """# Attacks on services

Clients without a token attacked every listening socket in {ways} ways, {seconds:g} s each, as another user of the same
host. **{held} of {total} attempts were held**: a client with the token was answered meanwhile (at most one in ten of
its questions failed), and the process stayed within the limits below. Machine: {machine}.

```sh
python benchmarks/attacks_services.py --write-docs      # root, to act as another user; about 20 minutes
```

## Largest cost of any attack

| service | what it is | threads | descriptors | memory, MB | log, bytes | questions failed | slowest, s | revision |
|---|---|---|---|---|---|---|---|---|
"""


def write_docs(found: dict[str, dict[str, Any]]) -> None:
    """Draw the page from the records."""
    results = found["results"]
    names = [name for name in SERVICES if name in results]
    total = sum(len(rows) for rows in results.values())
    held = sum(row["held"] for rows in results.values() for row in rows.values())
    lines = PAGE.format(ways=len(ATTACKS), seconds=SECONDS, held=held, total=total, **found).splitlines()
    for name in names:
        rows = list(results[name].values())
        what = (SERVICES[name].__doc__ or "").strip().rstrip(".")
        worst = [max(row[key] for row in rows) for key in ("threads", "descriptors", "megabytes", "log_bytes")]
        asked = sum(row["answers"] + row["failures"] for row in rows)
        failed = sum(row["failures"] for row in rows)
        slowest = max(row["slowest_s"] for row in rows)
        lines.append(
            f"| {name} | {what} | +{worst[0]} | +{worst[1]} | +{worst[2]:.1f} | +{worst[3]} | {failed} of {asked} "
            f"| {slowest:.1f} | {found['revisions'][name]} |"
        )
    lines += ["", "Limits:", ""]
    for kind, limit in HELD.items():
        lines.append(
            f"- {kind}: {limit.threads} threads, {limit.descriptors} descriptors, {limit.megabytes:g} MB, "
            f"{limit.log_bytes} bytes of log more than before the attack."
        )
    lines += ["", "## Each attack", "", "An answer within the attack's time and within the limits is a `+`.", ""]
    lines += [f"| attack | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for attack_name, what in ATTACKS.items():
        cells = []
        for name in names:
            row = results[name].get(attack_name)
            cells.append("" if row is None else "+" if row["held"] else f"**{_why(row)}**")
        lines.append(f"| {what.what} (`{attack_name}`) | {' | '.join(cells)} |")
    DOCS.parent.mkdir(exist_ok=True)
    DOCS.write_text("\n".join(lines) + "\n")


def _why(row: dict[str, Any]) -> str:
    shown = f"{row['failures']} of {row['failures'] + row['answers']} failed"
    return f"{shown}, +{row['descriptors']} descriptors, +{row['megabytes']} MB, +{row['log_bytes']} B of log"


def _revision() -> str:
    asked = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    """Attack."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("services", nargs="*", metavar="SERVICE", help=", ".join(SERVICES))
    parser.add_argument("--only", action="append", help="this attack")
    parser.add_argument("--json", type=Path, default=RESULTS)
    parser.add_argument("--write-docs", action="store_true")
    parser.add_argument("--attack", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.attack:
        name, port, until = options.attack
        attack(int(port), name, float(until))
        return
    found: dict[str, Any] = json.loads(options.json.read_text()) if options.json.exists() else {"results": {}}
    cores = f"{os.cpu_count()} cores, Linux {platform.release().split('-')[0]}, Python {platform.python_version()}"
    found["machine"] = cores
    for name in options.services or SERVICES:
        with tempfile.TemporaryDirectory() as folder, _Processes(Path(folder)) as processes:
            service = SERVICES[name](processes)
            rows = found["results"].setdefault(name, {})
            found.setdefault("revisions", {})[name] = _revision()
            for attack_name in options.only or ATTACKS:
                rows[attack_name] = try_one(service, attack_name)
                print(
                    f"{name:15} {attack_name:16} {'held' if rows[attack_name]['held'] else 'NOT HELD'}",
                    rows[attack_name],
                    flush=True,
                )
        options.json.write_text(re.sub(r"\n {3,}", " ", json.dumps(found, indent=1)) + "\n")
    if options.write_docs:
        write_docs(found)


if __name__ == "__main__":
    main()
