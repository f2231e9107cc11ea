"""A fleet written straight through the service's own intake: many jobs, without processes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec
import sqlalchemy as sa
from eroica.fleet.records import (
    Batch,
    Beat,
    Piece,
    Place,
    Points,
    RunFacts,
    StandstillBody,
    VerdictBody,
    pack_body,
)
from eroica.fleet.reporting.packing import block_of
from eroica.model.verdict import Verdict
from support.run_directories import a_pattern, a_verdict

from eroica_fleet.database import writing
from eroica_fleet.intake import enter, prepare
from eroica_fleet.pieces import PatternStore


def facts_of(job: str, began: float, commit: str = "") -> RunFacts:
    name = hashlib.sha256(f"{job} {began}".encode()).hexdigest()[:32]
    return RunFacts(run=name, job=job, began=began, host="node0", commit=commit, eroica_version="0")


def verdict_piece(facts: RunFacts, window_id: int, at: float, verdict: Verdict) -> Piece:
    finding = verdict.cause
    places = {} if finding is None else dict(zip(finding.workers, map(_place, finding.hosts), strict=False))
    body = VerdictBody(window_id=window_id, judged_at=at, verdict=verdict, places=places)
    return Piece(kind="verdict", key=f"verdict/{window_id}", facts=facts, at=at, body=pack_body(body))


def _place(host: str) -> Place:
    return Place(host=host, device=f"GPU-{host}")


def patterns_piece(
    facts: RunFacts, window_id: int, seconds: float, workers: int = 8, purpose: str = "baseline", host: str = ""
) -> Piece:
    patterns = [a_pattern(rank, window_id, host, seconds=seconds) for rank in range(workers)]
    block = block_of(0, patterns, "baseline")
    return Piece(kind="patterns", key=f"patterns/{window_id}/0", facts=facts, at=facts.began, body=pack_body(block))


def standstill_piece(facts: RunFacts, window_id: int, at: float, word: str = "blocked") -> Piece:
    body = StandstillBody(window_id=window_id, seen_at=at, record=msgspec.json.encode({"message": word}))
    return Piece(kind="standstill", key=f"standstill/{window_id}", facts=facts, at=at, body=pack_body(body))


def beat(facts: RunFacts, at: float, hosts: Sequence[str], **more: Any) -> Beat:
    values = {"phase": "watching", "iteration": 100, "mean_ms": 100.0, "best_ms": 98.0, "workers": 8 * len(hosts)}
    points = Points(
        at_s=(1.0, 2.0), iteration=(1, 2), mean_ms=(100.0, 101.0), slowest_ms=(101.0, 102.0), slowest_worker=(0, 1)
    )
    return Beat(facts=facts, at=at, hosts=tuple(hosts), points=points, **(values | more))


class Filling:
    """Enters batches for a project.

    Args:
        engine: The database.
        store: Where patterns go.
        project_id: Whose.
    """

    def __init__(self, engine: sa.Engine, store: PatternStore, project_id: int = 1) -> None:
        self.engine, self.store, self.project_id = engine, store, project_id

    def put(self, *pieces: Piece, beat: Beat | None = None) -> None:
        ready = prepare(Batch(pieces=pieces, beat=beat), self.project_id, self.store)
        assert not ready.refused, ready.refused
        with writing(self.engine).begin() as connection:
            enter(connection, ready)

    def run(
        self, job: str, began: float, heard: float, hosts: Sequence[str], named: Sequence[str] = (), **verdict: Any
    ) -> RunFacts:
        """A run with its hosts, one slow window that names some of them, and when it was heard of last."""
        commit = verdict.pop("commit", "")
        facts = facts_of(job, began, commit)
        at = verdict.pop("at", began + 60)
        more = verdict.pop("beat", {})
        pieces = []
        if named or verdict:
            found = a_verdict(job, workers=range(len(named)), hosts=named, scope="some" if named else "all", **verdict)
            pieces.append(verdict_piece(facts, 1, at, found))
        self.put(*pieces, beat=beat(facts, heard, hosts, **more))
        self.heard(facts, heard)
        return facts

    def heard(self, facts: RunFacts, at: float) -> None:
        """As if it had reported then."""
        with writing(self.engine).begin() as connection:
            connection.execute(sa.text("update runs set heard_at = :at where run = :run"), {"at": at, "run": facts.run})
