"""Latency through SOCKS, rounds per second, set-up time and CPU: n clients as tasks with real sockets.

Relay and trustees are processes of their own; the clients share one or more processes. A one-way delay is injected in
user space on every link. The target is an echo on loopback, so everything measured is added latency. Writes
`results/latency.json`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import uvloop

from prifi.client import Client
from prifi.config import read_config, write_network
from prifi.identity import read_key
from prifi.socks import Pipes, SocksServer
from prifi.transport import Driver, dial

RESULTS = Path(__file__).parent / "results"


async def crowd(
    folder: Path, first: int, last: int, talkers: int, seconds: float, socks: int, delay_s: float
) -> dict[str, Any]:
    """Run clients first to last; let the first `talkers` ping through SOCKS for so many seconds."""
    config = read_config(folder / "prifi.toml")
    began = time.perf_counter()
    machines, servers, links = [], [], []
    for index in range(first, last):
        identity = read_key(folder / f"client-{index}.key")
        machine = Client(identity, config.roster, config.parameters)
        pipes = Pipes(machine.streams)
        driver = Driver(machine, delay_s, 0.0, pipes.take)
        machines.append(machine)
        if index < talkers:
            server = SocksServer(pipes, lambda machine=machine: bool(machine.status.epoch))
            await server.start("127.0.0.1", socks + index)
            servers.append(server)
        links.append(asyncio.ensure_future(dial(driver, identity, config.roster, *config.relay, config.udp)))
    while not all(machine.status.anonymity_set == len(config.roster.clients) for machine in machines):
        await asyncio.sleep(0.02)
        if time.perf_counter() - began > 200:
            raise SystemExit("no epoch")
    ready = time.perf_counter() - began
    await asyncio.sleep(2.0)
    rounds, cpu, at = machines[0].status.rounds, time.process_time(), time.perf_counter()
    pings = await asyncio.gather(*(ping(socks + index, seconds) for index in range(first, min(talkers, last))))
    if not pings:
        await asyncio.sleep(seconds + 5.0)  # the set stays whole until the others have measured
    spent = time.perf_counter() - at
    done = machines[0].status.rounds - rounds
    result = {
        "ready_s": ready,
        "rounds_per_s": done / spent,
        "cpu_ms_per_round": 1000 * (time.process_time() - cpu) / max(done, 1),
        "anonymity_set": machines[0].status.anonymity_set,
        "pings_ms": [value for one in pings for value in one],
    }
    for link in links:
        link.cancel()
    await asyncio.gather(*links, return_exceptions=True)
    return result


async def ping(socks: int, seconds: float) -> list[float]:
    """Send 32 bytes to the echo through SOCKS again and again; return the times in milliseconds."""
    reader, writer = await asyncio.open_connection("127.0.0.1", socks)
    writer.write(b"\5\1\0")
    await reader.readexactly(2)
    writer.write(b"\5\1\0\1\x7f\0\0\1" + ECHO_PORT.to_bytes(2, "big"))
    answer = await asyncio.wait_for(reader.readexactly(10), 60)
    assert answer[1] == 0, answer
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end:
        sent = time.perf_counter()
        writer.write(os.urandom(32))
        await asyncio.wait_for(reader.readexactly(32), 60)
        times.append(1000 * (time.perf_counter() - sent))
        await asyncio.sleep(0.05)
    writer.close()
    return times


async def echo() -> None:
    """The target: sends back what comes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(4096):
            writer.write(data)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", ECHO_PORT) as server:
        await server.serve_forever()


ECHO_PORT = int(os.environ.get("ECHO_PORT", "27001"))


