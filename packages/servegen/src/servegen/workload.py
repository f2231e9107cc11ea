"""A workload: everything that is needed to generate the same requests again, as a YAML file."""

from __future__ import annotations

import csv
import hashlib
import json
import math
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from servegen.errors import BadRequest
from servegen.files import misfit, read_file
from servegen.pool import Pool, read_pool

Positive = Annotated[float, msgspec.Meta(gt=0, le=1e15)]
NonNegative = Annotated[float, msgspec.Meta(ge=0, le=1e15)]
#: Seconds from the workload's start, and the total requests per second from then on.
RateStep = tuple[NonNegative, NonNegative]


class Sessions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Conversations of several turns."""

    #: Share of requests that belong to a conversation of more than one turn, 0-1
    share: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.096
    turns: Annotated[float, msgspec.Meta(ge=2)] = 3.5  #: Mean turns of those conversations, at least 2
    gap_s: Positive = 100.0  #: Median seconds between two turns; the gaps are log-normal
    gap_sigma: Positive = 1.0  #: Standard deviation of the gap's logarithm
    growth: bool = True  #: Each turn's input contains the inputs and answers before it
    #: A conversation ends before a turn whose input would exceed this many tokens
    max_context: Annotated[int, msgspec.Meta(gt=0)] = 32_768
    #: Tokens of a system prompt that all requests of one client share
    system_tokens: Annotated[int, msgspec.Meta(ge=0)] = 0

    @property
    def multi_turn(self) -> float:
        """Return the share of conversations that have more than one turn."""
        return self.share / (self.turns * (1 - self.share) + self.share)

    @property
    def mean_turns(self) -> float:
        """Return the mean turns of all conversations."""
        return 1 + self.multi_turn * (self.turns - 1)


class Slo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Service-level objectives: limits of the time to the first token and between tokens, in seconds.

    When a fleet is sized, the share `quantile` of requests (TTFT) and of tokens (TBT) must stay within them.
    """

    ttft_s: Positive = 1.0
    tbt_s: Positive = 0.1
    quantile: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.99


class Workload(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=False):
    """One workload."""

    pool: str = "sample"  #: Path of the pool, or "sample"
    hours: Positive = 1.0  #: Length of the workload
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] = 0  #: Seed of all random numbers
    #: Total requests per second; or [[seconds from start, rate], ...], each holding until the next; or None for the
    #: pool's own rate
    rate: Positive | list[RateStep] | None = None
    start_hour: NonNegative = 0.0  #: Hour of the pool at which the workload begins
    #: "renewal" (counts vary) or "exact" (a fixed count per client and window)
    counts: Literal["renewal", "exact"] = "renewal"
    coupling: str = "independent"  #: "independent", "comonotone" or "rank:RHO"
    repeat: bool = False  #: Start the pool again at its end
    only_clients: list[str] = []  #: Emit only these clients; the others still take their share of the rate
    sessions: Sessions | None = None  #: Conversations of several turns, or None
    slo: Slo = Slo()  #: Limits for goodput and sizing
    pool_digest: str = ""  #: SHA-256 of the pool's content; a changed pool is refused. Empty accepts any.
    servegen: Literal[1] = 1  #: Version of this file's format

    def read_pool(self, beside: Path | None = None) -> Pool:
        """Read the pool; a relative path is looked up beside the workload's file, then in the working directory.

        Raises:
            BadRequest: The pool is not the one that the digest states.
        """
        where = Path(self.pool)
        if beside is not None and not where.is_absolute() and (beside / where).exists():
            where = beside / where
        pool = read_pool(where)
        if self.pool_digest and self.pool_digest != pool_digest(pool):
            raise BadRequest(f"pool {self.pool} is not the one that this workload was made with; its digest differs")
        return pool


def pool_digest(pool: Pool) -> str:
    """Return the SHA-256 of what a pool says, whatever file it came from."""
    digest = hashlib.sha256(json.dumps([pool.clients, pool.window_s]).encode())
    for array in (pool.rate, pool.process, pool.shape):
        digest.update(array.tobytes())
    for field, column in sorted(pool.lengths.items()):
        for c, entry in enumerate(column):
            if entry is not None:
                digest.update(f"{field} {c}".encode() + entry.starts_s.astype("int64").tobytes())
                for histogram in entry.histograms:
                    digest.update(histogram.values.tobytes() + histogram.cumulative.tobytes())
    return digest.hexdigest()


def read_workload(path: Path) -> Workload:
    """Read a workload file.

    Raises:
        BadFile: The file is not YAML, or a field is unknown or out of range.
    """
    return read_file(path, lambda data: msgspec.yaml.decode(data, type=Workload), "YAML")


def write_workload(workload: Workload, path: Path) -> None:
    """Write a workload file."""
    path.write_bytes(msgspec.yaml.encode(workload))


def parse_rate(text: str | None) -> float | list[RateStep] | None:
    """Return the rate that an option names: a number, or a CSV or JSON file of (seconds from start, rate).

    Raises:
        BadRequest: The text is neither a positive number nor a file.
        BadFile: The file is malformed.
    """
    if text is None:
        return None
    try:
        rate = float(text)
    except ValueError:
        path = Path(text)
        if not path.is_file():
            raise BadRequest(f"rate {text!r} is neither a number nor a file") from None
        if path.suffix == ".json":
            return read_file(path, msgspec.json.Decoder(list[RateStep]).decode, "JSON")
        return _csv_steps(path)
    if not (rate > 0 and math.isfinite(rate)):
        raise BadRequest(f"rate {text} is not a positive number of requests per second")
    return rate


def _csv_steps(path: Path) -> list[RateStep]:
    steps: list[RateStep] = []
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        for number, row in enumerate(csv.reader(file), start=1):
            try:
                steps.append(msgspec.convert(row, RateStep, strict=False))
            except msgspec.ValidationError as error:
                if number > 1:
                    raise misfit(path, error, number) from None
    return steps
