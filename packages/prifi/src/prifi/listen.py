"""The eavesdropper: reads a capture of the LAN, and guesses by a classifier which client had data.

It sees addresses, sizes and times. A capture is cut into windows; in each window one client, drawn at random, was
active. The classifier gets features of each client in each window and names the client that looks most active.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from prifi.errors import BadConfig, LabError

#: Packets with at least so many bytes of payload are broadcasts or cells; smaller ones are acknowledgements.
SMALL_BYTES = 60
#: A line of tcpdump: time, source, target, bytes of payload.
_LINE = re.compile(r"([\d.]+) IP ([\d.]+)\.\d+ > ([\d.]+)\.\d+: (?:tcp|UDP, length) (\d+)")


@dataclass(frozen=True, slots=True)
class Packets:
    """Packets of a capture, in the order of time.

    Attributes:
        at: Time, seconds. float64 [packets].
        source: Source address. str [packets].
        target: Target address. str [packets].
        payload: Bytes behind the TCP or UDP header. int64 [packets].
    """

    at: NDArray[np.float64]
    source: NDArray[np.str_]
    target: NDArray[np.str_]
    payload: NDArray[np.int64]


def read_capture(path: Path) -> Packets:
    """Read a pcap file of IPv4 with tcpdump.

    Raises:
        BadConfig: The file is no such capture.
    """
    done = subprocess.run(["tcpdump", "-r", str(path), "-tt", "-n", "-q"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise BadConfig(f"tcpdump cannot read {path}: {done.stderr.strip()[-200:]}")
    columns = list(zip(*_LINE.findall(done.stdout), strict=True)) or [()] * 4
    order = np.argsort(np.array(columns[0], dtype=float), kind="stable")
    return Packets(
        np.array(columns[0], dtype=float)[order],
        np.array(columns[1], dtype=str)[order],
        np.array(columns[2], dtype=str)[order],
        np.array(columns[3], dtype=np.int64)[order],
    )


def offsets(packets: Packets, relay: str, client: str) -> NDArray[np.float64]:
    """Return the times from each of the relay's data packets to the client's next one, seconds."""
    large = packets.payload >= SMALL_BYTES
    down = packets.at[(packets.source == relay) & (packets.target == client) & large]
    up = packets.at[(packets.source == client) & (packets.target == relay) & large]
    place = np.searchsorted(up, down)
    inside = place < len(up)
    gaps: NDArray[np.float64] = up[place[inside]] - down[inside]
    return gaps


def features(
    packets: Packets, relay: str, clients: Sequence[str], windows: Sequence[tuple[float, float]]
) -> NDArray[np.float64]:
    """Return what the eavesdropper sees of each client in each window. float64 [windows, clients, features].

    Counts and bytes both ways, mean and largest packet, mean, spread and largest offset, largest silence. Each feature
    is taken relative to the window's other clients, since what all do tells nothing.
    """
    table = np.zeros((len(windows), len(clients), 10))
    for row, (start, end) in enumerate(windows):
        first, last = np.searchsorted(packets.at, (start, end))
        part = Packets(*(getattr(packets, name)[first:last] for name in ("at", "source", "target", "payload")))
        for column, client in enumerate(clients):
            up, down = part.source == client, part.target == client
            sizes, gaps = part.payload[up], offsets(part, relay, client)
            silences = np.diff(part.at[up])
            table[row, column] = (
                up.sum(), sizes.sum(), sizes.mean() if len(sizes) else 0, sizes.max(initial=0),
                down.sum(), part.payload[down].sum(),
                gaps.mean() if len(gaps) else 0, gaps.std() if len(gaps) else 0, gaps.max(initial=0),
                silences.max(initial=0) if len(silences) else end - start,
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
        from scipy.stats import binomtest
        from sklearn.ensemble import RandomForestClassifier
        from sklearn.model_selection import GroupKFold, cross_val_predict
    except ImportError as error:
        raise LabError("the eavesdropper's classifier needs scikit-learn: pip install 'prifi[listen]'") from error
    windows, clients, width = table.shape
    truth = (np.arange(clients) == np.array(active)[:, None]).astype(int)
    part = np.repeat(np.arange(windows) * folds // windows, clients)
    forest = RandomForestClassifier(200, min_samples_leaf=3, class_weight="balanced", random_state=seed, n_jobs=1)
    chance = cross_val_predict(
        forest, table.reshape(-1, width), truth.ravel(), groups=part, cv=GroupKFold(folds), method="predict_proba"
    )
    right = int((chance[:, 1].reshape(windows, clients).argmax(axis=1) == np.array(active)).sum())
    interval = binomtest(right, windows).proportion_ci(method="wilson")
    return Guess(windows, right, clients, float(interval.low), float(interval.high))
