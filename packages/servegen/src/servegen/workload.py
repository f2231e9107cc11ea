"""A workload: everything that is needed to generate the same requests again, as a YAML file."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from servegen.errors import BadFile, BadRequest
from servegen.pool import Pool, read_pool

Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Positive = Annotated[float, msgspec.Meta(gt=0)]


class Sessions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Conversations of several turns.

    Attributes:
        share: Share of requests that belong to a conversation of more than one turn, 0-1.
        turns: Mean turns of those conversations, at least 2.
        gap_s: Median seconds between two turns; the gaps are log-normal.
        gap_sigma: Standard deviation of the gap's logarithm.
        growth: Each turn's input contains the inputs and answers before it.
        max_context: A conversation ends before a turn whose input would exceed this many tokens.
        system_tokens: Tokens of a system prompt that all requests of one client share.
    """

    share: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.096
    turns: Annotated[float, msgspec.Meta(ge=2)] = 3.5
    gap_s: Positive = 100.0
    gap_sigma: Positive = 1.0
    growth: bool = True
    max_context: Annotated[int, msgspec.Meta(gt=0)] = 32_768
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
    """Service-level objectives, in seconds.

    Attributes:
        ttft_s: Limit of the time to the first token.
        tbt_s: Limit of the time between tokens.
        quantile: Share of requests (TTFT) and of tokens (TBT) that must stay within the limits when a fleet is sized.
    """

    ttft_s: Positive = 1.0
    tbt_s: Positive = 0.1
    quantile: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.99


class Workload(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=False):
    """One workload.

    Attributes:
        pool: Path of the pool, or "sample".
        hours: Length of the workload.
        seed: Seed of all random numbers.
        rate: Total requests per second; or [[seconds from start, rate], ...], each holding until the next; or None for
            the pool's own rate.
        start_hour: Hour of the pool at which the workload begins.
        counts: "renewal" (counts vary) or "exact" (a fixed count per client and window).
        coupling: "independent", "comonotone" or "rank:RHO".
        repeat: Start the pool again at its end.
        only_clients: Emit only these clients; the others still take their share of the rate.
        sessions: Conversations of several turns, or None.
        slo: Limits for goodput and sizing.
        pool_digest: SHA-256 of the pool's content; a changed pool is refused. Empty accepts any.
        servegen: Version of this file's format.
    """

    pool: str = "sample"
    hours: Positive = 1.0
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] = 0
    rate: Positive | list[tuple[float, float]] | None = None
    start_hour: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    counts: Literal["renewal", "exact"] = "renewal"
    coupling: str = "independent"
    repeat: bool = False
    only_clients: list[str] = []
    sessions: Sessions | None = None
    slo: Slo = Slo()
    pool_digest: str = ""
    servegen: Literal[1] = 1

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
    try:
        return msgspec.yaml.decode(path.read_bytes(), type=Workload)
    except OSError as error:
        raise BadFile(path, f"cannot be read ({error.strerror})") from error
    except msgspec.ValidationError as error:
        problem, _, field = str(error).partition(" - at `")
        raise BadFile(path, problem, field=field.strip("`$.") or None) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadFile(path, f"not YAML ({' '.join(str(error).split())})") from error


def write_workload(workload: Workload, path: Path) -> None:
    """Write a workload file."""
    path.write_bytes(msgspec.yaml.encode(workload))


def parse_rate(text: str | None) -> float | list[tuple[float, float]] | None:
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
        return _read_rate(path)
    if not (rate > 0 and math.isfinite(rate)):
        raise BadRequest(f"rate {text} is not a positive number of requests per second")
    return rate


def _read_rate(path: Path) -> list[tuple[float, float]]:
    text = path.read_text(encoding="utf-8", errors="replace")
    if path.suffix == ".json":
        try:
            rows: list[Any] = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise BadFile(path, f"not JSON ({error})") from error
        first = 1
    else:
        rows = [row for row in csv.reader(io.StringIO(text)) if row]
        first = 2 if rows and not _is_number(rows[0][0]) else 1
        rows = rows[first - 1 :]
    steps: list[tuple[float, float]] = []
    if not isinstance(rows, list) or not rows:
        raise BadFile(path, "holds no rates; rows are: seconds from start, requests per second")
    for number, row in enumerate(rows, start=first):
        try:
            start, rate = map(float, row)
        except (TypeError, ValueError):
            raise BadFile(path, "is not: seconds from start, requests per second", row=number) from None
        if not (math.isfinite(rate) and rate >= 0):
            raise BadFile(path, f"{rate} is not a rate", row=number, field="rate")
        if not (start > steps[-1][0] if steps else start == 0):
            raise BadFile(path, "must begin at 0 and rise", row=number, field="start")
        steps.append((start, rate))
    return steps


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
