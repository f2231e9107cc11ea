"""A group of processes in a ring, and its collective operations on numpy arrays."""

from __future__ import annotations

import contextlib
import json
import logging
import secrets
import socket
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import msgspec
import numpy as np

from c4p.catalogue import Entry, learn, parse_path
from c4p.client import Subscription, check_url, register
from c4p.connections import Neighbours
from c4p.demand import JobDemand, PathReport, combine, report_of, sides_of
from c4p.errors import BadRequest, GroupBroken, NoPath, PlannerError
from c4p.model import UNKNOWN, Counters, PathEvent, PathRecord
from c4p.path_choice import PathChoice
from c4p.planner import plan
from c4p.rendezvous import ADDRESS, Rendezvous, Store
from c4p.ring import (
    Combine,
    Operation,
    RingPosition,
    broadcast_operation,
    even_chunks,
    gloo_chunks,
    reducer,
    ring_operation,
)
from c4p.routes import address_toward
from c4p.transport import Transport
from c4p.watcher import Watcher

MOST_SOCKETS = 64
_LOG = logging.getLogger("c4p")


@dataclass(frozen=True, slots=True)
class Options:
    """How a group communicates.

    Attributes:
        address: Own address, from which connections are opened. Empty: the one that the host takes toward the
            other members.
        sockets: Connections to the next neighbour.
        ports: "planned": learn the paths and plan them; "random": let the kernel choose, as other libraries do.
        planner: URL of a planner (`c4p serve`) that knows other jobs too. Empty: plan this job alone; so it is, with a
            warning, until the planner answers.
        job: Name of this group at the planner, where one group replaces another of its name. Empty: a random one.
        timeout_s: Longest time of an operation, and of the start.
    """

    address: str = ""
    sockets: int = 4
    ports: str = "planned"
    planner: str = ""
    job: str = ""
    timeout_s: float = 300.0

    def checked(self) -> Options:
        """Return the options.

        Raises:
            BadRequest: A value cannot be used.
        """
        if not 1 <= self.sockets <= MOST_SOCKETS:
            raise BadRequest(f"sockets={self.sockets}: 1 to {MOST_SOCKETS} connections to a neighbour are possible")
        if self.ports not in ("planned", "random"):
            raise BadRequest(f"ports={self.ports!r}: there are planned and random")
        if not self.timeout_s > 0:
            raise BadRequest(f"timeout_s={self.timeout_s}: seconds, more than 0")
        if self.planner:
            check_url(self.planner)
        return self


