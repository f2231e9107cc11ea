"""The cost of a communication call after its last member has come: a measured table, or latency and bandwidth.

Ring and tree formulas as in Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH"
(IJHPCA 2005), section 4, with the reduction's own arithmetic left out.
"""

from __future__ import annotations

import math
from collections import defaultdict
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from prismllm.errors import InputError
from prismllm.model import read_record


class Link(msgspec.Struct, frozen=True):
    """A class of links.

    Attributes:
        latency_s: Of one message, seconds.
        bytes_per_s: Bandwidth of one rank.
    """

    latency_s: float
    bytes_per_s: float


class Measured(msgspec.Struct, frozen=True):
    """One measured call: operation, members, payload, seconds from the last one's coming to the last one's leaving."""

    op: str
    ranks: int
    nbytes: int
    seconds: float


class Costs(msgspec.Struct, frozen=True):
    """The costs of communication calls.

    Attributes:
        host: Links between ranks of one host.
        net: Links between hosts.
        table: Measured calls, which go before the formulas.
        where: How the table came about.
    """

    host: Link = Link(5e-6, 20e9)
    net: Link = Link(15e-6, 5e9)
    table: list[Measured] = []
    where: str = "assumed: 20 GB/s and 5 µs within a host, 5 GB/s and 15 µs between hosts"

    def seconds(self, op: str, nbytes: int, ranks: int, *, is_remote: bool, bandwidth: float = 1.0) -> float:
        """Return the seconds of one call.

        Args:
            op: Operation.
            nbytes: Payload in bytes, as `Call.nbytes` counts it.
            ranks: Members.
            is_remote: Members are on several hosts.
            bandwidth: Share of the link's bandwidth that is left, above 0.

        Returns:
            From the coming of the last member to the end, seconds.
        """
        if ranks < 2:
            return 0.0
        if not self.table:
            link = self.net if is_remote else self.host
            return formula(op, nbytes, ranks, link.latency_s, link.bytes_per_s * bandwidth)
        plain = self._measured(op, nbytes, ranks)
        if bandwidth == 1.0:
            return plain
        floor = self._measured(op, 0, ranks)
        return floor + max(0.0, plain - floor) / bandwidth

    def _measured(self, op: str, nbytes: int, ranks: int) -> float:
        """Interpolate between measured sizes, and by the formulas' ratio between numbers of members."""
        rows: dict[int, list[tuple[int, float]]] = defaultdict(list)
        for one in self.table:
            if one.op == op:
                rows[one.ranks].append((one.nbytes, one.seconds))
        if not rows:
            if op == "all_reduce":
                raise InputError("the table of costs has no all_reduce; measure it: prismllm measure --out costs.json")
            return self._measured("all_reduce", nbytes, ranks)
        nearest = min(rows, key=lambda one: abs(math.log(one / ranks)))
        points = sorted(rows[nearest])
        sizes, seconds = np.array(points, float).T
        if nbytes <= sizes[-1]:
            here = float(np.interp(nbytes, sizes, seconds))
        else:
            slope = (seconds[-1] - seconds[0]) / max(1.0, sizes[-1] - sizes[0])
            here = float(seconds[-1] + slope * (nbytes - sizes[-1]))
        if nearest == ranks:
            return here
        link = self.host
        unit = formula(op, nbytes, nearest, link.latency_s, link.bytes_per_s)
        return here * formula(op, nbytes, ranks, link.latency_s, link.bytes_per_s) / unit


def formula(op: str, nbytes: int, ranks: int, latency_s: float, bytes_per_s: float) -> float:
    """Return the seconds by latency and bandwidth: rings for large payloads, trees where the payload is one rank's.

    Args:
        op: Operation; an unknown one counts as an all-to-all.
        nbytes: Payload as `Call.nbytes` counts it.
        ranks: Members, 2 or more.
        latency_s: Of one message.
        bytes_per_s: Of one rank's link.

    Source:
        Thakur et al. 2005, section 4.1 (all-gather), 4.3 (reduce-scatter), 4.4 (all-reduce), 4.2 (broadcast).
    """
    share = (ranks - 1) / ranks
    rounds = math.ceil(math.log2(ranks))
    moved = nbytes / bytes_per_s
    if op == "all_reduce":
        return 2 * min(rounds, ranks - 1) * latency_s + 2 * share * moved
    if op in ("all_gather", "reduce_scatter", "gather", "scatter"):
        return rounds * latency_s + share * moved
    if op in ("broadcast", "reduce"):
        return rounds * latency_s + moved
    if op == "barrier":
        return 2 * rounds * latency_s
    if op in ("send", "recv"):
        return latency_s + moved
    return (ranks - 1) * latency_s + share * moved


def read_costs(path: Path | None) -> Costs:
    """Read costs from a file; return the assumed ones without.

    Raises:
        InputError: The file is none of costs, or says what cannot be.
    """
    if path is None:
        return Costs()
    costs = read_record(path, Costs)
    for link in (costs.host, costs.net):
        if link.latency_s < 0 or link.bytes_per_s <= 0:
            raise InputError(f"{path}: a link needs latency_s of at least 0 and bytes_per_s above 0, not {link}")
    return costs


def operation_seconds(
    costs: Costs,
    ops: list[str],
    op_of: NDArray[np.int64],
    nbytes: NDArray[np.int64],
    sizes: NDArray[np.int64],
    is_remote: NDArray[np.bool_],
    bandwidth: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return the cost of every operation.

    Args:
        costs: Of calls.
        ops: Operations.
        op_of: Operation of each operation, an index of `ops`; int64 [operations].
        nbytes: Payload of each operation; int64 [operations].
        sizes: Members of each operation; int64 [operations].
        is_remote: Its members are on several hosts; bool [operations].
        bandwidth: What is left of its slowest link, above 0; float64 [operations].

    Returns:
        Seconds; float64 [operations].
    """
    if not len(op_of):
        return np.zeros(0)
    rows = np.stack([op_of, nbytes, sizes, is_remote, bandwidth], axis=1).astype(float)
    classes, which = np.unique(rows, axis=0, return_inverse=True)
    values = [costs.seconds(ops[int(op)], int(size), int(members), is_remote=bool(remote), bandwidth=float(left))
              for op, size, members, remote, left in classes]  # fmt: skip
    result: NDArray[np.float64] = np.array(values)[which.reshape(-1)]
    return result
