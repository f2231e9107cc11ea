"""Rule 7: workers of which nothing is known, and stacks without a Flight Recorder, where nobody could look."""

from __future__ import annotations

from collections.abc import Sequence

from eroica.diagnosis.blocked.origin import Origin, function_of
from eroica.diagnosis.blocked.scene import Scene
from eroica.diagnosis.words import name_workers
from eroica.model.verdict import FindingFunction

_PAIRS_STEP = (
    "Compare the stacks of neighbouring pipeline stages in the evidence: which of them expects a message that the "
    "other never sends (another order of sends and receives, another number of micro-batches)."
)
_NO_RECORDER_STEP = (
    "Keep the Flight Recorder on (TORCH_FR_BUFFER_SIZE above 0) and Eroica's setting answering_thread too: then the "
    "next standstill tells who is missing. Until then compare the call sites in the evidence."
)


def find_unseen(scene: Scene, ranks: Sequence[int]) -> list[Origin]:
    """Find workers that others wait for and that nobody could look at, or whose stacks could not be read."""
    missing = tuple(rank for rank in ranks if rank not in scene.members)
    blind = tuple(rank for rank in ranks if rank in scene.members)
    origins = []
    if missing:
        origins.append(
            _unknown(
                missing,
                ("is", "are"),
                f"not seen by any agent, and others wait for {'it' if len(missing) == 1 else 'them'}",
                "Log in to the host of these workers: is it reachable, do their processes live, does Eroica's agent "
                "run there?",
            )
        )
    if blind:
        origins.append(
            _unknown(
                blind,
                ("is", "are"),
                f"waited for by others, but {'its stack' if len(blind) == 1 else 'their stacks'} could not be read",
                "Allow ptrace for Eroica's agent (CAP_SYS_PTRACE, kernel.yama.ptrace_scope) or set stack_signal, or "
                "run py-spy dump on this process yourself.",
            )
        )
    return origins


def find_unreadable_waits(scene: Scene, ranks: Sequence[int]) -> list[Origin]:
    """Name all workers where everybody sits in communication, and nothing tells which one is missing."""
    if not ranks:
        return []
    sites = [scene.members[rank].site for rank in ranks]
    pairs = any(word in site.inside for site in sites for word in ("send", "recv"))
    why = (
        "sends and receives leave no trace of their peer, so which pipeline stage is late cannot be told"
        if pairs
        else "no Flight Recorder could be read, so who is missing cannot be told"
    )
    origin = Origin(
        cause="unknown",
        ranks=tuple(ranks),
        function=function_of(sites[0]),
        verbs=("waits", "wait"),
        rest=f"in communication at {sites[0].label}; {why}",
        evidence=tuple(
            f"Worker {rank}: {scene.members[rank].site.inside or 'a collective'} called from "
            f"{scene.members[rank].site.label}."
            for rank in ranks[:6]
        ),
        confidence=0.3,
        is_all=len(ranks) == scene.expected > 1,
        next_step=_PAIRS_STEP if pairs else _NO_RECORDER_STEP,
    )
    return [origin]


def _unknown(ranks: tuple[int, ...], verbs: tuple[str, str], rest: str, next_step: str) -> Origin:
    return Origin(
        cause="unknown",
        ranks=ranks,
        function=FindingFunction(name="unknown", kind="other"),
        verbs=verbs,
        rest=rest,
        evidence=(f"The collectives of the others miss {name_workers(ranks)}.",),
        confidence=0.3,
        next_step=next_step,
    )
