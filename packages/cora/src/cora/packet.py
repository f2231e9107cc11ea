"""Packet fields at fixed offsets, and checksums: Ethernet, IPv4 without options, TCP, UDP, ICMP.

Every supported packet has its fields at the same offsets, because IPv4 options, VLAN tags and fragments are not
supported. `supported` decides that; both tiers' generated C makes the same decision.
"""

from __future__ import annotations

import ipaddress
import struct
from typing import NamedTuple

import dpkt  # type: ignore[import-untyped]

TCP, UDP, ICMP = 6, 17, 1
TCP_FIN, TCP_SYN, TCP_RST, TCP_ACK = 1, 2, 4, 16
IP_OFFSET, L4_OFFSET, PAYLOAD_OFFSET = 14, 34, 42
IP_CHECKSUM, TCP_CHECKSUM, UDP_CHECKSUM = 24, 50, 40


class Field(NamedTuple):
    """A packet field: the header that must be parsed first, byte offset in the frame, and width in bits."""

    header: str
    offset: int
    bits: int
    writable: bool = True


#: `pkt.*` fields describe the packet and are no bytes of it: frame length in bytes, and the device it came by (0, 1).
FIELDS: dict[str, Field] = {
    "pkt.len": Field("ipv4", -1, 16, False),
    "pkt.port": Field("ipv4", -1, 8, False),
    "ip.tos": Field("ipv4", 15, 8, False),
    "ip.len": Field("ipv4", 16, 16, False),
    "ip.id": Field("ipv4", 18, 16, False),
    "ip.ttl": Field("ipv4", 22, 8),
    "ip.proto": Field("ipv4", 23, 8, False),
    "ip.src": Field("ipv4", 26, 32),
    "ip.dst": Field("ipv4", 30, 32),
    "l4.sport": Field("ports", 34, 16),
    "l4.dport": Field("ports", 36, 16),
    "tcp.seq": Field("tcp", 38, 32),
    "tcp.ack": Field("tcp", 42, 32),
    "tcp.flags": Field("tcp", 47, 8),
    "udp.len": Field("udp", 38, 16, False),
    "icmp.type": Field("icmp", 34, 8, False),
    "kv.magic": Field("kv", 42, 16),
    "kv.op": Field("kv", 44, 8),
    "kv.found": Field("kv", 45, 8),
    "kv.key": Field("kv", 46, 64),
    "kv.value": Field("kv", 54, 64),
}

#: Headers: (protocols, least frame length). A header also provides the fields of those in `INCLUDED`.
HEADERS: dict[str, tuple[tuple[int, ...], int]] = {
    "ipv4": ((), 34),
    "ports": ((TCP, UDP), 42),
    "tcp": ((TCP,), 54),
    "udp": ((UDP,), 42),
    "icmp": ((ICMP,), 42),
    "kv": ((UDP,), 62),
}
INCLUDED: dict[str, tuple[str, ...]] = {"tcp": ("ports",), "udp": ("ports",), "kv": ("udp", "ports")}


def supported(frame: bytes) -> bool:
    """Return True for IPv4 without options and fragments, whose length fits the frame."""
    if len(frame) < L4_OFFSET or frame[12:14] != b"\x08\x00" or frame[14] != 0x45:
        return False
    length, fragment = struct.unpack_from("!HxxH", frame, 16)
    return not fragment & 0x3FFF and 20 <= length <= len(frame) - IP_OFFSET


def has_header(frame: bytes | bytearray, header: str) -> bool:
    """Return True if a supported frame has the header in full."""
    protocols, least = HEADERS[header]
    if len(frame) < (least + 12 if protocols == (TCP, UDP) and frame[23] == TCP else least):
        return False
    return not protocols or frame[23] in protocols


