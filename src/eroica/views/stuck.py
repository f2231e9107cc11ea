"""A job that stands still: workers grouped by the place of their training thread."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from markupsafe import Markup

from eroica.model.look import Blockage, WorkerLook
from eroica.model.words import clean, ending_words, plural, seconds, worker_list
from eroica.views.material import Material
from eroica.views.svg import Facts, Picture, join, rect, svg, tag

#: Innermost frames that are shown of a place.
_FRAMES = 4
_MOST_PLACES = 24
_BAR = 220.0
_STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "in an uninterruptible wait",
    "T": "stopped",
    "t": "stopped",
    "Z": "a zombie",
}
Place = tuple[tuple[str, ...], str]


def draw(material: Material) -> Picture | None:
    """Draw the places of a job that stood still; None for others."""
    blockage = material.blockage
    if blockage is None:
        return None
    found = {look.worker.global_rank: look for host in blockage.looks for look in (*host.first, *host.second)}
    looks = [found[rank] for rank in sorted(found)]
    if not looks and not blockage.deaths and not blockage.left:
        return None
    header = ("worker", "host", "after iteration", "silent", "process", "where, innermost frame last")
    rows = [
        (
            f"worker {look.worker.global_rank}",
            look.worker.host,
            f"{look.iteration:,}",
            seconds(look.silent_s) if look.silent_s else "",
            _place(look)[1],
            " › ".join(_place(look)[0]) or "unknown",
        )
        for look in looks
    ]
    return Picture(
        id="stuck",
        title="Who is stuck where",
        body=join((_gone(blockage), *_places(looks, set(material.culprits)))),
        reads="Workers whose training thread sits at the same place stand together, the smallest groups first; "
        "the last frame is where it is. Names in color are those that a cause names.",
        facts=Facts(header, rows) if rows else None,
    )


def _place(look: WorkerLook) -> Place:
    """Return the innermost frames of the training thread, and the state of its process."""
    threads = look.process.threads
    mine = [thread for thread in threads if thread.thread_id == look.training_thread_id]
    mine += [thread for thread in threads if thread.name == "MainThread"]
    stack = (mine or threads)[0].stack if threads else ()
    return tuple(clean(frame, 160) for frame in stack[-_FRAMES:]), _STATES.get(look.process.state, "")


def _places(looks: Sequence[WorkerLook], named: set[int]) -> list[Markup]:
    at: dict[Place, list[WorkerLook]] = defaultdict(list)
    for look in looks:
        at[_place(look)].append(look)
    is_named = {place: any(look.worker.global_rank in named for look in found) for place, found in at.items()}
    ordered = sorted(at, key=lambda place: (not is_named[place], len(at[place])))
    most = max(map(len, at.values()), default=1)
    rows = [_row(place, at[place], len(at[place]) / most, is_named[place]) for place in ordered[:_MOST_PLACES]]
    more = len(ordered) - _MOST_PLACES
    rest = [tag("p", f"{more} more places stand in the table.", cls="soft")] if more > 0 else []
    return [tag("ol", *rows, cls="places"), *rest] if rows else []


def _row(place: Place, looks: Sequence[WorkerLook], share: float, is_named: bool) -> Markup:
    frames, state = place
    iterations = sorted({look.iteration for look in looks})
    silent_s = max(look.silent_s for look in looks)
    told = [
        plural(len(looks), "worker"),
        f"silent for {seconds(silent_s)}" if silent_s else "",
        f"after iteration {iterations[0]:,}" + (f" to {iterations[-1]:,}" if len(iterations) > 1 else ""),
        f"process {state}" if state else "",
    ]
    stack = [tag("li", frame, cls="leaf" if frame is frames[-1] else None) for frame in frames]
    return tag(
        "li",
        tag(
            "div",
            tag("b", worker_list([look.worker.global_rank for look in looks]), cls="named" if is_named else None),
            tag("p", ", ".join(filter(None, told)), cls="soft"),
            svg(_BAR, 14, rect(0, 2, _BAR * share, 10, cls="bar-culprit" if is_named else "bar")),
        ),
        tag("ol", *stack, cls="stack") if stack else tag("p", "nobody could tell where", cls="soft"),
    )


def _gone(blockage: Blockage) -> Markup | None:
    """Return the workers that died or left."""
    lines = [
        f"worker {death.worker.global_rank}{f' on {clean(death.worker.host, 60)}' if death.worker.host else ''} "
        f"{ending_words(death.ending)}, after iteration {death.iteration:,}"
        for death in blockage.deaths[:_MOST_PLACES]
    ]
    if blockage.left:
        lines.append(f"{worker_list([worker.global_rank for worker in blockage.left])} ended in order")
    return tag("ul", *(tag("li", text) for text in lines), cls="evidence") if lines else None
