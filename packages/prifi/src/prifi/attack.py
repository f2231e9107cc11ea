"""Attacks as experiments: each returns an outcome with its protection on, and another one with it off.

All but `listen` run on the virtual clock with the real roles; `listen` captures a lab's LAN. An outcome is a dictionary
for JSON: the attack, its settings, trials, in how many the attacker succeeded, and who was named.
"""

from __future__ import annotations

import random
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from prifi import adversaries, cells, listen
from prifi.client import Client
from prifi.errors import BadConfig, LinkLost
from prifi.identity import RELAY
from prifi.lab import Lab, Plan
from prifi.links import Channel
from prifi.messages import Cell, Go, Message
from prifi.outputs import Arrived, Send
from prifi.parameters import Parameters
from prifi.relay import Relay
from prifi.simulate import Conditions, Simulation, echo_exit
from prifi.trustee import Trustee

#: Parties that a disruption may come from.
PARTIES = ("client", "trustee", "relay")
#: Ways in which a trustee forges its hop.
FORGERIES = ("foreign", "base", "replayed", "duplicate")
#: Fewest trials of `listen`: five folds of two.
FEWEST_GUESSES = 10


def quick(**changes: Any) -> Parameters:
    """Return settings of a small network with short proofs and times."""
    values: dict[str, Any] = {
        "cell_bytes": 200, "down_bytes": 300, "shuffle_rounds": 8, "minimum_set": 2, "absent_s": 2.0, "resend_s": 0.5,
        "gather_s": 0.02, **changes,
    }  # fmt: skip
    return Parameters(**values)


def network(clients: int, trustees: int, parameters: Parameters, seed: int, **options: Any) -> Simulation:
    """Return a simulation with an echo at its exit, run until its first epoch has begun or a role has stopped."""
    simulation = Simulation(clients, trustees, parameters, seed=seed, **options)
    echo_exit(simulation)
    simulation.run(30, lambda: simulation.running(clients)() or bool(simulation.halted))
    return simulation


def talk(simulation: Simulation, index: int, data: bytes) -> None:
    """Let a client send bytes to the echo at the exit, and send back whatever returns, for ever."""
    streams = simulation.client(index).streams
    tag = streams.open("target.example", 80)

    def take(arrived: Arrived) -> None:
        event = arrived.event
        if event.kind == "opened":
            streams.write(tag, data)
        elif event.kind == "data":
            streams.consumed(tag, len(event.data))
            streams.write(tag, event.data)

    simulation.on_stream[f"client-{index}"] = take


def named(simulation: Simulation, ignore: str = "") -> dict[str, str]:
    """Return who was named as guilty, with the outcome, by any role but the ignored one; absent is not guilty."""
    return {note.party: note.text for note in simulation.notes if note.kind == "blame" and note.role != ignore}


def adversary(base: type, seed: int = 0, **changes: Any) -> Any:
    """Return a class of adversary with its own chance and settings."""
    return type(base.__name__, (base,), {**changes, "chance": random.Random(seed)})


def disruption(
    party: str,
    seed: int,
    protected: bool,
    clients: int,
    trustees: int,
    conditions: Conditions | None = None,
    **how: Any,
) -> dict[str, Any]:
    """Let one party spoil rounds until somebody is named; return who, after how long, and how many spoiled rounds.

    Args:
        party: "client", "trustee" or "relay".
        seed: Seed of the run.
        protected: Whether cells are signed and blame is on.
        clients: Number of clients.
        trustees: Number of trustees.
        conditions: Delay, loss and cost; 5 ms and no cost unless given.
        how: Attributes of the adversary, such as spoil="scalar".
    """
    how = {"rate": 0.3, "after": 5, **how}
    culprit, options = RELAY, dict[str, Any]()
    if party == "relay":
        rounds = adversary(adversaries.FlippingRounds, seed, rate=how["rate"], after=how["after"])
        options["relay"] = adversary(Relay, seed, rounds_class=rounds)
    else:
        culprit = f"{party}-{seed % (clients if party == 'client' else trustees)}"
        base = adversaries.Disruptor if party == "client" else adversaries.DisruptingTrustee
        options["others"] = {culprit: adversary(base, seed, **how)}
    patience = {"absent_s": 30.0, "resend_s": 10.0} if conditions else {}
    parameters = quick(protection="both" if protected else "equivocation", **patience)
    simulation = network(clients, trustees, parameters, seed, conditions=conditions or Conditions(), **options)
    talker = (seed + 1) % clients  # a client that is not the disruptor
    talk(simulation, talker, bytes(1000))
    began = simulation.now
    simulation.run(
        60 if protected else 3,
        lambda: simulation.told("blame")() or simulation.told("absent", culprit)(),
    )
    took = simulation.now - began
    simulation.run(0.5)
    return {
        "party": party, "culprit": culprit, "named": named(simulation, RELAY if party == "relay" else culprit),
        "seconds": took, "spoiled": simulation.relay.status.failed,
        "hunted": any(note.kind == "hunt" for note in simulation.notes),
    }  # fmt: skip


