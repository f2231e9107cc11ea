"""Settings for stacks with a transport of their own: NCCL, UCX, any program with TCP sockets."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence

from c4p.catalogue import Entry
from c4p.errors import BadRequest
from c4p.model import NetworkPath

RANGE_SPAN = 64


def parse_target(text: str) -> tuple[str, int]:
    """Parse "HOST:PORT" into the host's address and the port.

    Raises:
        BadRequest: It is something else, or the host is unknown.
    """
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise BadRequest(f"{text!r}: expected HOST:PORT, where that host listens")
    try:
        return socket.gethostbyname(host), int(port)
    except OSError as error:
        raise BadRequest(f"{host!r} is not known: {error}") from error


def address_toward(host: str) -> str:
    """Return this host's address toward another one, without sending a packet.

    Raises:
        BadRequest: There is no route.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))
        except OSError as error:
            raise BadRequest(f"no route to {host}: {error.strerror}") from error
        return str(probe.getsockname()[0])


def stack_environment(stack: str, entry: Entry) -> str:
    """Return shell lines for one stack.

    Args:
        stack: "nccl", "ucx", "sockets" or "c4p".
        entry: What is known of the paths.

    Returns:
        `export` lines and comments.

    Source:
        NCCL's and UCX's documented variables. Neither has one that takes a list of source ports: NCCL's sockets and
        queue pairs, and UCX's paths, get source ports from the kernel, the driver or a fixed rule.
    """
    paths = entry.by_path()
    count = len(paths)
    head = [f"# {entry.source} to {entry.target}:{entry.target_port}: {count} paths, from {entry.how}"]
    if stack == "nccl":
        threads = 1 if count <= 8 else -(-count // 8)
        return "\n".join(
            [
                *head,
                "# NCCL takes no list of source ports. Over RDMA it spreads a connection over this many queue pairs:",
                f"export NCCL_IB_QPS_PER_CONNECTION={count}",
                "export NCCL_IB_SPLIT_DATA_ON_QPS=1",
                "# Over sockets it opens this many to each neighbor, with source ports from the kernel:",
                f"export NCCL_SOCKET_NTHREADS={threads}",
                f"export NCCL_NSOCKS_PERTHREAD={-(-count // threads)}",
                "# Which paths they take is left to chance; `c4p ports --for sockets` narrows the kernel's choice.",
            ]
        )
    if stack == "ucx":
        return "\n".join(
            [
                *head,
                "# UCX takes no list of source ports. Over RoCE it spreads a connection over this many paths, whose",
                "# source ports it derives from the path's number:",
                f"export UCX_IB_NUM_PATHS={count}",
                f"export UCX_MAX_RNDV_LANES={count}",
                "# Which paths they take is left to chance; UCX_RC_ROCE_PATH_FACTOR changes the rule, try several.",
            ]
        )
    if stack == "sockets":
        low, high, covered = best_range(paths)
        return "\n".join(
            [
                *head,
                f"# Ports {low} to {high} cover {covered} of {count} paths, toward this address and port only.",
                "# In the job's own network namespace, so that nobody else's ports are narrowed:",
                f'sysctl -w net.ipv4.ip_local_port_range="{low} {high}"',
            ]
        )
    return "\n".join([*head, f"export C4P_ADDRESS={entry.source}", f"export C4P_SOCKETS={max(4, count)}"])


def best_range(paths: Mapping[NetworkPath, Sequence[int]]) -> tuple[int, int, int]:
    """Find the shortest range of ports that covers the most paths.

    Returns:
        First port, last port, paths covered.
    """
    known = sorted((port, path) for path, ports in paths.items() for port in ports)
    best: tuple[int, int, int, int] | None = None
    for start, (low, _) in enumerate(known):
        seen: set[NetworkPath] = set()
        for high, path in known[start:]:
            if high - low >= RANGE_SPAN:
                break
            seen.add(path)
            candidate = (-len(seen), high - low, low, high)
            best = candidate if best is None else min(best, candidate)
    if best is None or not known[0][0]:
        raise BadRequest("nothing is known of the paths: the other host is this one, or one link leads there")
    return best[2], best[3], -best[0]
