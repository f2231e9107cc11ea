"""The table of causes: which facts of a block give it which name.

The first row whose condition holds names the block. A new cause is a row here, an entry in `model/causes.py` and a page
in `docs/causes/`.
"""

from __future__ import annotations

from collections.abc import Callable

from eroica.diagnosis.block import Block
from eroica.diagnosis.frames import HALF, MOST
from eroica.diagnosis.operators import HELD

#: Operators run this share of their time more, and that is most of what they take longer: more work.
_MORE_WORK = 0.1
#: On cores, in a job that nobody finds slow, a worker's operators take this much longer, or the model is built so.
_CLEARLY_SLOWER = 1.3
#: No cause: it is how the model is built, or batches that have grown as planned.
NO_FAULT = ""
UNKNOWN = "unknown"
PLANNED = "planned-change"


def _runs_more(block: Block) -> bool:
    more, slower = block.facts.more_work, block.facts.slower
    return more >= _MORE_WORK and more >= MOST * (more + slower)


def _is_one_role(block: Block) -> bool:
    return block.agreement is not None or block.scope == "rotating"


#: A slug in the catalog, "" for no fault; and the condition: its arguments are the block, and whether its operators'
#: times can be trusted: a device ran them, or the job got slower.
LABELS: tuple[tuple[str, Callable[[Block, bool], bool]], ...] = (
    ("sibling-process", lambda b, _: b.culprit is not None and b.culprit.kind == "process"),
    ("misconfiguration", lambda b, _: b.culprit is not None and b.culprit.kind == "setting"),
    ("cpu-contention", lambda b, _: b.culprit is not None and b.culprit.kind == "helpers"),
    ("slow-link", lambda b, _: b.culprit is not None and b.culprit.kind == "link"),
    ("stage-imbalance", lambda b, _: b.culprit is not None and b.culprit.kind == "stage"),
    ("compute-slow", lambda b, _: b.cell == "process"),
    (UNKNOWN, lambda b, _: b.cell == "late"),
    (PLANNED, lambda b, _: bool(b.facts.planned)),
    ("blocking-checkpoint", lambda b, _: b.cell == "python" and b.facts.activity == "save"),
    ("blocking-logging", lambda b, _: b.cell == "python" and b.facts.activity == "log"),
    ("slow-storage-read", lambda b, _: b.cell == "input" and b.facts.waits_for_read),
    ("slow-data-loading", lambda b, _: b.cell == "input"),
    (
        "slow-storage-read",
        lambda b, _: b.cell == "python" and b.facts.waits_for_read and b.facts.activity not in ("", "service"),
    ),
    ("python-on-critical-path", lambda b, _: b.cell == "python"),
    ("garbage-collection", lambda b, _: b.cell == "collections"),
    ("memory-operation-storm", lambda b, _: b.cell == "memory"),
    ("host-bound", lambda b, _: b.cell == "launches"),
    ("fragmented-collectives", lambda b, _: b.cell == "collectives" and b.calls_more and b.facts.calls >= 20),
    ("slow-collective-everywhere", lambda b, _: b.cell == "collectives"),
    ("load-imbalance", lambda b, _: (_runs_more(b) or b.facts.has_more_data) and _is_one_role(b)),
    (UNKNOWN, lambda b, _: _runs_more(b)),
    (NO_FAULT, lambda b, _: b.facts.has_more_data),
    ("compute-slow", lambda b, _: b.facts.held > HELD),
    (NO_FAULT, lambda b, steady: not steady and b.reference == "peers" and b.facts.factor < _CLEARLY_SLOWER),
    ("cpu-contention", lambda b, _: b.facts.queued >= HALF),
    ("compute-slow", lambda b, _: True),
)


def label_of(block: Block, is_trusted: bool) -> str:
    """Return the cause that a block is called by; "" if it is no fault.

    Args:
        block: With its facts.
        is_trusted: A device ran the operators, or the job got slower: only then a small excess over peers is a fault.
    """
    return next(cause for cause, holds in LABELS if holds(block, is_trusted))
