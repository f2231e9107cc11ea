"""The thread that runs the operations of one group, with its sender, its receiver and its clock.

Its decisions are pure state (`ring`, `flows`, `path_choice`). It sleeps while no operation runs.
"""

from __future__ import annotations

import collections
import selectors
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

from c4p.connections import Job, Neighbours, wait_for_ends
from c4p.errors import C4PError, GroupBroken, NoPath
from c4p.model import Counters, NetworkPath
from c4p.path_choice import PathChoice
from c4p.receiver import Receiver
from c4p.ring import Operation
from c4p.sender import Sender
from c4p.wire import Header, Kind

TICK_S = 0.02
UNSEEN_S = 5 * TICK_S
NO_PATH_S = 10.0
LOST_S = 2.0
LINGER_S = 5.0


class Transport:
    """The transport of one group: its connections and running operations.

    Args:
        neighbours: The ring neighbours.
        listener: A listening socket of this member; owned by the transport from now on.
        paths: Paths to the next neighbour, and the planned one of each socket.
        timeout_s: Longest time that an operation may take.

    Attributes:
        sender: The connections to the next neighbour, their paths and events.
        counters: Totals since the start.
    """

    def __init__(self, neighbours: Neighbours, listener: socket.socket, paths: PathChoice, timeout_s: float) -> None:
        self._at = neighbours
        self._timeout_s = timeout_s
        self._selector = selectors.DefaultSelector()
        self._wake_r, self._wake_w = socket.socketpair()
        self._wake_r.setblocking(False)
        self._wake_w.setblocking(False)
        self._lock = threading.Lock()
        self._inbox: collections.deque[Callable[[], None]] = collections.deque()
        self._next_sequence = 0
        self._started_sequence = 0
        self._jobs: dict[int, Job] = {}
        self._early: dict[int, dict[int, tuple[int, bytearray]]] = {}
        self._unreachable_since: float | None = None
        self._ended = False
        self._closing_since: float | None = None
        self._tick_at = 0.0
        self._looked_at = time.monotonic()
        self._error: C4PError | None = None
        self._done = False
        self._connected = threading.Event()
        self.counters = Counters()
        shared = (self._selector, self.counters)
        self.sender = Sender(neighbours, paths, *shared, self._finish_if_complete, self._next_left, self._fail)
        self._receiver = Receiver(neighbours, listener, *shared, self._arrived, self._previous_left, self._fail)
        self._thread = threading.Thread(target=self._run, name=f"c4p-{neighbours.rank}", daemon=True)
        self._thread.start()

    # -- called from the caller's threads -----------------------------------------------------------------------

    def wait_connected(self, timeout_s: float) -> None:
        """Wait until each socket is connected and the previous neighbour has connected.

        Raises:
            GroupBroken: It took longer than `timeout_s` seconds, or the group failed.
        """
        if not self._connected.wait(timeout_s):
            self._call(self._give_up_connecting)
            self._connected.wait()
        if self._error:
            raise self._error

    def submit(self, operation: Operation) -> Future[None]:
        """Start an operation; all members must submit the same ones in the same order.

        Returns:
            Done when this member has all it is to receive and its buffer may be changed.
        """
        future: Future[None] = Future()
        future.set_running_or_notify_cancel()
        with self._lock:
            if self._ended:
                future.set_exception(self._error or GroupBroken("the group is closed"))
                return future
            sequence = self._next_sequence
            self._next_sequence += 1
            job = Job(sequence, operation, future, time.monotonic() + self._timeout_s)
            self._inbox.append(lambda: self._start(job))
        self._wake()
        return future

    def move(self, paths: dict[NetworkPath, list[int]], planned: list[NetworkPath], all_anew: bool = False) -> None:
        """Change the planned paths. New connections open before the old ones close.

        Args:
            paths: Source ports by path.
            planned: NetworkPath of each connection.
            all_anew: Ports lead elsewhere now, so that connections whose path has not changed move too.
        """
        self._call(lambda: self.sender.replan(paths, planned, all_anew))

    def abort(self, why: str) -> None:
        """End at once and send the reason to both neighbours."""
        self._call(lambda: self._fail(GroupBroken(f"rank {self._at.rank} gave up: {why}")))

    def close(self, timeout_s: float = LINGER_S) -> None:
        """End when the neighbour has all that was sent, at the latest after `timeout_s` seconds."""
        self._call(self._begin_close)
        self._thread.join(timeout_s + 2.0)

    def _call(self, function: Callable[[], None]) -> None:
        with self._lock:
            self._inbox.append(function)
        self._wake()

    def _wake(self) -> None:
        try:
            self._wake_w.send(b"x")
        except OSError:
            return

    # -- the thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._selector.register(self._wake_r, selectors.EVENT_READ, self._drain_wake)
            self.sender.open_all()
            while not self._done:
                self._turn()
        except Exception as error:  # noqa: BLE001 (the thread's own failure must reach whoever waits)
            self._fail(GroupBroken(f"the transport of rank {self._at.rank} failed: {error!r}"))
        finally:
            self._tear_down()

    def _turn(self) -> None:
        busy = self._jobs or self.sender.is_busy or self._receiver.front.is_resting or self._closing_since
        for key, mask in self._selector.select(TICK_S if busy else 0.25):
            key.data(mask)
        while self._inbox:
            with self._lock:
                function = self._inbox.popleft()
            function()
        self.sender.pump()
        now = time.monotonic()
        if now >= self._tick_at:
            self._tick_at = now + TICK_S
            self._tick(now)

    def _drain_wake(self, _mask: int) -> None:
        try:
            self._wake_r.recv(4096)
        except BlockingIOError:
            return

    # -- operations -----------------------------------------------------------------------------------------------

    def _start(self, job: Job) -> None:
        self._started_sequence = job.sequence + 1
        if self._error is None and self._closing_since is not None:
            self._fail(GroupBroken(f"{job.operation.name} was called after the group was closed"))
        if self._error is not None:
            job.future.set_exception(self._error)
            return
        if self._has_left(self.sender.farewell, self._at.next_rank, [job]):
            return
        if self._has_left(self._receiver.farewell, self._at.previous_rank, [job]):
            return
        self._jobs[job.sequence] = job
        self.sender.enqueue(job, job.operation.start())
        for number, (signature, payload) in self._early.pop(job.sequence, {}).items():
            self._take(job, number, signature, memoryview(payload))
        self._finish_if_complete(job)

    def _take(self, job: Job, number: int, signature: int, payload: memoryview) -> None:
        operation = job.operation
        if self._error is not None:
            return
        if signature != operation.signature:
            what = f"operation {job.sequence}: this member (rank {self._at.rank}) called {operation.name}"
            other = f"rank {self._at.previous_rank} another operation, size, type or reduction"
            self._fail(GroupBroken(f"{what}, {other}; all members must call the same operations in the same order"))
            return
        pieces = operation.take(number, payload)
        if pieces is None:
            self.counters.duplicates += 1
            return
        self.sender.enqueue(job, pieces)

    def _finish_if_complete(self, job: Job) -> None:
        if job.queued or not job.operation.complete or job.future.done():
            return
        for piece in job.unacknowledged.values():  # the caller may change the buffer from now on
            piece.view = memoryview(bytes(piece.view))
        self._jobs.pop(job.sequence, None)
        job.future.set_result(None)

    def _give_up_connecting(self) -> None:
        at = self._at
        if self._connected.is_set():
            return
        missing = [] if all(self.sender.connections) else [f"could not reach rank {at.next_rank}"]
        if not self._receiver.has_greeted:
            missing.append(f"was not reached by rank {at.previous_rank}")
        self._fail(GroupBroken(f"rank {at.rank} {' and '.join(missing)} within {self._timeout_s:g} s"))

    def _has_left(self, farewell: int | None, rank: int, jobs: list[Job]) -> bool:
        """Return True if one of these operations can never end, as a neighbour left; then the group fails."""
        for job in jobs:
            if farewell is not None and job.sequence >= farewell:
                error = GroupBroken(f"rank {rank} left the group before operation {job.sequence}, {job.operation.name}")
                self._fail(error)
                if not job.future.done():
                    job.future.set_exception(error)
                return True
        return False

    def _next_left(self) -> None:
        """Handle the farewell of the next neighbour."""
        if not self._has_left(self.sender.farewell, self._at.next_rank, list(self._jobs.values())):
            self.sender.deliver_no_more()

    def _previous_left(self) -> bool:
        """Handle the farewell of the previous neighbour. Return whether the group goes on."""
        return not self._has_left(self._receiver.farewell, self._at.previous_rank, list(self._jobs.values()))

    def _arrived(self, header: Header, payload: memoryview) -> bool:
        """Handle a piece. Return whether the group goes on."""
        job = self._jobs.get(header.sequence)
        if job is not None:
            self._take(job, header.piece, header.signature, payload)
            if self._error is None:
                self._finish_if_complete(job)
        elif header.sequence >= self._started_sequence:
            early = self._early.setdefault(header.sequence, {})
            early.setdefault(header.piece, (header.signature, bytearray(payload)))
        else:
            self.counters.duplicates += 1
        return self._error is None

    # -- time --------------------------------------------------------------------------------------------------------

    def _tick(self, now: float) -> None:
        self._forget_unseen(now)
        self._receiver.front.tick(now)
        self._check_deadlines(now)
        self._check_neighbours(now)
        if self._error is not None:
            return
        self.sender.check_connecting(now, opens=self._closing_since is None)
        self.sender.check_paths(now)
        self.sender.check_retiring()
        if not self._connected.is_set() and all(self.sender.connections) and self._receiver.has_greeted:
            self._connected.set()
        if self._closing_since is not None:
            self._check_close(now)

    def _forget_unseen(self, now: float) -> None:
        unseen_s, self._looked_at = now - self._looked_at, now
        if unseen_s >= UNSEEN_S:
            self.sender.not_seen(unseen_s, now)

    def _check_deadlines(self, now: float) -> None:
        for job in self._jobs.values():
            if now > job.deadline:
                self._fail(GroupBroken(self._late(job)))
                return

    def _late(self, job: Job) -> str:
        operation, at = job.operation, self._at
        begun = f"{operation.name} (operation {job.sequence}) took longer than {self._timeout_s:g} s on rank {at.rank}"
        came = f"{operation.arrived} of {operation.expected} pieces came from rank {at.previous_rank}"
        open_ = f"{len(job.unacknowledged)} pieces wait for rank {at.next_rank}"
        return f"{begun}: {came}, {open_}. A member that comes later, or not at all, stops all others"

    def _check_neighbours(self, now: float) -> None:
        lost_at = self._receiver.lost_at
        if lost_at is not None and now - lost_at > LOST_S and not self._closing_since:
            self._fail(GroupBroken(f"rank {self._at.previous_rank} ended: its connections closed without a farewell"))
        if self.sender.is_open or self.sender.farewell is not None:
            self._unreachable_since = None
            return
        self._unreachable_since = self._unreachable_since or now
        if self._closing_since is not None or not (self._connected.is_set() or self.sender.refused):
            return  # before the first connection `wait_connected` has the last word; a port that refuses was open once
        after = LOST_S if self.sender.refused else NO_PATH_S
        if now - self._unreachable_since > after:
            address, port = self._at.next_address
            how = "it refuses connections: its process has ended" if self.sender.refused else "no path to it works"
            self._fail(NoPath(f"rank {self._at.next_rank} ({address}:{port}) cannot be reached for {after:g} s: {how}"))

    # -- the end --------------------------------------------------------------------------------------------------

    def _begin_close(self) -> None:
        if self._closing_since is None:
            self._closing_since = time.monotonic()

    def _check_close(self, now: float) -> None:
        if self._closing_since is None:
            return
        if (self.sender.unacknowledged or self._jobs) and now - self._closing_since < LINGER_S:
            return
        if self._jobs:
            self._fail(GroupBroken(f"rank {self._at.rank} closed the group while operations were running"))
        self._done = True

    def _fail(self, error: C4PError) -> None:
        """End the group: fail all operations, and send the reason to both neighbours."""
        if self._error is not None:
            return
        self._error = error
        self._connected.set()
        jobs, self._jobs = list(self._jobs.values()), {}
        for job in jobs:
            if not job.future.done():
                job.future.set_exception(error)
        self.sender.forget()
        self._done = True

    def _tear_down(self) -> None:
        text = str(self._error).encode() if self._error else b""
        kind = Kind.ABORT if text else Kind.BYE
        word = Header(kind, sequence=self._started_sequence, length=len(text)).packed() + text
        farewell = self.sender.idle_sockets + self._receiver.idle_sockets
        for sock in farewell:
            try:
                sock.send(word)
                sock.shutdown(socket.SHUT_WR)
            except OSError:
                continue
        with self._lock:
            self._ended = True
            left = list(self._inbox)
            self._inbox.clear()
        if self._error is None:
            self._error = GroupBroken("the group is closed")
        for function in left:
            function()
        self._connected.set()
        wait_for_ends(farewell)
        self._receiver.front.close()
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
        self._wake_w.close()
        self._selector.close()
