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


def shell_lines(entry: Entry) -> str:
    """Return shell lines for programs with a transport of their own: `sysctl`, `export` and comments.

    Source:
        NCCL's documented variables. It takes no list of source ports: the kernel or the driver chooses them.
    """
    paths = entry.by_path()
    low, high, covered = best_range(paths)
    threads = -(-len(paths) // 8)
    return "\n".join(
        [
            f"# {entry.source} to {entry.target}:{entry.target_port}: {len(paths)} paths, from {entry.how}",
            f"# Ports {low} to {high} cover {covered} of them, toward this address and port only. Set the range in the",
            "# job's own network namespace, so that it does not narrow the ports of other programs:",
            f'sysctl -w net.ipv4.ip_local_port_range="{low} {high}"',
            "# NCCL takes no list of source ports. It opens this many queue pairs or sockets to each neighbor:",
            f"export NCCL_IB_QPS_PER_CONNECTION={len(paths)} NCCL_IB_SPLIT_DATA_ON_QPS=1",
            f"export NCCL_SOCKET_NTHREADS={threads} NCCL_NSOCKS_PERTHREAD={-(-len(paths) // threads)}",
        ]
    )


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
