"""A job that stands still: workers grouped by the place of their training thread."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from markupsafe import Markup

from eroica.model.look import Blockage, Death, Ending, ProcessLook, WorkerLook
from eroica.model.words import clean, seconds, worker_list
from eroica.views.material import Material
from eroica.views.svg import Facts, Picture, facts, join, rect, svg, tag

#: Innermost frames that are shown of a place.
_FRAMES = 4
_MOST_PLACES = 24
_MOST_ROWS = 400
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
    looks = _last_looks(blockage)
    if not looks and not blockage.deaths and not blockage.left:
        return None
    return Picture(
        id="stuck",
        title="Who is stuck where",
        body=join((_gone(blockage), _places(looks, material))),
        reads="Workers whose training thread sits at the same place stand together, the smallest groups first; "
        "the last frame is where it is. Names in color are those that a cause names.",
        facts=_facts(looks),
    )


def _last_looks(blockage: Blockage) -> list[WorkerLook]:
    """Return the later of the two looks at each worker."""
    looks = {look.worker.global_rank: look for host in blockage.looks for look in (*host.first, *host.second)}
    return [looks[rank] for rank in sorted(looks)]


def _place(look: WorkerLook) -> Place:
    """Return the innermost frames of the training thread, and the state of its process."""
    return tuple(clean(frame, 160) for frame in _stack(look)[-_FRAMES:]), _state(look.process)


def _stack(look: WorkerLook) -> Sequence[str]:
    threads = look.process.threads
    found = next((thread for thread in threads if thread.thread_id == look.training_thread_id), None)
    if found is None and threads:
        found = next((thread for thread in threads if thread.name == "MainThread"), threads[0])
    return found.stack if found is not None else ()


def _state(process: ProcessLook) -> str:
    return _STATES.get(process.state, "")


def _places(looks: Sequence[WorkerLook], material: Material) -> Markup | None:
    at: Mapping[Place, list[WorkerLook]] = defaultdict(list)
    for look in looks:
        at[_place(look)].append(look)
    ordered = sorted(at.items(), key=lambda item: (not _is_named(item[1], material), len(item[1])))
    if not ordered:
        return None
    most = max(len(found) for _, found in ordered)
    rows = [_row(place, found, most, material) for place, found in ordered[:_MOST_PLACES]]
    more = len(ordered) - _MOST_PLACES
    rest = tag("p", f"{more} more places stand in the table.", cls="soft") if more > 0 else None
    return join((tag("ol", *rows, cls="places"), rest))


def _is_named(looks: Sequence[WorkerLook], material: Material) -> bool:
    return any(look.worker.global_rank in material.culprits for look in looks)


def _row(place: Place, looks: Sequence[WorkerLook], most: int, material: Material) -> Markup:
    frames, state = place
    ranks = tuple(look.worker.global_rank for look in looks)
    is_named = _is_named(looks, material)
    bar = rect(0, 2, _BAR * len(looks) / most, 10, cls="bar-culprit" if is_named else "bar")
    stack = [tag("li", frame, cls="leaf" if frame is frames[-1] else None) for frame in frames]
    nobody = tag("p", "nobody could tell where", cls="soft")
    return tag(
        "li",
        tag(
            "div",
            tag("b", worker_list(ranks), cls="named" if is_named else None),
            tag("p", ", ".join(_told(looks, state)), cls="soft"),
            svg(_BAR, 14, bar),
        ),
        tag("ol", *stack, cls="stack") if stack else nobody,
    )


def _told(looks: Sequence[WorkerLook], state: str) -> Iterator[str]:
    """Yield the number of workers, their silence, iterations and state."""
    yield f"{len(looks):,} worker{'s' if len(looks) > 1 else ''}"
    longest = max(look.silent_s for look in looks)
    if longest:
        yield f"silent for {seconds(longest)}"
    iterations = sorted({look.iteration for look in looks})
    yield f"after iteration {iterations[0]:,}" + (f" to {iterations[-1]:,}" if len(iterations) > 1 else "")
    if state:
        yield f"process {state}"


def _gone(blockage: Blockage) -> Markup | None:
    """Return the workers that died or left."""
    lines = [_death(death) for death in blockage.deaths[:_MOST_PLACES]]
    if blockage.left:
        lines.append(f"{worker_list([worker.global_rank for worker in blockage.left])} ended in order".capitalize())
    return tag("ul", *(tag("li", text) for text in lines), cls="evidence") if lines else None


def _death(death: Death) -> str:
    host = f" on {clean(death.worker.host, 60)}" if death.worker.host else ""
    return f"Worker {death.worker.global_rank}{host} {_ending(death.ending)} after iteration {death.iteration:,}"


def _ending(ending: Ending) -> str:
    if ending.out_of_memory:
        return "was killed for memory"
    if ending.kind == "signal":
        return f"was ended by signal {ending.number}"
    return f"ended with status {ending.number}" if ending.kind == "exit" else "is gone"


def _facts(looks: Sequence[WorkerLook]) -> Facts | None:
    if not looks:
        return None
    header = ("worker", "host", "after iteration", "silent", "process", "where, innermost frame last")
    rows = [
        (
            f"worker {look.worker.global_rank}",
            look.worker.host,
            f"{look.iteration:,}",
            seconds(look.silent_s) if look.silent_s else "",
            _state(look.process),
            " › ".join(_place(look)[0]) or "unknown",
        )
        for look in looks
    ]
    return facts(header, rows, _MOST_ROWS)
