"""Packets from capture files and devices, and into capture files."""

from __future__ import annotations

import ipaddress
import itertools
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import dpkt  # type: ignore[import-untyped]

from cora.errors import BadInput, DeviceError, Unsupported
from cora.traffic import Packet

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
