"""Rule 4: workers that are in different collectives, or on their way out, while the others wait in one.

EROICA, section 6.3, case 3: a debug print of a sharded array implied an all-gather that not every rank ran.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from eroica.diagnosis.blocked.meetings import Meeting
from eroica.diagnosis.blocked.origin import Origin, describe
from eroica.diagnosis.blocked.scene import Scene
from eroica.diagnosis.blocked.waiting import Node, Waiting
from eroica.diagnosis.words import name_workers
from eroica.model.verdict import FindingFunction
from eroica.model.words import clean

_MOST_PLACES = 6
_CAUSE = "desynchronized-collective"
_FROM_DUMPS = (
    "Find where these workers call what the evidence names: a collective is called under a condition that is not the "
    "same on all workers (rank, loss, end of data, an exception), or in another order; call it on all or on none."
)


def find_mismatches(scene: Scene, waiting: Waiting) -> list[Origin]:
    """Find meetings at which members called different operations, or one operation with different sizes."""
    origins = []
    for index, meeting in enumerate(waiting.meetings.items):
        places = meeting.places()
        if len(places) > 1:
            named = {place.label: ranks for place, ranks in places.items()}
            where = f"number {meeting.sequence} of {meeting.group.label}"
            origins.append(_origin(scene, named, 0.93, f"{{}} as {where}", (-1 - index,)))
    return origins


def find_circle(scene: Scene, waiting: Waiting) -> list[Origin]:
    """Find workers that wait for each other in different collectives, none of which sits elsewhere."""
    circle = waiting.circle()
    workers = sorted(node for node in circle if node >= 0)
    if not workers:
        return []
    labels = {node: waiting.meeting(node).label for node in circle if node < 0}
    places: dict[str, list[int]] = {}
    for rank in workers:
        label = " and ".join(labels[node] for node in waiting.onward[rank] if node in labels) or "a send or receive"
        places.setdefault(label, []).append(rank)
    nodes = tuple(sorted(circle))
    return [_origin(scene, places, 0.88, "{}", nodes, _missing(waiting, circle))]


def find_leavers(scene: Scene, ranks: Sequence[int], waiting: Waiting) -> list[Origin]:
    """Find workers that have left or are at the end of their program while others wait for them in a collective."""
    left = [rank for rank in ranks if rank in scene.left]
    leaving = [rank for rank in ranks if rank in scene.members]
    origins = []
    for group, rest in ((left, "ended its program in order"), (leaving, "is at the end of its program")):
        if group:
            origins.append(_leaver(scene, group, rest, waiting))
    return origins


def find_unrecorded(scene: Scene, ranks: Sequence[int], waiting: Waiting) -> list[Origin]:
    """Find workers that others wait for and that communicate in something that no Flight Recorder holds."""
    late = [rank for rank in ranks if rank in waiting.back]
    reached = waiting.reaching(late)
    places: dict[str, list[int]] = {}
    for at, meeting in enumerate(waiting.meetings.items):
        if -1 - at in reached:
            places.setdefault(meeting.label, []).extend(meeting.waiting)
    for rank in late:
        places.setdefault(clean(scene.members[rank].site.inside, 60) or "unrecorded communication", []).append(rank)
    if not late or len(places) < 2:
        return []
    why = "No Flight Recorder holds what they are in (gloo's sends and receives, stores, set-up of groups)."
    return [_origin(scene, places, 0.6, "{}", tuple(late), [why])]


def find_stacks_apart(scene: Scene, ranks: Sequence[int]) -> list[Origin]:
    """Find workers that communicate in different functions, by stacks alone, without any Flight Recorder."""
    places: dict[str, list[int]] = {}
    for rank in ranks:
        places.setdefault(clean(scene.members[rank].site.inside, 60) or "a collective", []).append(rank)
    if len(places) < 2:
        return []
    return [_origin(scene, places, 0.5, "{}", tuple(ranks), ["No Flight Recorder could be read; this is by stacks."])]


def _origin(
    scene: Scene,
    places: Mapping[str, Sequence[int]],
    confidence: float,
    form: str,
    nodes: tuple[Node, ...],
    more: Sequence[str] = (),
) -> Origin:
    """Name the minority: all that are not where most are; both sides where no place has most."""
    ordered = sorted(places, key=lambda place: (-len(places[place]), min(places[place])))
    sizes = [len(places[place]) for place in ordered]
    is_tie = len(sizes) < 2 or sizes[0] == sizes[1]
    blamed = ordered if is_tie else ordered[1:]
    ranks = tuple(sorted({rank for place in blamed for rank in places[place]}))
    rest = form.replace("{}", blamed[-1] if is_tie else blamed[0])
    most = sorted(places[ordered[0]])
    against = f"{name_workers(most)} {'is' if len(most) == 1 else 'are'} in {ordered[0]}"
    evidence = [_who_is_where(scene, place, sorted(places[place])) for place in ordered[:_MOST_PLACES]]
    evidence += [f"{len(ordered) - _MOST_PLACES} more collectives are open."] if len(ordered) > _MOST_PLACES else []
    first = min(places[blamed[-1] if is_tie else blamed[0]])
    subject = sorted(places[blamed[-1] if is_tie else blamed[0]])
    singled = name_workers(subject)
    verb = "is" if len(subject) == 1 else "are"
    return Origin(
        cause=_CAUSE,
        ranks=ranks,
        function=_function(scene, first, blamed[-1] if is_tie else blamed[0]),
        verbs=(verb, verb),
        who=singled,
        rest=f"in {rest}{_called_from(scene, first)}, but {against}",
        evidence=(*evidence, *more),
        confidence=confidence * (0.65 if is_tie else 1.0),
        nodes=nodes,
        next_step=_FROM_DUMPS if scene.from_dumps else "",
    )


def _function(scene: Scene, rank: int, place: str = "unknown") -> FindingFunction:
    """Return the function in which the worker sits; from dumps only the collective is known."""
    member = scene.members.get(rank)
    if scene.from_dumps:
        return FindingFunction(name=place, kind="collective")
    if member is None or member.site.own is None:
        return FindingFunction(name="unknown", kind="other")
    return FindingFunction(name=member.site.name, kind="python", stack=member.site.stack)


def _called_from(scene: Scene, rank: int) -> str:
    member = scene.members.get(rank)
    return f" called from {member.site.label}" if member is not None and member.site.own is not None else ""


def _who_is_where(scene: Scene, place: str, ranks: Sequence[int]) -> str:
    verb = "is" if len(ranks) == 1 else "are"
    return f"{name_workers(ranks, capital=True)} {verb} in {place}{_called_from(scene, ranks[0])}."


def _missing(waiting: Waiting, circle: frozenset[Node]) -> list[str]:
    """List the collectives of a circle with the workers that have not entered each."""
    meetings: list[Meeting] = [waiting.meeting(node) for node in sorted(circle, reverse=True) if node < 0]
    return [
        f"{meeting.label}: {name_workers(meeting.absent)} {'has' if len(meeting.absent) == 1 else 'have'} not entered."
        for meeting in meetings[:_MOST_PLACES]
        if meeting.absent
    ]


def _leaver(scene: Scene, ranks: Sequence[int], does: str, waiting: Waiting) -> Origin:
    first = ranks[0]
    waiters = sorted(node for node in waiting.reaching(ranks) if node >= 0 and node not in ranks)
    evidence = [describe(first, scene.members[first])] if first in scene.members else []
    evidence += [f"{len(waiters)} workers wait in collectives that it never entered."] if waiters else []
    plural = does.replace("is at", "are at").replace("its program", "their programs")
    verb, _, rest = (does if len(ranks) == 1 else plural).partition(" ")
    function = _function(scene, first)
    if first in scene.left:
        function = FindingFunction(name="end of the program", kind="other")
    return Origin(
        cause=_CAUSE,
        ranks=tuple(ranks),
        function=function,
        verbs=(verb, verb),
        rest=f"{rest} while others are still in collectives",
        evidence=tuple(evidence),
        confidence=0.85,
        next_step="Look at the end of this worker's output: it left the loop early (an exception, fewer batches than "
        "the others, a condition that differs between workers).",
    )
