"""Next hops: which MAC address a packet gets, learned from the kernel's neighbour table and kept in the fast tier."""

from __future__ import annotations

import ctypes
import socket
import struct
from collections.abc import Iterable
from typing import Any

from cora import bpf
from cora.namespaces import Device, forwards, ip_json

#: `struct cora_shared`: four counters of eight bytes, then 16 bytes a device, then the unknown destination.
PORTS_OFFSET, PORT_BYTES = 32, 16
_NETLINK_ROUTE, _RTMGRP_NEIGH = 0, 4
UNKNOWN_OFFSET = PORTS_OFFSET + 2 * PORT_BYTES


class NextHops:
    """Keeps `struct cora_next` of both devices, and the map of neighbours, up to date.

    Devices without an IPv4 address forward frames with their MAC addresses unchanged, as a bridge does.
    """

    def __init__(self, devices: tuple[Device, Device], shared: Any, neighbours: bpf.Map, keeps_inside: bool) -> None:
        self.devices, self.shared, self.map, self.keeps_inside = devices, shared, neighbours, keeps_inside
        self.routed = all(device.addressed for device in devices)
        self.known: dict[str, bytes] = {}
        self.macs: list[set[bytes]] = [set(), set()]
        self.news = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_ROUTE)
        self.news.bind((0, _RTMGRP_NEIGH))
        self.news.setblocking(False)
        self.refresh()

    def changed(self) -> bool:
        """Return True if the kernel has changed a neighbour, or forwards or no longer forwards, since the last call."""
        changed = self.guard != (self.keeps_inside and forwards(self.devices[0].name))
        try:
            while self.news.recv(65536):
                changed = True
        except BlockingIOError:
            return changed
        except OSError:  # more news than the socket holds
            return True
        return changed

    def refresh(self) -> None:
        """Read the kernel's neighbours and write what changed."""
        self.guard = self.keeps_inside and forwards(self.devices[0].name)
        for number, device in enumerate(self.devices):
            for one in ip_json("neigh", "show", "dev", device.name) if self.routed else []:
                if "lladdr" in one and ":" not in one["dst"] and "FAILED" not in one.get("state", []):
                    self._learn(number, one["dst"], bytes.fromhex(one["lladdr"].replace(":", "")))
            macs = self.macs[number]
            hop = next(iter(macs)) if macs else bytes(6)
            at = PORTS_OFFSET + number * PORT_BYTES
            flags = bytes([self.routed, len(macs) > 1, bool(macs), number == 0 and self.guard])
            self.shared[at : at + PORT_BYTES] = device.mac + hop + flags

    def _learn(self, number: int, address: str, mac: bytes) -> None:
        self.macs[number].add(mac)
        if self.known.get(address) != mac:
            self.known[address] = mac
            self.map.set(socket.inet_aton(address), mac + b"\0\0")

    def resolve(self, addresses: Iterable[str]) -> None:
        """Make the kernel look for the next hops of destinations; `refresh` picks the answers up."""
        if not self.routed:
            return
        for address in addresses:
            for route in ip_json("route", "get", address):
                if route.get("dev") not in {device.name for device in self.devices}:
                    continue
                hop = route.get("gateway", address)
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as poke:
                    poke.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, route["dev"].encode())
                    poke.setblocking(False)
                    try:
                        poke.sendto(b"", (hop, 9))
                    except OSError:
                        continue
                if hop != address and hop in self.known:
                    number = [device.name for device in self.devices].index(route["dev"])
                    self._learn(number, address, self.known[hop])

    def follow(self, slow: Any) -> None:
        """Resolve the destination of the last packet that found no next hop, if there was one."""
        unknown, here = ctypes.c_uint32.in_dll(slow, "cora_unknown_next"), slice(UNKNOWN_OFFSET, UNKNOWN_OFFSET + 4)
        if wanted := {bytes(self.shared[here]), struct.pack("=I", unknown.value)} - {bytes(4)}:
            self.shared[here], unknown.value = bytes(4), 0
            self.resolve(socket.inet_ntoa(address) for address in wanted)
            self.refresh()
