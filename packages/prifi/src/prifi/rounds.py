"""The relay's side of a running epoch: broadcasts, a window of open rounds, trustee buffers, open and closed slots.

A machine without I/O. Rounds are decoded in order. What does not open is handed to `Relay`, which asks who spoiled it.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field

import msgspec

from prifi import cells
from prifi.errors import BadMessage, BadProof
from prifi.identity import Identity
from prifi.messages import Ahead, Cell, Echo, Flow, Garbled, Go, Kind, Resend
from prifi.outputs import Arrived, Note, Output, Send
from prifi.session import Session
from prifi.streams import Streams

#: Completed rounds that the relay keeps as evidence.
REMEMBERED = 128
#: Echoes in one broadcast; more wait for the next one.
MOST_ECHOES = 32
#: Data rounds between two reservation rounds, at least, so that maps take little of the time.
ROUNDS_PER_MAP = 8


@dataclass(slots=True)
class Round:
    """One round, open or completed, with all that was signed about it."""

    go: Go
    before: bytes
    history: bytes
    opened_at: float
    cells: dict[str, Cell] = field(default_factory=dict)
    aheads: dict[str, Ahead] = field(default_factory=dict)
    body: bytes = b""
    asked_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Opened:
    """A completed round and what it held."""

    round: Round
    use: cells.Use
    repeat: int
    content: bytes


@dataclass(slots=True)
class Rounds:
    """The rounds of one epoch.

    Attributes:
        session: The epoch.
        streams: The exit's side of the streams.
        opened: Completed rounds that opened with an accusation, an answer to one, or a wish for a repeat.
        garbled: Completed rounds that did not open.
        accuse: Rounds whose owners are to be asked for an accusation.
        asked: Rounds whose owners have been asked.
    """

    identity: Identity
    session: Session
    streams: Streams
    history: bytes = b""
    next: int = 0
    next_at: float = 0.0
    open: OrderedDict[int, Round] = field(default_factory=OrderedDict)
    done: OrderedDict[int, Round] = field(default_factory=OrderedDict)
    opened: deque[Opened] = field(default_factory=deque)
    garbled: deque[Round] = field(default_factory=deque)
    accuse: deque[int] = field(default_factory=deque)
    asked: set[int] = field(default_factory=set)
    completed: int = 0
    failed: int = 0
    last_duration_s: float = 0.0
    open_slots: list[int] = field(default_factory=list)
    _turn: int = 0
    _since_map: int = 0
    _map_open: bool = False
    _aheads: dict[str, OrderedDict[int, Ahead]] = field(default_factory=dict)
    _allowed: dict[str, int] = field(default_factory=dict)  # ciphertexts that a trustee may have sent
    _echoes: deque[Echo] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.history = cells.first_history(self.session.id)
        self._aheads = {name: OrderedDict() for name in self.session.trustees}
        if self.session.hunt:
            self.open_slots = list(range(self.session.slots))
        self.streams.rewind()

    # Events.

    def take_ahead(self, peer: str, ahead: Ahead) -> list[Output]:
        """Keep a trustee's ciphertext; stop the trustee when its buffer is nearly full."""
        buffer = self._aheads.get(peer)
        if buffer is None or ahead.name != peer or len(ahead.body) != self.session.parameters.cell_bytes:
            raise BadMessage("a ciphertext of another party or size")
        last = next(reversed(buffer)) if buffer else max(self.next - 1, -1)
        if ahead.number != last + 1 or len(ahead.sums) != self.session.scalars:
            raise BadMessage(f"ciphertext {ahead.number} is out of order")
        buffer[ahead.number] = ahead
        limit = self.session.parameters.ahead
        if len(buffer) > limit:
            raise BadMessage("a trustee does not stop")
        if len(buffer) == self.session.parameters.ahead_most:
            return [Send((peer,), Flow(self.session.epoch, False))]
        return self._resume(peer)

    def _resume(self, trustee: str) -> list[Output]:
        """Let a trustee go on once its buffer has drained and everything that it was allowed has come."""
        parameters, buffer = self.session.parameters, self._aheads[trustee]
        received = self.next + len(buffer)
        allowed = self._allowed.setdefault(trustee, parameters.ahead_most)
        if len(buffer) > parameters.ahead_least or received < allowed:
            return []
        self._allowed[trustee] = allowed + parameters.ahead_most - parameters.ahead_least
        return [Send((trustee,), Flow(self.session.epoch, True))]

    def take_cell(self, peer: str, cell: Cell, now: float) -> list[Output]:
        """Keep a client's cell, and decode every round that is complete, in order."""
        current = self.open.get(cell.number)
        if current is None or peer in current.cells:
            return []  # late or resent; the round is over
        carries, bound = current.go.kind != Kind.MAP, self.session.parameters.bound
        length = self.session.parameters.cell_bytes if carries else 0
        count = self.session.scalars if not carries else 1 if bound else 0
        if cell.name != peer or len(cell.body) != length or len(cell.masked) != count:
            raise BadMessage(f"{peer} sent a cell of another client or size")
        current.cells[peer] = cell
        outputs: list[Output] = []
        while self.open:
            first = next(iter(self.open.values()))
            if len(first.cells) < len(self.session.clients):
                break
            self.open.popitem(last=False)
            outputs += self._complete(first, now)
        return outputs

    def advance(self, now: float) -> list[Output]:
        """Open rounds as far as window, buffers and pace allow; ask for missing cells."""
        outputs = self._ask_again(now)
        while now >= self.next_at and self._may_open(now):
            outputs += self._open(now)
        return outputs

    def silent(self, now: float) -> list[str]:
        """Return clients whose cell has been missing for too long."""
        if not self.open:
            return []
        first = next(iter(self.open.values()))
        if now - first.opened_at < self.session.parameters.absent_s:
            return []
        return [name for name in self.session.clients if name not in first.cells]

    def deadline(self, now: float) -> float:
        """Return when `advance` is wanted next."""
        parameters = self.session.parameters
        ready = len(self.open) < parameters.window and all(self.next in buffer for buffer in self._aheads.values())
        if not ready or self._map_open:
            return now + parameters.resend_s / 2  # to ask for missing cells; an arrival advances the rounds at once
        if self.accuse or self.open_slots:
            return max(self.next_at, now)
        return max(self.next_at + parameters.sleep_s - parameters.interval_s, now)

    # Opening rounds.

    def _may_open(self, now: float) -> bool:
        if len(self.open) >= self.session.parameters.window:
            return False
        if not all(self.next in buffer for buffer in self._aheads.values()):
            return False
        if self.accuse or self.open_slots:
            return True
        # All slots are closed. Only the relay's clock opens a reservation round, whatever arrives from anywhere.
        quiet = self.next_at + self.session.parameters.sleep_s - self.session.parameters.interval_s
        return not self._map_open and (now >= quiet or self.next == 0)

    def _open(self, now: float) -> list[Output]:
        parameters = self.session.parameters
        kind, slot, garbled = self._choose()
        down = self.streams.pull(parameters.down_bytes)
        echoes = tuple(self._echoes.popleft() for _ in range(min(len(self._echoes), MOST_ECHOES)))
        go = Go(self.session.epoch, self.next, kind, slot, down, echoes, garbled)
        before, self.history = self.history, cells.next_history(self.history, go)
        if parameters.blame:
            signature = self.identity.sign(cells.history_statement(self.session.id, go.number, self.history))
            go = msgspec.structs.replace(go, signature=signature)
        current = Round(go, before, self.history, now)
        outputs = self.broadcast(go)
        for name, buffer in self._aheads.items():
            current.aheads[name] = buffer.pop(self.next)
        self.open[self.next] = current
        self.next += 1
        for name in self._aheads:
            outputs += self._resume(name)
        self.next_at = max(self.next_at + parameters.interval_s, now + parameters.interval_s / 2)
        return outputs

    def broadcast(self, go: Go) -> list[Output]:
        """Send the same broadcast to all clients."""
        return [Send(self.session.clients, go)]

    def _choose(self) -> tuple[Kind, int, Garbled | None]:
        """Return kind, slot and repeated cell of the next round."""
        if self.accuse:
            wrong = self.done.get(self.accuse.popleft())
            if wrong is not None:
                return Kind.ACCUSE, wrong.go.slot, Garbled(wrong.go.number, wrong.body)
        due = not self.open_slots or (self._since_map >= ROUNDS_PER_MAP and not self._map_open)
        if due and not self.session.hunt:
            self._since_map, self._map_open = 0, True
            return Kind.MAP, 0, None
        self._since_map += 1
        self._turn = (self._turn + 1) % len(self.open_slots)
        return Kind.DATA, self.open_slots[self._turn], None

    def _ask_again(self, now: float) -> list[Output]:
        """Ask for the cells that keep the first round open."""
        if not self.open:
            return []
        number, first = next(iter(self.open.items()))
        if now - max(first.opened_at, first.asked_at) < self.session.parameters.resend_s:
            return []
        first.asked_at = now
        missing = tuple(name for name in self.session.clients if name not in first.cells)
        return [Send(missing, Resend(self.session.epoch, number))] if missing else []

    # Decoding.

    def decode(self, current: Round) -> bytes:
        """Return the XOR of all bodies of a round."""
        bodies = [cell.body for cell in current.cells.values()] + [ahead.body for ahead in current.aheads.values()]
        return cells.combine(bodies, self.session.parameters.cell_bytes)

    def _sums(self, current: Round, count: int) -> list[int]:
        h = cells.history_scalar(current.history, self.session.parameters)
        masked = (cell.masked for cell in current.cells.values())
        return cells.unmask(h, masked, (ahead.sums for ahead in current.aheads.values()), count)

    def _complete(self, current: Round, now: float) -> list[Output]:
        self.completed += 1
        self.last_duration_s = now - current.opened_at
        if current.go.kind == Kind.MAP:
            return self._complete_map(current)
        number = current.go.number
        current.body = self.decode(current)
        self._echoes.append(Echo(number, cells.echo_check(current.body)))
        self.done[number] = current
        while len(self.done) > REMEMBERED:
            self.done.popitem(last=False)
        payload = current.body
        try:
            if self.session.parameters.bound:
                key = self._sums(current, 1)[0]
                payload = cells.unseal(key, current.body, self.session.place(number))
            use, repeat, content = cells.unpack(payload)
        except (BadProof, BadMessage):
            return self._fail(current)
        if use != cells.Use.STREAMS or repeat or current.go.kind == Kind.ACCUSE:
            self.opened.append(Opened(current, use, repeat, content))
        if use != cells.Use.STREAMS:
            return []
        try:
            return [Arrived(event) for event in self.streams.push(content, now)]
        except BadMessage as error:
            return [Note("streams", str(error))]

    def _complete_map(self, current: Round) -> list[Output]:
        self._map_open = False
        try:
            self.open_slots = cells.map_slots(self._sums(current, self.session.scalars), self.session.slots)
        except BadProof:
            return self._fail(current)
        return []

    def _fail(self, current: Round) -> list[Output]:
        self.failed += 1
        self.garbled.append(current)
        while len(self.garbled) > REMEMBERED:
            self.garbled.popleft()
        return [Note("garbled", f"round {current.go.number} ({current.go.kind.name.lower()}) did not open")]
