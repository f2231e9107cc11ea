"""All roles in one process on a virtual clock: deterministic for a seed, with delay, loss, joins, leaves and crashes.

With `cost="measured"` each event costs its role the processor time that it really took, on a machine of its own. Such
times are simulated, and the results are marked so.
"""

from __future__ import annotations

import heapq
import itertools
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from prifi.client import Client
from prifi.errors import PrifiError
from prifi.identity import RELAY, Identity, Roster, generate
from prifi.messages import Message, decode, encode
from prifi.outputs import Arrived, Close, Halt, Note, Output, Send
from prifi.parameters import Parameters
from prifi.relay import Relay
from prifi.streams import Streams
from prifi.trustee import Trustee

#: Shortest time between two ticks of one role, seconds; the loop of a real driver takes as long.
TICK_S = 0.001
#: Time after which a lost message arrives all the same, seconds: the resending of a reliable link.
RESEND_S = 0.2

#: Kinds of messages of which one in MEASURED is measured; reading the processor's clock costs more than they do.
BULK, MEASURED = ("Go", "Cell"), 5


class Role(Protocol):
    """What a driver needs of a role."""

    def connected(self, peer: str, now: float) -> list[Output]: ...  # noqa: D102
    def disconnected(self, peer: str, now: float) -> list[Output]: ...  # noqa: D102
    def handle(self, peer: str, message: Message, now: float) -> list[Output]: ...  # noqa: D102
    def tick(self, now: float) -> list[Output]: ...  # noqa: D102
    def deadline(self, now: float) -> float | None: ...  # noqa: D102


@dataclass(slots=True)
class _Node:
    role: Role
    free_at: float = 0.0
    tick_at: float | None = None
    alive: bool = True
    generation: int = 0
    last_arrival: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Told:
    """A note of a role, with its time."""

    at: float
    role: str
    kind: str
    text: str
    party: str


@dataclass(frozen=True, slots=True)
class Conditions:
    """What the simulated network and machines are like.

    Attributes:
        delay_s: One-way delay of every link.
        loss: Probability that a message is lost once and comes RESEND_S later.
        cost: "none", or "measured" for the processor time that each event takes.
    """

    delay_s: float = 0.005
    loss: float = 0.0
    cost: Literal["none", "measured"] = "none"


Tamper = Callable[[str, str, Message], Message | None]


