"""Record of an origin, which a rule hands over: one reason why the job stands still."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from eroica.diagnosis.blocked.places import Site
from eroica.diagnosis.blocked.scene import Member, Scene
from eroica.diagnosis.blocked.waiting import Node, Waiting
from eroica.diagnosis.words import name_workers
from eroica.model.shares import percent
from eroica.model.verdict import FindingFunction
from eroica.model.words import clean

#: Causes, places and symptoms that a verdict tells at most.
MOST_TOLD = 20
#: Sentences of one kind that the evidence of a cause holds at most.
MOST_SENTENCES = 6


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """One cause, on one or several workers.

    Attributes:
        cause: Slug of the catalog.
        ranks: Global ranks of the accused.
        function: Function in which they sit.
        verbs: Verb of the sentence, for one worker and for several: ("sits", "sit").
        rest: The rest of the clause after the verb.
        who: Subject of the sentence where it is not the workers.
        evidence: One fact each.
        confidence: Probability that this is the cause, before coverage.
        nodes: Where ways of the graph must end that it explains; by default the workers.
        next_step: Instead of the catalog's.
        is_all: Nobody is singled out.
    """

    cause: str
    ranks: tuple[int, ...]
    function: FindingFunction
    verbs: tuple[str, str]
    rest: str
    who: str = ""
    evidence: tuple[str, ...] = ()
    confidence: float
    nodes: tuple[Node, ...] = ()
    next_step: str = ""
    is_all: bool = False

    @property
    def targets(self) -> tuple[Node, ...]:
        """Nodes of the graph at which waits for this origin arrive."""
        return self.nodes or self.ranks

    @property
    def clause(self) -> str:
        """Clause such as "worker 2 sits in next_batch (train.py:88)"."""
        who = self.who or name_workers(self.ranks)
        return f"{who} {self.verbs[0] if self.who or len(self.ranks) == 1 else self.verbs[1]} {self.rest}"


def function_of(site: Site) -> FindingFunction:
    """Return the site as a finding's function."""
    return FindingFunction(name=site.name, kind="python" if site.own else "other", stack=site.stack)


def state_words(member: Member) -> str:
    """Describe the training thread's state in the kernel: "asleep in futex_do_wait, no CPU used in 2.0 s"."""
    thread = member.thread
    if thread is None:
        return ""
    channel = clean(thread.wait_channel, 40)
    states = {"R": "running", "D": "in an uninterruptible wait", "T": "stopped", "t": "stopped by a debugger"}
    words = "running" if member.runs else states.get(thread.state, "asleep")
    words += f" in {channel}" if channel not in ("", "0") and not member.runs else ""
    if member.cpu is None or member.interval_s <= 0:
        return words
    used = f"{percent(member.cpu)} of a core" if member.cpu >= 0.01 else "no CPU"
    return f"{words}, {used} used in {member.interval_s:.1f} s"


def silence_words(member: Member) -> str:
    """Say how long a worker has been silent, and after how many iterations."""
    return f"silent for {member.now.silent_s:.0f} s, after {member.now.iteration} iterations"


def describe(rank: int, member: Member) -> str:
    """Describe in one sentence where a worker sits."""
    facts = [state_words(member), silence_words(member)]
    return f"Worker {rank}: {member.site.label}, {', '.join(fact for fact in facts if fact)}."


def by_place(scene: Scene, ranks: Iterable[int]) -> list[list[int]]:
    """Group workers by the functions on their stacks (own frame, wait), largest group first."""
    found: dict[tuple[str, str, str], list[int]] = {}
    for rank in sorted(ranks):
        site = scene.members[rank].site
        key = (site.name, site.own.file if site.own else "", site.wait)
        found.setdefault(key, []).append(rank)
    return [found[key] for key in sorted(found, key=lambda key: (-len(found[key]), found[key][0]))]


def remaining(waiting: Waiting, origins: Sequence[Origin]) -> frozenset[int]:
    """Find workers that wait and that none of the origins explains."""
    return waiting.waiters - waiting.reaching(node for origin in origins for node in origin.targets)
