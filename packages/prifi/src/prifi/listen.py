"""The eavesdropper: reads a capture of the LAN, and guesses by a classifier which client had data.

It sees addresses, sizes and times. A capture is cut into windows; in each window one client, drawn at random, was
active. The classifier gets features of each client in each window and names the client that looks most active.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from prifi.errors import BadConfig, LabError

#: Packets with at least so many bytes of payload are broadcasts or cells; smaller ones are acknowledgements.
SMALL_BYTES = 60


@dataclass(frozen=True, slots=True)
class Packets:
    """Packets of a capture, in the order of time.

    Attributes:
        at: Time, seconds. float64 [packets].
        source: Source address, as a number. uint32 [packets].
        target: Target address. uint32 [packets].
        size: Bytes on the wire. int64 [packets].
        payload: Bytes behind the TCP or UDP header. int64 [packets].
    """

    at: NDArray[np.float64]
    source: NDArray[np.uint32]
    target: NDArray[np.uint32]
    size: NDArray[np.int64]
    payload: NDArray[np.int64]


def read_capture(path: Path) -> Packets:
    """Read a pcap file of Ethernet and IPv4.

    Raises:
        BadConfig: The file is no such capture.
    """
    data = path.read_bytes()
    if len(data) < 24 or data[:4] not in (b"\xd4\xc3\xb2\xa1", b"\x4d\x3c\xb2\xa1"):
        raise BadConfig(f"{path} is no capture in little-endian pcap format")
    unit = 1e-6 if data[:4] == b"\xd4\xc3\xb2\xa1" else 1e-9
    rows: list[tuple[float, int, int, int, int]] = []
    at = 24
    while at + 16 <= len(data):
        seconds, fraction, kept, size = struct.unpack_from("<IIII", data, at)
        packet = data[at + 16 : at + 16 + kept]
        at += 16 + kept
        if len(packet) < 42 or packet[12:14] != b"\x08\x00" or packet[23] not in (6, 17):
            continue
        header = 4 * (packet[14] & 15)
        length = int.from_bytes(packet[16:18], "big")
        transport = 4 * (packet[14 + header + 12] >> 4) if packet[23] == 6 else 8
        source, target = struct.unpack_from(">II", packet, 26)
        rows.append((seconds + fraction * unit, source, target, size, length - header - transport))
    rows.sort(key=lambda row: row[0])
    columns = list(zip(*rows, strict=True)) or [()] * 5
    return Packets(
        np.array(columns[0], dtype=np.float64),
        np.array(columns[1], dtype=np.uint32),
        np.array(columns[2], dtype=np.uint32),
        np.array(columns[3], dtype=np.int64),
        np.array(columns[4], dtype=np.int64),
    )


def number(address: str) -> int:
    """Return an IPv4 address as a number."""
    return int.from_bytes(bytes(map(int, address.split("."))), "big")


def offsets(packets: Packets, relay: int, client: int) -> NDArray[np.float64]:
    """Return the times from each of the relay's data packets to the client's next one, seconds."""
    large = packets.payload >= SMALL_BYTES
    down = packets.at[(packets.source == relay) & (packets.target == client) & large]
    up = packets.at[(packets.source == client) & (packets.target == relay) & large]
    place = np.searchsorted(up, down)
    inside = place < len(up)
    gaps: NDArray[np.float64] = up[place[inside]] - down[inside]
    return gaps


def features(
    packets: Packets, relay: int, clients: Sequence[int], windows: Sequence[tuple[float, float]]
) -> NDArray[np.float64]:
    """Return what the eavesdropper sees of each client in each window. float64 [windows, clients, features].

    Counts and bytes both ways, mean and largest packet, mean, spread and largest offset, largest silence. Each feature
    is taken relative to the window's other clients, since what all do tells nothing.
    """
    large = packets.payload >= SMALL_BYTES
    table = np.zeros((len(windows), len(clients), 10))
    for column, client in enumerate(clients):
        up_mask, down_mask = packets.source == client, packets.target == client
        up_at, up_size = packets.at[up_mask], packets.size[up_mask]
        up_large = large[up_mask]
        down_at, down_size, down_large = packets.at[down_mask], packets.size[down_mask], large[down_mask]
        cells_at = up_at[up_large]
        for row, (start, end) in enumerate(windows):
            a, b = np.searchsorted(up_at, (start, end))
            c, d = np.searchsorted(down_at, (start, end))
            gos = down_at[c:d][down_large[c:d]]
            place = np.searchsorted(cells_at, gos)
            known = place < len(cells_at)
            gaps = cells_at[place[known]] - gos[known] if known.any() else np.zeros(1)
            silence = np.diff(up_at[a:b]) if b - a > 1 else np.array([end - start])
            sizes = up_size[a:b] if b > a else np.zeros(1)
            table[row, column] = (
                b - a, sizes.sum(), sizes.mean(), sizes.max(), d - c, down_size[c:d].sum(),
                gaps.mean(), gaps.std(), gaps.max(), silence.max(),
            )  # fmt: skip
    centred = table - np.median(table, axis=1, keepdims=True)
    spread = centred.reshape(-1, table.shape[2]).std(axis=0)
    result: NDArray[np.float64] = centred / np.where(spread > 0, spread, 1.0)
    return result


@dataclass(frozen=True, slots=True)
class Guess:
    """How often the eavesdropper was right.

    Attributes:
        rounds: Windows in which it had to guess.
        right: Windows in which its first guess was the active client.
        clients: Clients among which it guessed.
        low: Lower end of the 95 % confidence interval of its accuracy (Wilson).
        high: Upper end.
    """

    rounds: int
    right: int
    clients: int
    low: float
    high: float

    @property
    def accuracy(self) -> float:
        """Fraction of right guesses."""
        return self.right / self.rounds

    @property
    def blind(self) -> bool:
        """Whether the accuracy is that of guessing: 1/n lies in the confidence interval."""
        return self.low <= 1 / self.clients <= self.high


def guess_active(table: NDArray[np.float64], active: Sequence[int], folds: int = 5, seed: int = 0) -> Guess:
    """Train on some windows and guess in the others, each window once.

    Args:
        table: Features. float64 [windows, clients, features].
        active: Index of the active client of each window.
        folds: Parts of the cross-validation; neighbours in time stay together.
        seed: Seed of the classifier.

    Returns:
        The guesses.

    Raises:
        LabError: scikit-learn is missing.
    """
    try:
        from sklearn.ensemble import RandomForestClassifier
    except ImportError as error:
        raise LabError("the eavesdropper's classifier needs scikit-learn: pip install 'prifi[listen]'") from error
    windows, clients, width = table.shape
    truth = np.zeros((windows, clients), dtype=int)
    truth[np.arange(windows), list(active)] = 1
    part = np.arange(windows) * folds // windows
    right = 0
    for fold in range(folds):
        test = part == fold
        forest = RandomForestClassifier(200, min_samples_leaf=3, class_weight="balanced", random_state=seed, n_jobs=1)
        forest.fit(table[~test].reshape(-1, width), truth[~test].reshape(-1))
        chance = forest.predict_proba(table[test].reshape(-1, width))[:, 1].reshape(-1, clients)
        right += int((chance.argmax(axis=1) == np.array(active)[test]).sum())
    low, high = wilson(right, windows)
    return Guess(windows, right, clients, low, high)


def wilson(right: int, rounds: int, z: float = 1.96) -> tuple[float, float]:
    """Return the 95 % confidence interval of a proportion."""
    share = right / rounds
    middle = share + z * z / (2 * rounds)
    half = z * math.sqrt(share * (1 - share) / rounds + z * z / (4 * rounds * rounds))
    scale = 1 + z * z / rounds
    return (middle - half) / scale, (middle + half) / scale
