"""A member's end of the control channel: it listens, sends heartbeats, reconnects, and prepares connections."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from trainmover import faults
from trainmover.context import Context
from trainmover.errors import LinkError, MoveError, RefusedError, TrainmoverError, WireError
from trainmover.snapshots import SnapshotStore
from trainmover.transport import Address
from trainmover.wire import Channel, Message, call

HEARTBEAT_S = 0.5
PREPARE_S = 20.0
AWAY_S = 60.0
_DIE_WITH_PARENT = 1  # prctl's number


class Agent:
    """The controller's orders, which the training reads at iteration boundaries.

    Args:
        address: The controller's, "host:port".
        facts: What this process says of itself whenever it connects.
        owner: The process's connections.
    """

    def __init__(self, address: str, facts: Message, owner: Context) -> None:
        self.changed = threading.Condition()
        self.passed = -1
        self.iteration_s = 0.0
        self.hold: Message | None = None
        self.decision: Message | None = None
        self.interrupt = 0
        self.gather_s = 0.0
        self.recover: Message | None = None
        self.go = 0
        self.become: Message | None = None
        self.warm: Message | None = None
        self.recordings: dict[str, bytes] = {}
        self.finished: Message | None = None
        self.leave: str | None = None
        self.prepared = 0
        self.joiners: dict[str, Any] = {}
        self.ready = False
        self.done = False
        self.store: SnapshotStore  # of the training, from `attach` on
        self.upload: Callable[[], bytes] | None = None
        self._address, self._facts, self._owner = address, facts, owner
        self._channel: Channel | None = None
        self._outbox: list[tuple[Message, bytes]] = []
        self._status: Message | None = None
        self._ordered = 0
        self._called_off = 0
        self._sending = threading.Lock()
        self._connected = threading.Event()

    def start(self) -> None:
        """Connect. A process that a supervisor has started is killed when its supervisor ends.

        Raises:
            RefusedError: With the controller's reason.
            MoveError: The supervisor has ended already.
        """
        if os.environ.get("TRAINMOVER_MEMBER"):
            ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
            _check_supervisor()
        with contextlib.suppress(OSError, WireError):
            self._connect()
        threading.Thread(target=self._run, name="trainmover-agent", daemon=True).start()
        threading.Thread(target=self._heartbeat, name="trainmover-beat", daemon=True).start()

    def report(self, what: str, blob: bytes = b"", /, **content: Any) -> None:
        """Send a message. It is kept and sent later while the controller is away."""
        with self._sending:
            self._outbox.append(({"event": what, **content}, blob))
            self._flush()

    def report_status(self, what: str, /, **content: Any) -> None:
        """Report this member's state in a recovery, now and with each heartbeat, because a connection can lose it."""
        with self._sending:
            self._status = {"event": what, **content}
            self._outbox.append((self._status, b""))
            self._flush()

    def go_on(self) -> None:
        """Stop repeating the state: the recovery is over."""
        with self._sending:
            self._status = None

    def become_member(self, facts: Message) -> None:
        """Identify as a member from the next connection on."""
        self.ready = False
        self._facts = {**facts, "key": self._facts["key"]}

    def remember(self, name: str, value: Any) -> None:
        """Include this value in the first message of each later connection."""
        self._facts = {**self._facts, name: value}

    def wait(self, ready: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Wait until `ready()` is true; it is evaluated after each message.

        Raises:
            MoveError: It has taken longer than timeout_s, and the controller is away or silent.
        """
        deadline = time.monotonic() + timeout_s
        with self.changed:
            while not ready():
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    raise MoveError(f"waited {timeout_s:.0f} s for the controller at {self._address}: {what}")
                self.changed.wait(min(left_s, 1.0))

    # -- threads -----------------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        with self.changed:
            now = {
                "rank": self._owner.rank,
                "address": list(self._owner.listener.address),
                "generation": self._owner.generation,
                "step": self.passed,
                "marked": self._owner.failure is not None,
                "prepared": self.prepared,
                "at": self.hold["at"] if self.hold else -1,
                "ready": self.ready,
                "done": self.done,
            }
        channel, answer = call(self._address, {**self._facts, **now})
        with self._sending:
            self._channel = channel
            self._flush()
        self._connected.set()
        self._heard(answer, b"")  # one whose rank was given away is not welcomed, it is told to leave

    def _flush(self) -> None:
        while self._outbox and self._channel is not None:
            try:
                self._channel.send(*self._outbox[0])
            except OSError:
                self._channel = None
                return
            self._outbox.pop(0)

    def _run(self) -> None:
        pause_s = 0.1
        while self.leave is None:
            channel = self._channel
            if channel is None:
                try:
                    self._connect()
                    pause_s = 0.1
                except RefusedError as error:
                    self._set("leave", str(error))
                except (OSError, WireError):
                    time.sleep(pause_s)
                    pause_s = min(1.0, pause_s * 1.5)
                continue
            try:
                while True:
                    self._heard(*channel.receive())
            except (WireError, OSError):
                with self._sending:
                    if self._channel is channel:
                        self._channel = None
                channel.close()

    def _heartbeat(self) -> None:
        while self.leave is None:
            time.sleep(HEARTBEAT_S)
            if self._connected.is_set() and self._channel is not None:
                self.report("heartbeat", step=self.passed, iteration_s=self.iteration_s)
                with self._sending:
                    if self._status is not None and not self._outbox:
                        self._outbox.append((self._status, b""))
                        self._flush()

    def _set(self, name: str, value: Any) -> None:
        with self.changed:
            setattr(self, name, value)
            self.changed.notify_all()

    def _heard(self, message: Message, blob: bytes) -> None:
        what = message.get("command")
        if what == "prepare":
            threading.Thread(target=self._prepare, args=(message,), daemon=True).start()
        elif what == "hold":
            self._on_hold(message)
        elif what in ("switch", "abort"):
            self._on_decision(message)
        elif what == "interrupt":
            self._on_interrupt(message)
        elif what == "recover":
            self._on_recover(message)
        elif what in ("warm", "finished"):
            self._set(what, message)
        elif what == "go":
            self._set("go", max(self.go, message["generation"]))
        elif what == "become":
            self._set("become", message["role"])
        elif what == "leave":
            self._set("leave", message["reason"])
        else:
            self._about_copies(message, blob)

    def _about_copies(self, message: Message, blob: bytes) -> None:
        what = message.get("command")
        if what == "recording":
            self.recordings[message["signature"]] = blob
        elif what == "upload" and self.upload is not None:
            self.report("recording", self.upload(), signature=message["signature"])
        elif what == "recorded":
            self.upload = None
        elif what == "stable":
            self.store.set_stable(message["step"])
        elif what == "discard":
            self.store.discard(message["steps"])
        elif what == "buddies":
            buddy = message["of"][str(self._owner.rank)]
            self.store.set_buddy(buddy, addresses(message["addresses"])[buddy], message["generation"])

    def _on_hold(self, message: Message) -> None:
        with self.changed:
            joiner = self._owner.replay is not None
            if joiner or message["at"] > self.passed:
                self.hold = message
                self.changed.notify_all()
                what, more = "promised", {}
            else:
                what, more = "late", {"step": self.passed}
        if not joiner:
            self.report(what, at=message["at"], **more)

    def _on_decision(self, message: Message) -> None:
        with self.changed:
            if message["command"] == "abort":
                self._called_off = max(self._called_off, message["generation"])
                self._owner.backend.abandon(message["generation"])
            known = message["generation"] <= self._owner.generation
            if known or (message["command"] == "abort" and message["generation"] != self.prepared):
                return
            if message["command"] == "abort" and self._owner.replay is not None:
                self._owner.wake.set()  # likewise
            if self.hold is None:  # called off before anybody had to stop
                self.prepared = 0
                if self._owner.replay is not None:
                    self._owner.wake.clear()
                return
            self.decision = message
            self.changed.notify_all()

    def _on_recover(self, message: Message) -> None:
        if message["generation"] <= self._ordered:  # said again, since the connection had ended
            return
        self._ordered = message["generation"]
        self._set("recover", message)
        if self._owner.replay is not None:
            self._owner.wake.set()  # a joiner that waits for the state of a leaver waits in vain

    def _on_interrupt(self, message: Message) -> None:
        with self.changed:
            self.interrupt = max(self.interrupt, message["generation"])
            self.gather_s = float(message.get("within_s", self.gather_s))
            self.hold = self.decision = None
            if self.recover is not None and self.recover["generation"] < self.interrupt:
                self.recover = None  # the recovery that ordered it is started again
            self._owner.interrupt(LinkError("the controller has begun a recovery"))
            self.changed.notify_all()

    def _prepare(self, message: Message) -> None:
        """Open connections to joiners while training continues."""
        generation = message["generation"]
        self.joiners = message["joiners"]
        try:
            faults.at("prepare")
            leaver = self._owner.replay is None and str(self._owner.rank) in message["joiners"]
            deadline = time.monotonic() + PREPARE_S
            joiners = addresses(message["joiners"])
            if not leaver:
                self._owner.backend.prepare(joiners, generation, deadline)
        except TrainmoverError as error:
            self.report("failed", generation=generation, reason=str(error))
            return
        with self.changed:
            late = generation <= max(self._called_off, self._owner.generation)
            if not late:
                self.prepared = max(self.prepared, generation)
        if late:  # the move was called off while connections were opened
            self._owner.backend.abandon(generation)
            return
        self.report("prepared", generation=generation)


def _check_supervisor() -> None:
    """Raise an error if the supervisor ended while this process was importing; nothing else would end it."""
    try:
        os.kill(int(os.environ.get("TRAINMOVER_SUPERVISOR", os.getpid())), 0)
    except ProcessLookupError:
        raise MoveError("the supervisor that started this process has ended, so this process is not needed") from None


def addresses(plain: dict[str, Any]) -> dict[int, Address]:
    """Return addresses by rank, from a message's JSON."""
    return {int(rank): (host, port) for rank, (host, port) in plain.items()}