class Group:
    """A group of members in a ring; rank r sends to rank r - 1 over several sockets.

    Args:
        rank: This member, 0 to size - 1.
        size: Members.
        store: Where members find each other; fresh for each group (torch's stores do, with a prefix).
        options: How to communicate.

    Raises:
        BadRequest: A value cannot be used.
        GroupBroken: The neighbours were not reached in time.
    """

    def __init__(self, rank: int, size: int, store: Store, options: Options | None = None) -> None:
        if not 0 <= rank < size:
            raise BadRequest(f"rank {rank} of {size} members: ranks go from 0 to size - 1")
        self.rank, self.size = rank, size
        self.options = (options or Options()).checked()
        self.job = ""
        self._watcher: Watcher | None = None
        self._place = RingPosition(rank, size, self.options.sockets)
        self._transport = self._join(store) if size > 1 else None

    def _join(self, store: Store) -> Transport:
        meeting = Rendezvous(store, self.rank, self.size, self.options.timeout_s)
        transport = None
        try:
            address = self.options.address or own_address(store)
            with contextlib.ExitStack() as undo:
                listener = undo.enter_context(_listener(address))
                at = self._meet(meeting, address, listener)
                paths, entry, subscription = self._plan(meeting, at, at.token.hex())
                undo.pop_all()
            transport = Transport(at, listener, paths, self.options.timeout_s)
            transport.wait_connected(meeting.left_s)
        except BaseException as error:
            meeting.fail(error)
            raise
        if entry is not None:
            self._watcher = Watcher(transport, entry, subscription)
        return transport

    def _meet(self, meeting: Rendezvous, address: str, listener: socket.socket) -> Neighbours:
        """Tell the others where this member listens, and learn where the next one does."""
        mine = self.options.sockets
        meeting.publish(ADDRESS, json.dumps([*listener.getsockname(), mine]))
        if self.rank == 0:
            members = [json.loads(meeting.get(ADDRESS, rank)) for rank in range(self.size)]
            for rank, (_, _, sockets) in enumerate(members):
                if sockets != mine:
                    raise BadRequest(f"rank 0 has sockets={mine}, rank {rank} {sockets}: give all the same")
            meeting.publish("members", json.dumps([secrets.token_hex(16), members]))
        next_rank, previous_rank = (self.rank - 1) % self.size, (self.rank + 1) % self.size
        token, members = json.loads(meeting.get("members"))
        host, port, _ = members[next_rank]
        return Neighbours(self.rank, self.size, bytes.fromhex(token), address, next_rank, (host, port), previous_rank)

    def _plan(
        self, meeting: Rendezvous, at: Neighbours, token: str
    ) -> tuple[PathChoice, Entry | None, Subscription | None]:
        """Learn and plan the paths to the next neighbour."""
        sockets, planner = self.options.sockets, self.options.planner
        if self.options.ports == "random":
            return PathChoice({UNKNOWN: [0]}, [UNKNOWN] * sockets), None, None
        try:
            entry = learn(at.address, at.next_address)
        except NoPath as error:
            raise NoPath(f"rank {self.rank} has no path to rank {at.next_rank}: {error}") from error
        report = report_of(entry, sockets)
        meeting.publish("paths", msgspec.json.encode(report).decode())
        self.job = self.options.job or token
        demand = None
        if self.rank == 0:
            reports = [msgspec.json.decode(meeting.get("paths", rank), type=PathReport) for rank in range(self.size)]
            job_demand = combine(reports)
            demand = job_demand.demand
            version, answers = self._ask_planner(job_demand)
            said = {"version": version, "paths": answers, "sides": sides_of(reports)}
            meeting.publish("plan", json.dumps(said))
        said = json.loads(meeting.get("plan"))
        ports = entry.by_path()
        paths = map(parse_path, said["paths"][self.rank])
        planned = [path if path in ports else next(iter(ports)) for path in paths]
        subscription = None
        if planner:
            subscription = Subscription(planner, self.job, self.rank, said["version"], report, said["sides"], demand)
        return PathChoice(ports, planned), entry, subscription

    def _ask_planner(self, job_demand: JobDemand) -> tuple[int, list[list[str]]]:
        """Return the plan's version (-1 if this job is planned alone) and the paths of each member's connections."""
        if self.options.planner:
            try:
                return register(self.options.planner, self.job, job_demand)
            except PlannerError as error:
                _LOG.warning("%s This job is planned alone until the planner answers.", error)
        return -1, job_demand.answers(plan({self.job: job_demand.demand}, {}).assignments[self.job])

    # -- operations -----------------------------------------------------------------------------------------------

    def allreduce(self, array_N: np.ndarray[Any, Any], reduction: str = "sum") -> np.ndarray[Any, Any]:
        """Reduce an array over all members, in place.

        Args:
            array_N: C-contiguous, writable; the same shape and type everywhere. Changed.
            reduction: "sum", "product", "min", "max", "band", "bor" or "bxor".

        Returns:
            The array.

        Raises:
            BadRequest: The array or the reduction cannot be used.
            GroupBroken: A member failed, left, or is waited for too long.

        Source:
            Bitwise equal to gloo's ring allreduce, whose order of summation it has.
        """
        flat = _flat(array_N)
        combine = reducer(flat, reduction)
        self.run(self.operation("allreduce", _bytes(flat), flat.itemsize, combine, (flat.dtype.str, reduction)))
        return array_N

    def allgather(self, array_N: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Gather every member's array on every member.

        Args:
            array_N: The same shape and type everywhere.

        Returns:
            A new array of shape [size, *array.shape], by rank.

        Raises:
            GroupBroken: A member failed, left, or is waited for too long.
        """
        gathered = np.empty((self.size, *array_N.shape), dtype=array_N.dtype)
        gathered[self.rank] = array_N
        flat = _flat(gathered)
        self.run(self.operation("allgather", _bytes(flat), flat.itemsize, facts=(flat.dtype.str,)))
        return gathered

    def reduce_scatter(self, array_N: np.ndarray[Any, Any], reduction: str = "sum") -> np.ndarray[Any, Any]:
        """Reduce an array over all members; each gets the slice of its rank along the first axis.

        Args:
            array_N: First axis divisible by the number of members. Not changed.
            reduction: As in `allreduce`.

        Returns:
            A new array, [N / size, ...].

        Raises:
            BadRequest: The first axis cannot be divided.
            GroupBroken: A member failed, left, or is waited for too long.
        """
        if not array_N.ndim or array_N.shape[0] % self.size:
            shape, size = array_N.shape, self.size
            raise BadRequest(f"an array of shape {shape} cannot be split over {size} ranks along its first axis")
        work = _flat(np.array(array_N, order="C"))
        combine = reducer(work, reduction)
        facts = (work.dtype.str, reduction)
        self.run(self.operation("reduce_scatter", _bytes(work), work.itemsize, combine, facts))
        mine = work.reshape(self.size, -1)[self.rank]
        sliced: np.ndarray[Any, Any] = mine.reshape(array_N.shape[0] // self.size, *array_N.shape[1:]).copy()
        return sliced

    def broadcast(self, array_N: np.ndarray[Any, Any], root: int = 0) -> np.ndarray[Any, Any]:
        """Copy the root's array to every member, in place.

        Args:
            array_N: C-contiguous, writable; the same shape and type everywhere. Changed except at the root.
            root: The rank that has the values.

        Raises:
            BadRequest: The array or the root cannot be used.
            GroupBroken: A member failed, left, or is waited for too long.
        """
        self.run(self.broadcast_operation(_bytes(_flat(array_N)), root))
        return array_N

    def barrier(self) -> None:
        """Return when all members have called it."""
        self.allreduce(np.zeros(1, dtype=np.uint8))

    # -- operations on bytes, for other frameworks' tensors -----------------------------------------------------------

    def operation(
        self,
        name: str,
        buffer: memoryview,
        item_bytes: int,
        combine: Combine | None = None,
        facts: tuple[object, ...] = (),
    ) -> Operation:
        """Return an operation on a buffer in place; see `c4p.ring.ring_operation`.

        Args:
            name: "allreduce"; "reduce_scatter": the slice of this rank is complete, the rest holds partial sums;
                "allgather": the buffer holds the slice of this rank.
            buffer: All elements as bytes.
            item_bytes: Bytes of one element.
            combine: The reduction; None for allgather.
            facts: What else the members must agree on.
        """
        elements = len(buffer) // item_bytes
        whole = name == "allreduce"
        chunks = gloo_chunks(elements, item_bytes, self.size) if whole else even_chunks(elements, self.size)
        return ring_operation(name, buffer, item_bytes, chunks, self._place, combine, facts)

    def broadcast_operation(self, buffer: memoryview, root: int) -> Operation:
        """Return a broadcast of the root's buffer."""
        if not 0 <= root < self.size:
            raise BadRequest(f"root {root} is no member: ranks go from 0 to {self.size - 1}")
        return broadcast_operation(buffer, root, self._place)

    def start(self, operation: Operation) -> Future[None]:
        """Start an operation. The future is done when the buffer holds the result and may be changed."""
        if self._transport is None:
            future: Future[None] = Future()
            future.set_result(None)
            return future
        return self._transport.submit(operation)

    def run(self, operation: Operation) -> None:
        """Start an operation and wait for it."""
        self.start(operation).result(self.options.timeout_s + 10.0)

    # -- what it does and did -----------------------------------------------------------------------------------------

    @property
    def paths(self) -> list[PathRecord]:
        """State of each socket to the next neighbour: port, path, bytes, rate."""
        return self._transport.sender.records() if self._transport else []

    @property
    def events(self) -> list[PathEvent]:
        """Paths that were left, taken again or moved by the planner, in order."""
        return list(self._transport.sender.events) if self._transport else []

    @property
    def counters(self) -> Counters:
        """Totals since the start."""
        return self._transport.counters if self._transport else Counters()

    def abort(self, why: str) -> None:
        """End at once; the other members get an error that says why."""
        if self._transport:
            self._transport.abort(why)

    def close(self) -> None:
        """Leave the group after the neighbour has all that was sent."""
        if self._watcher:
            self._watcher.close()
        if self._transport:
            self._transport.close()

    def __enter__(self) -> Group:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is not None and not isinstance(error, GroupBroken):
            self.abort(f"{type(error).__name__}: {error}")
        self.close()


def own_address(store: Store) -> str:
    """Return this host's address toward the store's host, or loopback's if the store has no host."""
    base: Any = store
    while hasattr(base, "underlying_store"):  # torch's PrefixStore
        base = base.underlying_store
    host = getattr(base, "host", None)
    if not host:
        return "127.0.0.1"
    return address_toward(socket.gethostbyname(host))


def _listener(address: str) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listener.bind((address, 0))
    except OSError as error:
        listener.close()
        why = error.strerror
        raise BadRequest(f"address {address!r} cannot be bound ({why}); give an IPv4 address of this host") from error
    listener.listen(1024)  # neighbours send dozens of probes
    listener.setblocking(False)
    return listener


def _flat(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if not isinstance(array, np.ndarray) or array.dtype.hasobject:
        raise BadRequest(f"expected a numpy array of numbers, got {type(array).__name__}")
    if not (array.flags.c_contiguous and array.flags.writeable):
        raise BadRequest("the array must be C-contiguous and writable; pass numpy.ascontiguousarray(array)")
    return array.reshape(-1)


def _bytes(flat: np.ndarray[Any, Any]) -> memoryview:
    return flat.view(np.uint8).data