def read_field(frame: bytes | bytearray, name: str, port: int) -> int:
    """Return a field's value in host order."""
    field = FIELDS[name]
    if name == "pkt.len":
        return len(frame)
    if name == "pkt.port":
        return port
    return int.from_bytes(frame[field.offset : field.offset + field.bits // 8], "big")


def write_field(frame: bytearray, name: str, value: int) -> None:
    """Store a field and adapt the checksums as RFC 1624 does; a UDP checksum of 0 stays 0."""
    field = FIELDS[name]
    size = field.bits // 8
    start, end = field.offset & ~1, (field.offset + size + 1) & ~1
    before = bytes(frame[start:end])
    frame[field.offset : field.offset + size] = (value % (1 << field.bits)).to_bytes(size, "big")
    after = bytes(frame[start:end])
    if field.header == "ipv4":
        _adapt(frame, IP_CHECKSUM, before, after)
    if field.header != "ipv4" or name in {"ip.src", "ip.dst"}:
        if frame[23] == TCP and len(frame) >= HEADERS["tcp"][1]:
            _adapt(frame, TCP_CHECKSUM, before, after)
        elif frame[23] == UDP and len(frame) >= HEADERS["udp"][1] and frame[40:42] != b"\0\0":
            _adapt(frame, UDP_CHECKSUM, before, after)
            if frame[40:42] == b"\0\0":
                frame[40:42] = b"\xff\xff"


def _adapt(frame: bytearray, offset: int, before: bytes, after: bytes) -> None:
    total = ~int.from_bytes(frame[offset : offset + 2], "big") & 0xFFFF
    for index in range(0, len(before), 2):
        total += ~int.from_bytes(before[index : index + 2], "big") & 0xFFFF
        total += int.from_bytes(after[index : index + 2], "big")
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    frame[offset : offset + 2] = (~total & 0xFFFF).to_bytes(2, "big")


def make_frame(  # noqa: PLR0913 - one argument a field
    source: int,
    target: int,
    sport: int,
    dport: int,
    *,
    protocol: int = UDP,
    flags: int = TCP_ACK,
    payload: bytes = b"",
    seq: int = 0,
    ack: int = 0,
    length: int = 0,
    ttl: int = 64,
    udp_checksum: bool = True,
) -> bytes:
    """Return an Ethernet frame with right checksums, padded with zeros to `length` bytes of frame.

    Args:
        source: IPv4 source address as an integer.
        target: IPv4 destination address as an integer.
        sport: Source port, or ICMP type.
        dport: Destination port, or ICMP code.
        protocol: TCP, UDP or ICMP.
        flags: TCP flags.
        payload: Bytes after the TCP, UDP or ICMP header.
        seq: TCP sequence number.
        ack: TCP acknowledgement number.
        length: Least length of the frame in bytes.
        ttl: Time to live.
        udp_checksum: False leaves the UDP checksum 0.
    """
    payload = payload.ljust(length - L4_OFFSET - (20 if protocol == TCP else 8), b"\0")
    if protocol == TCP:
        segment = dpkt.tcp.TCP(sport=sport, dport=dport, seq=seq, ack=ack, flags=flags, win=65535, data=payload)
    elif protocol == UDP:
        segment = dpkt.udp.UDP(sport=sport, dport=dport, ulen=8 + len(payload), data=payload)
        segment = segment if udp_checksum else bytes(segment)
    else:
        segment = dpkt.icmp.ICMP(type=sport & 0xFF, code=dport & 0xFF, data=bytes(4) + payload)
    packet = dpkt.ip.IP(
        src=source.to_bytes(4, "big"), dst=target.to_bytes(4, "big"), p=protocol, id=0, df=1, ttl=ttl, data=segment
    )
    packet.len = len(packet)
    return b"\x02\0\0\0\0\x02\x02\0\0\0\0\x01\x08\x00" + bytes(packet)


def address(text: str) -> int:
    """Return an IPv4 address in dotted form as an integer; raise ValueError for anything else."""
    return int(ipaddress.IPv4Address(text))