class Simulation:
    """A network of n clients, m trustees and a relay on a virtual clock.

    Args:
        clients: Number of clients.
        trustees: Number of trustees.
        parameters: Settings of the network.
        seed: Seeds keys, schedules and losses.
        conditions: Delay, loss, rate and cost.
        relay: Class of the relay.
        others: Classes of single members by name, for adversaries.
    """

    def __init__(
        self,
        clients: int,
        trustees: int,
        parameters: Parameters,
        *,
        seed: int = 0,
        conditions: Conditions = Conditions(),
        relay: type[Relay] = Relay,
        others: dict[str, Callable[..., Role]] | None = None,
    ) -> None:
        self.now = 0.0
        self.parameters = parameters.checked()
        self.notes: list[Told] = []
        self.halted: dict[str, str] = {}
        self.tamper: Tamper | None = None
        self.on_stream: dict[str, Callable[[Arrived], None]] = {}
        self.cpu: dict[str, float] = {}
        self._costs: dict[str, tuple[int, float]] = {}
        self.sent = Counter[str]()  # messages by kind
        self.sent_bytes = Counter[str]()  # bytes by member
        self._random = random.Random(seed)
        self._delay, self._loss = conditions.delay_s, conditions.loss
        self._cost = conditions.cost
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = itertools.count()
        self._first_epoch = 0
        self._make: dict[str, Callable[..., Role]] = {"relay": relay, **(others or {})}
        names = [RELAY, *(f"trustee-{j}" for j in range(trustees)), *(f"client-{i}" for i in range(clients))]
        self._seeds: dict[str, bytes] = {}
        keys = {}
        for name in names:
            identity, self._seeds[name] = generate(name, self._random.randbytes)
            keys[name] = identity.public
        self.roster = Roster(keys, tuple(names[1 : trustees + 1]), tuple(names[trustees + 1 :]))
        self._nodes: dict[str, _Node] = {}
        for name in names:
            self._nodes[name] = _Node(self._new_role(name))
        for name in names[1:]:
            self._at(0.0, lambda name=name: self._link(name))  # type: ignore[misc]

    # What a test or a study does.

    @property
    def relay(self) -> Relay:
        """The relay."""
        role = self._nodes[RELAY].role
        assert isinstance(role, Relay)
        return role

    def client(self, index: int) -> Client:
        """Return a client."""
        role = self._nodes[f"client-{index}"].role
        assert isinstance(role, Client)
        return role

    def trustee(self, index: int) -> Trustee:
        """Return a trustee."""
        role = self._nodes[f"trustee-{index}"].role
        assert isinstance(role, Trustee)
        return role

    def run(self, seconds: float, until: Callable[[], bool] | None = None) -> bool:
        """Advance the clock by at most so many seconds; return whether `until` came true."""
        end = self.now + seconds
        while self._queue and self._queue[0][0] <= end:
            at, _, event = heapq.heappop(self._queue)
            self.now = max(self.now, at)
            event()
            if until is not None and until():
                return True
        if until is None or not self._queue:
            self.now = max(self.now, end)
        return until is not None and until()

    def running(self, clients: int = 0) -> Callable[[], bool]:
        """Return a condition: an epoch runs, with so many clients if a number is given."""
        return lambda: (
            self.relay.rounds is not None
            and self.relay.rounds.completed > 0
            and (not clients or len(self.relay.rounds.session.clients) == clients)
        )

    def told(self, kind: str, party: str = "") -> Callable[[], bool]:
        """Return a condition: a role has told this kind of note, of this party if one is given."""
        return lambda: any(note.kind == kind and party in ("", note.party) for note in self.notes)

    def crash(self, name: str) -> None:
        """End a member without a word; its link breaks."""
        self.silence(name)
        self._at(self.now + self._delay, lambda: self._unlink(name))

    def silence(self, name: str) -> None:
        """End a member without a word; its link stays."""
        node = self._nodes[name]
        node.alive = False
        node.generation += 1

    def restart(self, name: str) -> None:
        """Start a member again with the key file that it had."""
        node = self._nodes[name]
        generation = node.generation + 1
        self._nodes[name] = _Node(self._new_role(name), generation=generation, free_at=self.now)
        self._at(self.now, lambda: self._link(name))

    # The machinery.

    def _new_role(self, name: str) -> Role:
        identity = Identity(name, self._seeds[name])
        usual: Callable[..., Role] = Client if name.startswith("client") else Trustee
        make = self._make.get(name, usual)
        chance = random.Random(self._random.random()).randbytes
        if name == RELAY:
            self._first_epoch += 1000
            return make(identity, self.roster, self.parameters, entropy=chance, first_epoch=self._first_epoch)
        return make(identity, self.roster, self.parameters, entropy=chance)

    def _at(self, when: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (when, next(self._serial), event))

    def _link(self, name: str) -> None:
        self._do(name, lambda role: role.connected(RELAY, self.now))
        self._do(RELAY, lambda role: role.connected(name, self.now))

    def _unlink(self, name: str) -> None:
        self._do(RELAY, lambda role: role.disconnected(name, self.now))
        self._do(name, lambda role: role.disconnected(RELAY, self.now))

    def _do(self, name: str, event: Callable[[Role], list[Output]], kind: str = "") -> None:
        node = self._nodes[name]
        if not node.alive:
            return
        if self._cost == "measured" and node.free_at > self.now:
            self._at(node.free_at, lambda: self._do(name, event, kind))
            return
        key = f"{name.split('-', maxsplit=1)[0]} {kind}"
        count, known = self._costs.get(key, (0, 0.0))
        measured = self._cost == "measured" and (kind not in BULK or count % MEASURED == 0)
        started = time.process_time() if measured else 0.0
        try:
            outputs = event(node.role)
        except PrifiError as error:
            outputs = [Halt(str(error))]
        if self._cost == "measured":
            spent = time.process_time() - started if measured else known
            self._costs[key] = (count + 1, spent)
            self.cpu[name] = self.cpu.get(name, 0.0) + spent
            node.free_at = self.now + spent
        for output in outputs:
            self._carry_out(name, node, output)
        self._schedule_tick(name)

    def _carry_out(self, name: str, node: _Node, output: Output) -> None:
        match output:
            case Send():
                for to in output.to:
                    self._send(name, node, to, output)
            case Note():
                self.notes.append(Told(self.now, name, output.kind, output.text, output.party))
            case Arrived():
                if name in self.on_stream:
                    self.on_stream[name](output)
            case Close():
                self._at(self.now + self._delay, lambda: self._unlink(output.peer))
            case Halt():
                self.halted[name] = output.reason
                node.alive = False

    def _send(self, name: str, node: _Node, to: str, output: Send) -> None:
        message = self.tamper(name, to, output.message) if self.tamper else output.message
        if message is None or to not in self._nodes:
            return
        data = encode(message)
        kind = type(message).__name__
        self.sent[kind] += 1
        self.sent_bytes[name] += len(data)
        leaves = max(self.now, node.free_at if self._cost == "measured" else 0.0) + output.after
        arrives = leaves + self._delay + (RESEND_S if self._random.random() < self._loss else 0.0)
        arrives = max(arrives, node.last_arrival.get(to, 0.0))  # links keep the order
        node.last_arrival[to] = arrives
        generations = (node.generation, self._nodes[to].generation)

        def arrive() -> None:
            if generations == (node.generation, self._nodes[to].generation):
                self._do(to, lambda role: role.handle(name, decode(data), self.now), kind)

        self._at(arrives, arrive)

    def _schedule_tick(self, name: str) -> None:
        node = self._nodes[name]
        deadline = node.role.deadline(self.now) if node.alive else None
        if deadline is None:
            return
        when = max(deadline, self.now + TICK_S)
        if node.tick_at is not None and self.now < node.tick_at <= when:
            return
        node.tick_at = when

        def tick() -> None:
            current = self._nodes[name]
            if current is node and node.tick_at == when:
                node.tick_at = None
                self._do(name, lambda role: role.tick(self.now))

        self._at(when, tick)


def echo_exit(simulation: Simulation) -> None:
    """Make the relay's exit answer every stream with what was sent into it."""
    streams: Streams = simulation.relay.streams

    def take(arrived: Arrived) -> None:
        event = arrived.event
        if event.kind == "open":
            streams.answer(event.stream)
        elif event.kind == "data":
            streams.consumed(event.stream, len(event.data))
            streams.write(event.stream, event.data)
        elif event.kind == "finished":
            streams.finish(event.stream)

    simulation.on_stream[RELAY] = take
