"""Live samples: packets of a device, read by a packet socket."""

from __future__ import annotations

import socket
import time

from cora.errors import DeviceError, Unsupported
from cora.packet import address
from cora.traffic import Packet

_ALL_PROTOCOLS = 3


def sample_device(device: str, seconds: float, inside: str, most: int = 200_000) -> list[Packet]:
    """Return packets that a device receives or sends; sources in the prefix `inside` count as from device 0."""
    base, _, length = inside.partition("/")
    shift = 32 - int(length or 32)
    prefix = address(base) >> shift
    packets: list[Packet] = []
    try:
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_PROTOCOLS)) as tap:
            tap.bind((device, _ALL_PROTOCOLS))
            end = time.monotonic() + seconds
            while (left := end - time.monotonic()) > 0 and len(packets) < most:
                tap.settimeout(left)
                try:
                    frame = tap.recv(4096)
                except TimeoutError:
                    break
                source = int.from_bytes(frame[26:30], "big") if len(frame) >= 30 else 0
                packets.append(Packet(time.monotonic_ns(), int(source >> shift != prefix), frame))
    except PermissionError:
        raise Unsupported("sampling a device needs root; profile a capture file instead") from None
    except OSError as error:
        raise DeviceError(f"{device}: {error.strerror or error}") from error
    return packets
