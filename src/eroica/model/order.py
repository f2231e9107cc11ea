"""What a verdict asks of whoever steers the job: an order that a program can follow."""

from __future__ import annotations

from typing import Literal

import msgspec

Action = Literal["isolate-worker", "isolate-host", "avoid-path"]


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """One order.

    Attributes:
        job: Name of the job.
        order: Counts from 1 in a job.
        action: Leave out these workers, or these hosts; or use another way between (or to) these hosts.
        workers: Global ranks that are named; empty where the place is a way.
        hosts: Hosts that are named; of a connection sender and receiver.
        restart: The job stands still: start it again from its last checkpoint. Else it goes on, only slower.
        confidence: Of the verdict, 0-1.
        cause: Slug in the catalog.
        found_by: What the verdict rests on.
        window: Its number; its record lies in windows/<number>/verdict.json of the run directory.
        summary: Its sentence.
        at: When the order was given, UTC, ISO 8601.
    """

    job: str
    order: int
    action: Action
    workers: tuple[int, ...]
    hosts: tuple[str, ...]
    restart: bool
    confidence: float
    cause: str
    found_by: str
    window: int
    summary: str
    at: str
    schema_version: int = 1
