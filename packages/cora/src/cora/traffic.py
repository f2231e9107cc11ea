"""Made traffic for each shipped function: Zipf keys, on/off bursts, both directions; all follows from the seed."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cora.functions import KV_ANSWER, KV_GET, KV_MAGIC
from cora.packet import TCP, TCP_ACK, TCP_SYN, UDP, address, make_frame


class Packet(NamedTuple):
    """A frame with the time in ns at which it came in, and its device (0 or 1)."""

    time_ns: int
    port: int
    frame: bytes


@dataclass(frozen=True)
class Shape:
    """A shape of traffic.

    Attributes:
        keys: Number of flows, sources or keys.
        skew: Zipf exponent of their popularity; 0 is uniform.
        packets: Number of packets.
        rate_per_s: Mean packets a second.
        size: Frame bytes.
        back: Share of packets from device 1.
        burst: Mean packets back to back before a pause; 1 is none.
        seed: Seed of everything random.
        rotate: Added to each key's rank, so that other keys are the heavy ones.
    """

    keys: int = 4096
    skew: float = 1.0
    packets: int = 20_000
    rate_per_s: float = 100_000.0
    size: int = 128
    back: float = 0.3
    burst: float = 1.0
    seed: int = 1
    rotate: int = 0


def zipf_keys(shape: Shape) -> np.ndarray:
    """Return the key number of each packet: int64 [packets]."""
    random = np.random.default_rng(shape.seed)
    weights = 1.0 / np.arange(1, shape.keys + 1) ** shape.skew
    ranks = random.choice(shape.keys, size=shape.packets, p=weights / weights.sum())
    places = np.random.default_rng(99).permutation(shape.keys)  # heavy keys are anywhere in memory
    return np.asarray(places[(ranks + shape.rotate) % shape.keys])


def times(shape: Shape) -> np.ndarray:
    """Return increasing times in ns, in bursts whose lengths are geometric: int64 [packets]."""
    random = np.random.default_rng(shape.seed + 1)
    gaps = random.exponential(1.0, shape.packets)
    if shape.burst > 1:
        inside = random.random(shape.packets) < 1 - 1 / shape.burst
        gaps = np.where(inside, 0.05, gaps * shape.burst)
    gaps *= 1e9 / shape.rate_per_s / gaps.mean()
    return np.cumsum(gaps).astype(np.int64) + 1_000_000_000_000


def _outward(key: int, shape: Shape, protocol: int = UDP, **more: int) -> bytes:
    source, target = address("10.0.0.0") + 16 + key // 16, address("198.51.100.0") + key % 200
    sport, dport = 1024 + key % 60000, 80 + key % 16
    return make_frame(source, target, sport, dport, protocol=protocol, length=shape.size, **more)  # type: ignore[arg-type]


def _back(key: int, shape: Shape) -> bytes:
    source, target = address("198.51.100.0") + key % 200, address("10.0.0.0") + 16 + key // 16
    return make_frame(source, target, 80 + key % 16, 1024 + key % 60000, length=shape.size)


def _flows(key: int, port: int, shape: Shape) -> bytes:
    return _back(key, shape) if port else _outward(key, shape)


def _nat(key: int, port: int, shape: Shape) -> bytes:
    if not port:
        return _outward(key, shape)
    return make_frame(
        address("198.51.100.0") + key % 200, address("192.0.2.1"), 80 + key % 16, 20000 + key % 4096, length=shape.size
    )


def _balancer(key: int, port: int, shape: Shape) -> bytes:
    client, sport = address("172.16.0.0") + key // 4, 1024 + key % 60000
    if port:
        return make_frame(address("10.1.0.2") + key % 2, client, 80, sport, length=shape.size)
    return make_frame(client, address("10.0.0.100"), sport, 80, length=shape.size)


def _sources(key: int, port: int, shape: Shape) -> bytes:
    return (
        _back(key, shape)
        if port
        else make_frame(address("172.16.0.0") + key, address("10.1.0.2"), 1024 + key % 1000, 80, length=shape.size)
    )


def _guard(key: int, port: int, shape: Shape) -> bytes:
    if port:
        return _back(key, shape)
    flags = TCP_SYN if key % 8 == 0 else TCP_ACK
    return make_frame(
        address("172.16.0.0") + key, address("10.1.0.2"), 5000, 80, protocol=TCP, flags=flags, length=shape.size
    )


def _cache(key: int, port: int, shape: Shape) -> bytes:
    client, server = address("172.16.0.0") + key % 1000, address("10.1.0.2")
    body = struct.pack("!HBBQQ", KV_MAGIC, KV_ANSWER if port else KV_GET, port, key, key * 3 if port else 0)
    if port:
        return make_frame(server, client, 7000, 4000, payload=body, length=shape.size)
    return make_frame(client, server, 4000, 7000, payload=body, length=shape.size)


def _meter(key: int, port: int, shape: Shape) -> bytes:
    hosts = [address("10.2.0.0") + key % 32, address("10.2.1.0") + key // 32 % 32]
    return make_frame(hosts[port], hosts[1 - port], 40000, 29500 + key % 100, length=shape.size)


_MAKERS: dict[str, Callable[[int, int, Shape], bytes]] = {
    "firewall": _flows,
    "monitor": _flows,
    "nat": _nat,
    "balancer": _balancer,
    "bucket": _sources,
    "guard": _guard,
    "cache": _cache,
    "meter": _meter,
}


def frame_for(function: str, key: int, port: int, shape: Shape) -> bytes:
    """Return the frame of one key in one direction; functions that are not shipped get those of the monitor."""
    return _MAKERS.get(function, _flows)(key, port, shape)


def make_traffic(function: str, shape: Shape) -> list[Packet]:
    """Return packets that exercise a function."""
    random = np.random.default_rng(shape.seed + 2)
    ports = (random.random(shape.packets) < shape.back).astype(int)
    made: dict[tuple[int, int], bytes] = {}
    packets = []
    for key, port, time_ns in zip(zipf_keys(shape).tolist(), ports.tolist(), times(shape).tolist(), strict=True):
        if (key, port) not in made:
            made[(key, port)] = frame_for(function, key, port, shape)
        packets.append(Packet(time_ns, port, made[(key, port)]))
    return packets
