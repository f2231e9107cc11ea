"""Figures in simulated time: 5 ms one-way delay, each role on a processor of its own whose speed is this machine's.

Latency and rounds by number of clients, set-up and blame times, and how soon the service is back after a crash. Every
event costs its role the processor time that it took here (`cost="measured"`). Writes `results/simulated.json`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

from prifi.outputs import Arrived
from prifi.parameters import Parameters
from prifi.simulate import Conditions, Simulation, echo_exit
from transfer import rating

RESULTS = Path(__file__).parent / "results"


class Pinger:
    """A client that sends 32 bytes to the echo and waits for them, again and again."""

    def __init__(self, simulation: Simulation, index: int) -> None:
        self.times: list[float] = []
        self._simulation = simulation
        self._streams = simulation.client(index).streams
        self._sent = 0.0
        self._got = 0
        self.tag = self._streams.open("echo", 7)
        simulation.on_stream[f"client-{index}"] = self.take

    def take(self, arrived: Arrived) -> None:
        """Take an echo and send the next ping."""
        event = arrived.event
        if event.kind == "data":
            self._streams.consumed(self.tag, len(event.data))
            self._got += len(event.data)
            if self._got < 32:
                return
            self._got = 0
            self.times.append(1000 * (self._simulation.now - self._sent))
        if event.kind in ("opened", "data"):
            self._sent = self._simulation.now
            self._streams.write(self.tag, bytes(32))


def measure(clients: int, protection: str, seconds: float, trustees: int = 3, **changes: Any) -> dict[str, Any]:
    """Run one network; return latency, rounds, CPU a round, and how long the set-up took."""
    values: dict[str, Any] = {
        "absent_s": 60.0,
        "resend_s": 20.0,
        "setup_s": 600.0,
        "gather_s": 0.1,
        "protection": protection,
        "interval_s": 0.005,
        **changes,
    }
    simulation = Simulation(clients, trustees, Parameters(**values), conditions=Conditions(cost="measured"))
    echo_exit(simulation)
    began = time.time()
    assert simulation.run(900, simulation.running(clients)), simulation.notes[-3:]
    ready = simulation.now - values["gather_s"]
    pingers = [Pinger(simulation, index) for index in range(5)]
    simulation.run(1.0)
    for pinger in pingers:
        pinger.times.clear()
    before, rounds, at = dict(simulation.cpu), simulation.relay.status.rounds, simulation.now
    simulation.run(seconds)
    done = simulation.relay.status.rounds - rounds
    pings = sorted(value for pinger in pingers for value in pinger.times)
    spent = {name: 1000 * (value - before.get(name, 0.0)) / max(done, 1) for name, value in simulation.cpu.items()}
    return {
        "simulated": True, "clients": clients, "trustees": trustees, "protection": protection, "changes": changes,
        "setup_s": ready, "rounds_per_s": done / (simulation.now - at), "pings": len(pings),
        "median_ms": statistics.median(pings or [0.0]), "p95_ms": (pings or [0.0])[int(0.95 * len(pings))],
        "relay_cpu_ms_per_round": spent["relay"], "trustee_cpu_ms_per_round": spent["trustee-0"],
        "client_cpu_ms_per_round": statistics.fmean(spent[f"client-{i}"] for i in range(clients)),
        "real_s": time.time() - began,
    }  # fmt: skip


def churn(clients: int, events: int = 10) -> dict[str, Any]:
    """Crash, restart and add clients; return how long no round was completed after each crash and each join."""
    parameters = Parameters(absent_s=30.0, resend_s=10.0, setup_s=120.0, gather_s=0.2)
    simulation = Simulation(clients, 3, parameters, conditions=Conditions(cost="measured"))
    echo_exit(simulation)
    assert simulation.run(100, simulation.running(clients))
    Pinger(simulation, 0)
    back, joined = [], []
    for event in range(events):
        name = f"client-{1 + event}"
        simulation.run(2.0)
        at = simulation.now
        simulation.crash(name)
        simulation.run(60, simulation.running(clients - 1))
        back.append(simulation.now - at)
        simulation.run(1.0)
        at = simulation.now
        simulation.restart(name)
        simulation.run(60, simulation.running(clients))
        joined.append(simulation.now - at)
    return {
        "simulated": True,
        "clients": clients,
        "events": 2 * events,
        "back_after_crash_s": back,
        "in_the_set_after_join_s": joined,
    }


def voice(clients: int, seconds: float = 10.0) -> dict[str, Any]:
    """Send 50 packets of 160 bytes a second from one client to the exit; return one-way delays and the E-model's R."""
    simulation = Simulation(clients, 3, Parameters(), conditions=Conditions(cost="measured"))
    sent: list[float] = []
    delays: list[float] = []
    streams, exit_streams, got = simulation.client(0).streams, simulation.relay.streams, [0]

    def at_exit(arrived: Arrived) -> None:
        event = arrived.event
        if event.kind == "open":
            exit_streams.answer(event.stream)
        elif event.kind == "data":
            exit_streams.consumed(event.stream, len(event.data))
            got[0] += len(event.data)
            while len(delays) < got[0] // 160:
                delays.append(simulation.now - sent[len(delays)])

    simulation.on_stream["relay"] = at_exit
    assert simulation.run(60, simulation.running(clients))
    tag = streams.open("sink", 9)
    simulation.run(1.0)
    for _ in range(int(50 * seconds)):
        sent.append(simulation.now)
        streams.write(tag, bytes(160))
        simulation.run(0.02)
    simulation.run(1.0)
    return {"simulated": True, "clients": clients, **rating(delays)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", default="10,50,100")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--churn", default="")
    parser.add_argument("--protections", default="none,equivocation,both")
    parser.add_argument("--trustees", type=int, default=3)
    parser.add_argument("--changes", default="{}")
    parser.add_argument("--out", default="simulated.json")
    parser.add_argument("--voice", type=int)
    arguments = parser.parse_args()
    rows = []
    if arguments.voice:
        rows.append(voice(arguments.voice))
        print(rows[-1])
        (RESULTS / "voice.json").write_text(json.dumps(rows) + "\n")
        return
    for clients in map(int, filter(None, arguments.churn.split(","))):
        rows.append(churn(clients))
        print(rows[-1], flush=True)
    if not arguments.churn:
        for clients in map(int, arguments.clients.split(",")):
            for protection in arguments.protections.split(","):
                changes = json.loads(arguments.changes)
                rows.append(measure(clients, protection, arguments.seconds, arguments.trustees, **changes))
                print(rows[-1], flush=True)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / arguments.out).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
