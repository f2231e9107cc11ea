"""Real use in a lab of 20 clients in namespaces: 100 files by curl, a voice stream, churn. Needs root.

Writes `results/transfer.json`. The voice stream is 50 packets of 160 bytes a second through SOCKS to a sink behind the
exit; both ends read one clock, so the one-way delay is measured. R follows the E-model for G.711 with a playout buffer
at the 99th percentile of the delay.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import math
import random
import re
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from prifi.lab import WEB, Lab, Plan

RESULTS = Path(__file__).parent / "results"
VOICE_PORT = 9000


def sink(port: int) -> None:
    """Receive packets of a voice stream; print their one-way delays in seconds as JSON."""
    with socket.create_server(("0.0.0.0", port)) as server:
        connection, _ = server.accept()
        delays, data = [], b""
        with connection:
            while part := connection.recv(65536):
                now, data = time.time(), data + part
                while len(data) >= 160:
                    delays.append(now - struct.unpack_from("<d", data)[0])
                    data = data[160:]
    print(json.dumps(delays))


def speak(socks: int, host: str, port: int, seconds: float) -> None:
    """Send a voice stream through SOCKS."""
    with socket.create_connection(("127.0.0.1", socks)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.sendall(b"\5\1\0\5\1\0\1" + socket.inet_aton(host) + port.to_bytes(2, "big"))
        data = b""
        while len(data) < 12:
            data += sock.recv(12)
        assert data[3] == 0, data
        began = time.time()
        for number in range(int(50 * seconds)):
            time.sleep(max(0.0, began + number / 50 - time.time()))
            sock.sendall(struct.pack("<d", time.time()).ljust(160, b"v"))


def rating(delays: list[float]) -> dict[str, float]:
    """Return delay, jitter, loss and R of a voice stream."""
    delays = delays[25:]  # the stream's own start
    playout = sorted(delays)[int(0.99 * len(delays))]
    late = sum(delay > playout for delay in delays) / len(delays)
    total_ms = 1000 * playout + 20  # packetization
    impairment = 0.024 * total_ms + (0.11 * (total_ms - 177.3) if total_ms > 177.3 else 0.0)
    jitter = statistics.fmean(abs(b - a) for a, b in itertools.pairwise(delays))
    return {
        "packets": len(delays), "median_ms": 1000 * statistics.median(delays), "playout_ms": 1000 * playout,
        "jitter_ms": 1000 * jitter, "late": late, "R": 93.2 - impairment - 30 * math.log(1 + 15 * late),
    }  # fmt: skip


def voice(lab: Lab, seconds: float) -> dict[str, float]:
    command = lab.inside("web", [sys.executable, __file__, "--sink", str(VOICE_PORT)])
    receiver = subprocess.Popen(command, stdout=subprocess.PIPE)
    time.sleep(1.0)
    command = [sys.executable, __file__, "--speak", str(lab.ports(3)[0]), WEB, str(VOICE_PORT), str(seconds)]
    done = lab.run("client-3", command, seconds + 60)
    assert done.returncode == 0, done.stderr
    return rating(json.loads(receiver.communicate(timeout=60)[0]))


def files(lab: Lab, web: Path, count: int, size: int) -> dict[str, Any]:
    chance, equal, times = random.Random(1), 0, []
    for number in range(count):
        data = chance.randbytes(size)
        (web / f"file-{number}").write_bytes(data)
        out, began = web / f"out-{number}", time.monotonic()
        lab.curl(number % lab.plan.clients, f"file-{number}", out).communicate()
        times.append(time.monotonic() - began)
        equal += out.exists() and hashlib.sha256(out.read_bytes()).digest() == hashlib.sha256(data).digest()
    return {"files": count, "bytes": size, "equal": equal, "median_s": statistics.median(times)}


def churn(lab: Lab, minutes: float) -> dict[str, Any]:
    """Ten events a minute: crash, join, leave in turn; read from the relay's log how long no epoch ran."""
    end, events, away = time.monotonic() + 60 * minutes, 0, ""
    while time.monotonic() < end:
        began = time.monotonic()
        if away:
            lab.start(away)
            away = ""
        else:
            away = f"client-{5 + events % 10}"
            lab.stop(away, signal.SIGKILL if events % 4 else signal.SIGTERM)
        events += 1
        time.sleep(max(0.0, 6.0 - (time.monotonic() - began)))
    gaps, lost = [], None
    for line in lab.log("relay").splitlines():
        found = re.match(r"(\S+ \S+) INFO (?:link: (client-\d+) is gone|epoch: )", line)
        if not found:
            continue
        at = datetime.strptime(found[1], "%Y-%m-%d %H:%M:%S,%f").timestamp()
        if found[2]:
            lost = lost or at
        elif lost:
            gaps.append(at - lost)
            lost = None
    return {
        "clients": lab.plan.clients,
        "events": events,
        "gaps_s": gaps,
        "reuse_refused": lab.log("relay").count("pads of round"),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sink", type=int)
    parser.add_argument("--speak", nargs=4)
    parser.add_argument("--files", type=int, default=100)
    parser.add_argument("--size", type=int, default=20_000)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--realtime", action="store_true", help="members run before all else on a busy machine")
    arguments = parser.parse_args()
    if arguments.sink:
        sink(arguments.sink)
        return
    if arguments.speak:
        socks, host, port, seconds = arguments.speak
        speak(int(socks), host, int(port), float(seconds))
        return
    result: dict[str, Any] = {"clients": arguments.clients, "realtime": arguments.realtime}
    with tempfile.TemporaryDirectory() as name:
        web = Path(name)
        with Lab(Plan(arguments.clients, 3, realtime=arguments.realtime), web) as lab:
            result["ready_s"] = lab.wait(seconds=240)
            result["voice"] = voice(lab, 20)
            print(result, flush=True)
            result["files"] = files(lab, web, arguments.files, arguments.size)
            print(result, flush=True)
            result["churn"] = churn(lab, arguments.minutes)
            print(result, flush=True)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "transfer.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
