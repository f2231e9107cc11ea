"""Packets: made traffic for each shipped function, capture files, and live samples.

Made traffic has Zipf keys, on/off bursts and both directions; all of it follows from the seed.
"""

from __future__ import annotations

import ipaddress
import itertools
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import dpkt  # type: ignore[import-untyped]
import numpy as np

from cora.errors import BadInput, DeviceError, Unsupported
from cora.functions import KV_ANSWER, KV_GET, KV_MAGIC
from cora.packet import TCP, TCP_ACK, TCP_SYN, address, make_frame


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


#: (source, target, source port, target port) of a packet.
Ends = tuple[int, int, int, int]
_OUTSIDE, _INSIDE, _CLIENTS, _SERVERS = map(address, ("198.51.100.0", "10.0.0.0", "172.16.0.0", "10.1.0.2"))


def _flow(key: int) -> Ends:
    return _INSIDE + 16 + key // 16, _OUTSIDE + key % 200, 1024 + key % 60000, 80 + key % 16


#: By function, the ends of a key's packet from device 0, and from device 1 where it is not the way back.
_ENDS: dict[str, tuple[Callable[[int], Ends], Callable[[int], Ends] | None]] = {
    "nat": (_flow, lambda key: (_OUTSIDE + key % 200, address("192.0.2.1"), 80 + key % 16, 20000 + key % 4096)),
    "balancer": (
        lambda key: (_CLIENTS + key // 4, address("10.0.0.100"), 1024 + key % 60000, 80),
        lambda key: (_SERVERS + key % 2, _CLIENTS + key // 4, 80, 1024 + key % 60000),
    ),
    "bucket": (lambda key: (_CLIENTS + key, _SERVERS, 1024 + key % 1000, 80), None),
    "guard": (lambda key: (_CLIENTS + key, _SERVERS, 5000, 80), None),
    "cache": (lambda key: (_CLIENTS + key % 1000, _SERVERS, 4000, 7000), None),
    "meter": (
        lambda key: (address("10.2.0.0") + key % 32, address("10.2.1.0") + key // 32 % 32, 40000, 29500 + key % 100),
        lambda key: (address("10.2.1.0") + key // 32 % 32, address("10.2.0.0") + key % 32, 40000, 29500 + key % 100),
    ),
}


def frame_for(function: str, key: int, port: int, shape: Shape) -> bytes:
    """Return the frame of one key in one direction; functions that are not shipped get those of the monitor."""
    forth, back = _ENDS.get(function, (_flow, None))
    if port and back:
        ends = back(key)
    else:
        source, target, sport, dport = forth(key)
        ends = (target, source, dport, sport) if port else (source, target, sport, dport)
    more: dict[str, Any] = {}
    if function == "guard" and not port:
        more = {"protocol": TCP, "flags": TCP_SYN if key % 8 == 0 else TCP_ACK}
    if function == "cache":
        operation, value = (KV_ANSWER, key * 3) if port else (KV_GET, 0)
        more = {"payload": struct.pack("!HBBQQ", KV_MAGIC, operation, port, key, value)}
    return make_frame(*ends, length=shape.size, **more)


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


_LINK_ETHERNET, _ALL_PROTOCOLS = 1, 3


def capture(source: Path | str, inside: str, seconds: float = 5.0, most: int = 200_000) -> list[Packet]:
    """Return packets of a pcap or pcapng file, or of a device if the source is a string.

    Times of files are right to a microsecond for every resolution that the formats know; a pcapng file has one
    resolution, that of its first interface. Link types other than Ethernet are refused.

    Args:
        source: A file, or the name of a device; a device's packets are those that it receives and sends.
        inside: Prefix of the sources that come in by device 0.
        seconds: How long to sample a device.
        most: Packets after which reading ends.
    """
    try:
        prefix = ipaddress.IPv4Network(inside)
    except ValueError as error:
        raise BadInput(f"--inside {inside}: {error}; give a prefix such as 10.0.0.0/8") from error
    records = _live(source, seconds) if isinstance(source, str) else _records(source)
    network, mask = int(prefix.network_address), int(prefix.netmask)
    return [
        Packet(time_ns, int(int.from_bytes(frame[26:30], "big") & mask != network), frame)
        for time_ns, frame in itertools.islice(records, most)
    ]


def _records(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with path.open("rb") as file:
            reader = dpkt.pcap.UniversalReader(file)
            if reader.datalink() != _LINK_ETHERNET:
                raise BadInput(f"{path} has link type {reader.datalink()}; capture on an Ethernet device (link type 1)")
            for seconds, frame in reader:
                yield round(seconds * 1_000_000_000), bytes(frame)
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror or error}") from error
    except (ValueError, dpkt.Error, struct.error) as error:
        raise BadInput(f"{path} is no pcap or pcapng file that can be read: {error}") from error


def _live(device: str, seconds: float) -> Iterator[tuple[int, bytes]]:
    end = time.monotonic() + seconds
    try:
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_PROTOCOLS)) as tap:
            tap.bind((device, _ALL_PROTOCOLS))
            while (left := end - time.monotonic()) > 0:
                tap.settimeout(left)
                frame = tap.recv(4096)
                yield time.monotonic_ns(), frame
    except TimeoutError:
        return
    except PermissionError:
        raise Unsupported("sampling a device needs root; profile a capture file instead") from None
    except OSError as error:
        raise DeviceError(f"{device}: {error.strerror or error}") from error


def write_pcap(path: Path, packets: Sequence[Packet]) -> None:
    """Write packets as a pcap file with ns resolution."""
    try:
        with path.open("wb") as file:
            file.write(struct.pack("<IHHIIII", 0xA1B23C4D, 2, 4, 0, 0, 65535, _LINK_ETHERNET))
            for packet in packets:
                size = len(packet.frame)
                file.write(struct.pack("<IIII", *divmod(packet.time_ns, 10**9), size, size) + packet.frame)
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from error