def flip(protected: bool, trials: int, clients: int = 5, trustees: int = 3, spoil: str = "bit") -> dict[str, Any]:
    """A client, a trustee or the relay flips bits of cells (or spoils scalars); blame must name it, and nobody else."""
    rows = []
    for trial in range(trials):
        party = PARTIES[trial % len(PARTIES)] if spoil == "bit" else PARTIES[trial % 2]
        rows.append(disruption(party, trial, protected, clients, trustees, spoil=spoil))
    right = [row for row in rows if set(row["named"]) == {row["culprit"]}]
    return {
        "spoil": spoil, "succeeded": trials - len(right), "named": len(right),
        "honest_named": sum(bool(set(row["named"]) - {row["culprit"]}) for row in rows),
        "hunts": sum(row["hunted"] for row in rows),
        "median_seconds": sorted(row["seconds"] for row in rows)[trials // 2],
        "median_spoiled_rounds": sorted(row["spoiled"] for row in rows)[trials // 2],
    }  # fmt: skip


def equivocate(protected: bool, trials: int, clients: int = 10, trustees: int = 3) -> dict[str, Any]:
    """The relay tells each client something else and waits for the answer that names the sender."""
    succeeded = undecodable = blamed = 0
    for trial in range(trials):
        chance = random.Random(trial)
        sender = chance.randrange(clients)
        parameters = quick(protection="both" if protected else "none", absent_s=1.0)
        simulation = network(clients, trustees, parameters, trial, relay=adversaries.EquivocatingRelay)
        streams, seen = simulation.relay.streams, list[int]()

        def take(arrived: Arrived, streams: Any = streams, seen: list[int] = seen) -> None:
            event = arrived.event
            if event.kind == "open":
                streams.answer(event.stream)
                streams.write(event.stream, adversaries.PLACEHOLDER)
            elif event.kind == "data" and b"<token:" in event.data:
                seen.append(int(event.data.split(b"<token:")[1][:4]) - 1)

        simulation.on_stream[RELAY] = take
        before = simulation.relay.status.failed
        talk(simulation, sender, b"hello")
        simulation.run(2.0, lambda seen=seen: bool(seen))  # type: ignore[misc]
        undecodable += simulation.relay.status.failed > before and not seen
        guess = seen[0] if seen else chance.randrange(clients)
        succeeded += guess == sender
        blamed += set(named(simulation)) == {RELAY}
    return {
        "clients": clients, "succeeded": succeeded, "undecodable": undecodable, "relay_named": blamed,
        "chance": 1 / clients,
    }  # fmt: skip


def drop(protected: bool, trials: int, clients: int = 5, trustees: int = 3) -> dict[str, Any]:
    """A member goes silent with its link up; with the time-out off, the service hangs."""
    rows = []
    for trial in range(trials):
        simulation = network(clients, trustees, quick(absent_s=2.0 if protected else 3600.0), trial)
        member = f"client-{trial % clients}" if trial % 2 == 0 else f"trustee-{trial % trustees}"
        began = simulation.now
        simulation.silence(member)
        told = simulation.run(30, simulation.told("absent", member))
        took = simulation.now - began if told else None
        back = member.startswith("trustee") or simulation.run(10, simulation.running(clients - 1))
        rows.append((took, told and back, len(named(simulation))))
    noticed = [took for took, _, _ in rows if took is not None]
    return {
        "succeeded": trials - len(noticed), "noticed": len(noticed), "longest_notice_s": max(noticed, default=None),
        "service_back": sum(back for _, back, _ in rows), "honest_named": sum(count for _, _, count in rows),
    }  # fmt: skip


class TrustingTrustee(Trustee):
    """A trustee that does not verify hops: what the attack needs to succeed."""

    def _take_proof(self, epoch: Any, message: Any) -> Any:
        epoch.verified.add(message.place)
        return self._sign_if_verified(epoch, epoch.known())


def forge_shuffle(protected: bool, trials: int, clients: int = 5, trustees: int = 3) -> dict[str, Any]:
    """A trustee forges its hop; every other trustee must refuse it with its author's name."""
    started = right = honest = 0
    for trial in range(trials):
        forger = f"trustee-{trial % trustees}"
        forgery = FORGERIES[trial // trustees % 4]
        others = {} if protected else {f"trustee-{j}": TrustingTrustee for j in range(trustees)}
        others[forger] = adversary(adversaries.ForgingTrustee, trial, forgery=forgery)
        simulation = network(clients, trustees, quick(shuffle_rounds=40), trial, others=others)
        started += simulation.sent["Start"] > 0
        right += set(named(simulation, forger)) == {forger}
        honest += bool(set(named(simulation, forger)) - {forger})
    return {"succeeded": started, "named": right, "honest_named": honest}


class UnguardedClient(Client):
    """A client without the order of rounds and the pads' guard: what a replay needs to succeed."""

    def _go(self, go: Go, now: float) -> Any:
        epoch = self._running
        if epoch is not None and go.number < epoch.next:
            epoch.next, epoch.pads._last = go.number, go.number - 1
            epoch.history = epoch.rounds[go.number - 1].history
        return super()._go(go, now)


def replay(protected: bool, trials: int, clients: int = 4, trustees: int = 2) -> dict[str, Any]:
    """The relay asks for a round again with other data, to get two cells under one pad; and a record is sent twice."""
    pairs = records = 0
    for trial in range(trials):
        simulation = network(
            clients, trustees, quick(), trial, others={} if protected else {"client-0": UnguardedClient}
        )
        gos: list[Go] = []

        def watch(_: str, to: str, message: Message, gos: list[Go] = gos) -> Message:
            if isinstance(message, Go) and to == "client-0":
                gos.append(message)
            return message

        simulation.tamper = watch
        talk(simulation, 0, b"secret")
        simulation.run(1.0)
        client, rounds = simulation.client(0), simulation.relay.rounds
        epoch = client._running
        assert rounds is not None and epoch is not None
        go = next(go for go in reversed(gos) if go.slot in epoch.slots and go.kind == 0)
        first, before = epoch.rounds[go.number], epoch.rounds[go.number - 1].history
        changed = msgspec.structs.replace(go, down=bytes(len(go.down)))
        statement = cells.history_statement(rounds.session.id, go.number, cells.next_history(before, changed))
        changed = msgspec.structs.replace(changed, signature=simulation.relay.identity.sign(statement))
        outputs = client.handle(RELAY, changed, simulation.now)
        second = [one.message for one in outputs if isinstance(one, Send) and isinstance(one.message, Cell)]
        if second and second[0].body != first.cell.body:
            again = epoch.rounds[go.number].body
            mixed = cells.combine((second[0].body, first.cell.body), len(again))
            pairs += mixed == cells.combine((first.body, again), len(again))  # x₁ ⊕ x₂ without any pad
        records += _record_twice()
    return {"succeeded": pairs, "records_taken_twice": records}


def _record_twice() -> bool:
    """Return whether a link takes a record twice."""
    left, right = Channel("a", bytes(32), bytes(32)), Channel("b", bytes(32), bytes(32))
    record = left.seal(b"cell")
    right.open(record)
    try:
        right.open(record)
    except LinkLost:
        return False
    return True


def eavesdrop(protected: bool, trials: int, clients: int = 5, trustees: int = 3) -> dict[str, Any]:
    """Capture a lab's LAN while one client at a time, drawn at random, fetches; a classifier guesses which.

    Unprotected, all clients are broken: they send by themselves only when they have data.
    """
    if trials < FEWEST_GUESSES:
        raise BadConfig(f"listen needs at least {FEWEST_GUESSES} trials: the classifier learns from most of them")
    chance = random.Random(trials)
    misbehave = {} if protected else {f"client-{index}": "broken" for index in range(clients)}
    parameters = {"linger_s": 0.1, "resend_s": 1.0 if protected else 0.1, "offset_s": 0.04, "interval_s": 0.02}
    with tempfile.TemporaryDirectory() as name:
        web, path = Path(name) / "web", Path(name) / "lan.pcap"
        web.mkdir()
        (web / "page").write_bytes(random.Random(1).randbytes(300))
        realtime = shutil.which("chrt") is not None
        plan = Plan(clients, trustees, delay_ms=1.0, misbehave=misbehave, parameters=parameters, realtime=realtime)
        with Lab(plan, web) as lab:
            lab.wait()
            capture = lab.capture(path)
            windows, active = [], []
            for _ in range(trials):
                index = chance.randrange(clients)
                start = time.time()
                fetch = lab.curl(index, "page", seconds=10)
                fetch.communicate()
                windows.append((start, time.time()))
                active.append(index)
                time.sleep(chance.random() * 0.05)
            capture.send_signal(signal.SIGINT)
            capture.wait(20)
            addresses = [lab.address(f"client-{index}") for index in range(clients)]
            relay = lab.address(RELAY)
            packets = listen.read_capture(path)
    guess = listen.guess_active(listen.features(packets, relay, addresses, windows), active)
    base = max(active.count(index) for index in range(clients)) / trials
    return {
        "clients": clients, "right": guess.right, "accuracy": guess.accuracy, "interval": [guess.low, guess.high],
        "chance": 1 / clients, "most_frequent": base, "packets": len(packets.at),
        "succeeded": int(not guess.blind and guess.low > base),
    }  # fmt: skip


ATTACKS: dict[str, Callable[..., dict[str, Any]]] = {
    "flip": flip,
    "equivocate": equivocate,
    "drop": drop,
    "listen": eavesdrop,
    "forge-shuffle": forge_shuffle,
    "replay": replay,
}


def run(name: str, protected: bool, trials: int, **options: Any) -> dict[str, Any]:
    """Run an attack by name.

    Raises:
        BadConfig: There is no such attack.
    """
    if name not in ATTACKS:
        raise BadConfig(f"attacks are {', '.join(ATTACKS)}")
    outcome = ATTACKS[name](protected, trials, **options)
    return {"attack": name, "protected": protected, "trials": trials, **outcome}