def measure(clients: int, protection: str, seconds: float, **options: Any) -> dict[str, Any]:
    """Run one network and return its figures."""
    options = {
        "trustees": 3,
        "talkers": 5,
        "delay_ms": 5.0,
        "cell_bytes": 1000,
        "down_bytes": 1000,
        "udp": False,
        **options,
    }
    udp, trustees = options["udp"], options["trustees"]
    parameters = {
        "cell_bytes": options["cell_bytes"], "down_bytes": options["down_bytes"], "protection": protection,
        "gather_s": 1.0, "absent_s": 20.0, "resend_s": 5.0, "window": options.get("window", 3),
        "interval_s": options.get("interval_s", 0.012), "offset_s": options.get("offset_s", 0.012),
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "network"
        write_network(folder, clients, trustees, "127.0.0.1:27000", udp, ("127.0.0.0/8",), **parameters)
        delay = ["--delay-ms", str(options["delay_ms"])]
        prifi = str(Path(sys.executable).parent / "prifi")
        files = ["--config", str(folder / "prifi.toml"), "--key"]
        started = [subprocess.Popen([sys.executable, __file__, "--echo"])]
        started.append(subprocess.Popen([prifi, "relay", *files, str(folder / "relay.key"), *delay]))
        names = [str(folder / f"trustee-{j}.key") for j in range(trustees)]
        started += [subprocess.Popen([prifi, "trustee", *files, name, *delay]) for name in names]
        try:
            time.sleep(1.5)
            before = [_cpu(process.pid) for process in started[1:]]
            crowds = []
            talkers = min(options["talkers"], clients)
            step = clients if options.get("crowds", 1) == 1 else -(-clients // options["crowds"])
            for first in range(0, clients, step):
                last = str(min(first + step, clients))
                command = [sys.executable, __file__, "--crowd", str(folder), str(first), last, str(talkers),
                           str(seconds), str(options["delay_ms"] / 1000)]  # fmt: skip
                crowds.append(subprocess.Popen(command, stdout=subprocess.PIPE))
            parts = [json.loads(process.communicate(timeout=400)[0]) for process in crowds]
            spent = [_cpu(process.pid) - cpu for process, cpu in zip(started[1:], before, strict=True)]
        finally:
            for process in started:
                process.send_signal(signal.SIGTERM)
            for process in started:
                process.wait(20)
    pings = sorted(value for part in parts for value in part.pop("pings_ms"))
    return {
        "clients": clients, "protection": protection, **options,
        "pings": len(pings), "median_ms": statistics.median(pings), "mean_ms": statistics.fmean(pings),
        "p95_ms": pings[int(0.95 * len(pings))], "rounds_per_s": parts[0]["rounds_per_s"],
        "ready_s": max(part["ready_s"] for part in parts), "anonymity_set": parts[0]["anonymity_set"],
        "clients_cpu_ms_per_round": sum(part["cpu_ms_per_round"] for part in parts),
        "relay_cpu_s": spent[0], "trustees_cpu_s": spent[1:], "pings_ms": [round(value, 2) for value in pings],
    }  # fmt: skip


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--echo", action="store_true")
    parser.add_argument("--crowd", nargs=6)
    parser.add_argument("--clients", default="10,50,100")
    parser.add_argument("--protections", default="none,equivocation,both")
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--options", default="{}", help="JSON of further options, as cell_bytes or udp")
    parser.add_argument("--out", default="latency.json")
    arguments = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if arguments.echo:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
        asyncio.run(echo())
    elif arguments.crowd:
        folder, first, last, talkers, seconds, delay = arguments.crowd
        work = crowd(Path(folder), int(first), int(last), int(talkers), float(seconds), 27100, float(delay))
        print(json.dumps(uvloop.run(work)))
    else:
        rows = []
        for clients in map(int, arguments.clients.split(",")):
            for protection in arguments.protections.split(","):
                row = measure(clients, protection, arguments.seconds, **json.loads(arguments.options))
                rows.append(row)
                print(
                    {
                        key: round(value, 2) if isinstance(value, float) else value
                        for key, value in row.items()
                        if key != "pings_ms"
                    },
                    flush=True,
                )
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / arguments.out).write_text(json.dumps(rows) + "\n")


if __name__ == "__main__":
    main()
