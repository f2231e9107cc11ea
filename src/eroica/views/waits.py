"""Who waits for whom, and where the workers of a job that stands still sit.

The first is a matrix of waiting workers and the workers that they wait for, with bars of the sums. Of more than 40
workers, those that the verdict names and those with the longest waits are drawn.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from markupsafe import Markup

from eroica.model.look import Blockage, WorkerLook
from eroica.model.shares import percent
from eroica.model.verdict import Waits
from eroica.model.words import clean, ending_words, plural, seconds, worker_list
from eroica.views import svg
from eroica.views.material import Material
from eroica.views.svg import Facts, Picture

#: Workers with a row and a column.
_MOST_WORKERS = 40
_WIDTH, _LEFT, _BARS, _SIDE = 960.0, 128.0, 84.0, 560.0
_LARGEST_CELL = 56.0
#: Least size of a cell with a number, pixels.
_NUMBERED = 44.0


def draw(material: Material) -> Picture | None:
    """Draw the matrix; None for jobs that stood still."""
    waits = material.verdict.waits
    if material.verdict.verdict == "blocked":
        return None
    if waits is None:
        why = "Nothing is on record about who waited for whom."
    elif not waits.edges or waits.total_ms <= 0:
        why = "No waiting was seen whose cause is another worker."
    else:
        return _Matrix(material, waits).picture()
    return Picture(id="waits", title="Who waits for whom", missing=why)


class _Matrix:
    """One matrix of workers.

    Attributes:
        ranks: The workers, rising.
        known: How many there are.
        named: Places of workers that the verdict names.
        cells: Row and column -> milliseconds per iteration.
        waited: Waiting of each worker.
        blamed: Waiting of others laid at each worker.
    """

    def __init__(self, material: Material, waits: Waits) -> None:
        self.waits = waits
        weight: dict[int, float] = dict.fromkeys((*waits.waited_ms, *waits.blamed_ms, *material.places), 0.0)
        for edge in waits.edges:
            for rank in (edge.waiter, edge.on):
                weight[rank] = weight.get(rank, 0.0) + edge.per_iteration_ms
        self.known = len(weight)
        heaviest = sorted(weight, key=lambda rank: (rank not in material.culprits, -weight[rank], rank))
        self.ranks = sorted(heaviest[:_MOST_WORKERS])
        self.names = [f"worker {rank}" for rank in self.ranks]
        place = {rank: at for at, rank in enumerate(self.ranks)}
        self.named = {place[rank] for rank in material.culprits if rank in place}
        drawn = [edge for edge in waits.edges if edge.waiter in place and edge.on in place]
        self.cells = {(place[edge.waiter], place[edge.on]): edge.per_iteration_ms for edge in drawn}
        self.waited = [waits.waited_ms.get(rank, 0.0) for rank in self.ranks]
        self.blamed = [waits.blamed_ms.get(rank, 0.0) for rank in self.ranks]
        self.cell = min(_LARGEST_CELL, _SIDE / len(self.names))
        self.top = _BARS + 30
        self.end, self.bottom = (start + self.cell * len(self.names) for start in (_LEFT, self.top))

    def picture(self) -> Picture:
        """Return drawing and table."""
        drawn = svg.svg(
            _WIDTH,
            self.bottom + 12,
            *self._grid(),
            *self._names(),
            *(self._square(*pair, value) for pair, value in self.cells.items() if value > 0),
            *self._blame_bars(),
            *self._wait_bars(),
            title=f"Matrix of who waits for whom among {len(self.names)} workers",
            cls="wide waits",
        )
        body = svg.tag("div", drawn, cls="scroll")
        return Picture(id="waits", title="Who waits for whom", body=body, reads=self._reads(), facts=self._facts())

    def _reads(self) -> str:
        few = len(self.waits.edges) < self.waits.workers - 1
        some = f" On record are the {len(self.waits.edges)} longest waits." if few else ""
        most = f" Drawn are {len(self.ranks)} of {self.known:,} workers, those with the longest waits."
        withheld = self.waits.withheld_ms / self.waits.total_ms
        nobody = f" {percent(withheld)} of all waiting is laid at nobody." if withheld >= 0.005 else ""
        return (
            "A square says that the worker of its row waits directly for the one of its column, its area how long; "
            "bars above are the waiting laid at each one, summed over all who wait, after chains are followed."
            f"{nobody}{most * (self.known > len(self.ranks))}{some}"
        )

    def _grid(self) -> Iterator[Markup]:
        """Yield the columns of named workers as bands, and lines."""
        for at in self.named:
            yield svg.rect(_LEFT + self.cell * at, self.top, self.cell, self.bottom - self.top, cls="blamed-band")
        for at in range(len(self.names) + 1):
            yield svg.line(_LEFT, self.top + self.cell * at, self.end, self.top + self.cell * at, cls="grid")
            yield svg.line(_LEFT + self.cell * at, self.top, _LEFT + self.cell * at, self.bottom, cls="grid")

    def _names(self) -> Iterator[Markup]:
        yield svg.label(0, self.top - 7, "waiting ↓   for →", cls="axis-title")
        for at, name in enumerate(self.names):
            cls = "culprit-text" if at in self.named else "soft"
            text = svg.clip("◆ " * (at in self.named) + name, _LEFT - 10, 12)
            y = self.top + self.cell * (at + 0.5) + 4
            yield svg.label(_LEFT - 8, y, text, text_anchor="end", cls=cls)
            short = clean(name.removeprefix("worker "), 12)
            if at in self.named or svg.text_width(short) + 6 <= self.cell:
                x = _LEFT + self.cell * (at + 0.5)
                yield svg.label(x, self.top - 7, short, text_anchor="middle", cls=cls)

    def _square(self, row: int, column: int, value: float) -> Markup:
        side = max((self.cell - 2) * (value / max(self.cells.values())) ** 0.5, 1.2)
        x, y = _LEFT + self.cell * (column + 0.5), self.top + self.cell * (row + 0.5)
        told = svg.hint(f"{self.names[row]} waits {svg.time(value)} an iteration for {self.names[column]}")
        cls = "blamed-cell" if column in self.named else "bar"
        box = svg.rect(x - side / 2, y - side / 2, side, side, told, cls=cls)
        has_number = self.cell >= _NUMBERED and side > 0.75 * self.cell
        number = svg.label(x, y + 4, f"{value:.3g}", text_anchor="middle", cls="on-square") if has_number else None
        return svg.tag("g", box, number)

    def _blame_bars(self) -> Iterator[Markup]:
        """Yield the bars above the columns: waiting of others that a party causes."""
        most, base, room = max(*self.blamed, 1e-9), self.top - 26, _BARS - 30
        for at, text in enumerate(("waiting laid at each,", "summed over all,", "per iteration")):
            yield svg.label(0, 14 + 15 * at, text, cls="axis-title")
        yield svg.line(_LEFT, base, self.end, base, cls="axis")
        for at, value in enumerate(self.blamed):
            if value <= 0:
                continue
            tall, x = max(room * value / most, 1), _LEFT + self.cell * at
            cls, text_cls = ("bar-culprit", "culprit-text") if at in self.named else ("bar", "soft")
            text = svg.time(value)
            told = svg.hint(f"{text} of waiting an iteration is laid at {self.names[at]}, over all who wait")
            yield svg.rect(x + 1, base - tall, max(self.cell - 2, 1.5), tall, told, cls=cls)
            if value == most or svg.text_width(text) <= self.cell:
                yield svg.label(x + self.cell / 2, base - tall - 5, text, text_anchor="middle", cls=text_cls)

    def _wait_bars(self) -> Iterator[Markup]:
        """Yield the bars right of the rows: the party's own waiting."""
        most, x = max(*self.waited, 1e-9), self.end + 24
        room = max(_WIDTH - x - 78, 60)
        yield svg.label(x, self.top - 7, "waits, per iteration", cls="axis-title")
        for at, value in enumerate(self.waited):
            y, long = self.top + self.cell * (at + 0.5), max(room * value / most, 0.5)
            thick = min(self.cell - 2, 22.0)
            told = svg.hint(f"{self.names[at]} waits {svg.time(value)} an iteration in all")
            if value > 0:
                cls = "bar-culprit" if at in self.named else "bar"
                yield svg.rect(x, y - thick / 2, long, thick, told, cls=cls)
            yield svg.label(x + long + 6, y + 4, svg.time(value), cls="soft")

    def _facts(self) -> Facts:
        ordered = sorted(self.cells.items(), key=lambda item: -item[1])
        rows = [[self.names[row], self.names[on], svg.time(value)] for (row, on), value in ordered if value > 0]
        blamed = sorted(((value, at) for at, value in enumerate(self.blamed) if value > 0), reverse=True)[:10]
        laid = [["all others", f"{self.names[at]}, chains followed", svg.time(value)] for value, at in blamed]
        return Facts(("who waits", "for whom", "each iteration"), [*laid, *rows])


# --- a job that stands still: workers grouped by the place of their training thread ---

#: Innermost frames that are shown of a place.
_FRAMES = 4
_MOST_PLACES = 24
_PLACE_BAR = 220.0
_STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "in an uninterruptible wait",
    "T": "stopped",
    "t": "stopped",
    "Z": "a zombie",
}
Place = tuple[tuple[str, ...], str]


def draw_stuck(material: Material) -> Picture | None:
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
            _place_of(look)[1],
            " › ".join(_place_of(look)[0]) or "unknown",
        )
        for look in looks
    ]
    return Picture(
        id="stuck",
        title="Who is stuck where",
        body=svg.join((_gone(blockage), *_at_places(looks, set(material.culprits)))),
        reads="Workers whose training thread sits at the same place stand together, the smallest groups first; "
        "the last frame is where it is. Names in color are those that a cause names.",
        facts=Facts(header, rows) if rows else None,
    )


def _place_of(look: WorkerLook) -> Place:
    """Return the innermost frames of the training thread, and the state of its process."""
    threads = look.process.threads
    mine = [thread for thread in threads if thread.thread_id == look.training_thread_id]
    mine += [thread for thread in threads if thread.name == "MainThread"]
    stack = (mine or threads)[0].stack if threads else ()
    return tuple(clean(frame, 160) for frame in stack[-_FRAMES:]), _STATES.get(look.process.state, "")


def _at_places(looks: Sequence[WorkerLook], named: set[int]) -> list[Markup]:
    at: dict[Place, list[WorkerLook]] = defaultdict(list)
    for look in looks:
        at[_place_of(look)].append(look)
    is_named = {place: any(look.worker.global_rank in named for look in found) for place, found in at.items()}
    ordered = sorted(at, key=lambda place: (not is_named[place], len(at[place])))
    most = max(map(len, at.values()), default=1)
    rows = [_place_row(place, at[place], len(at[place]) / most, is_named[place]) for place in ordered[:_MOST_PLACES]]
    more = len(ordered) - _MOST_PLACES
    rest = [svg.tag("p", f"{more} more places stand in the table.", cls="soft")] if more > 0 else []
    return [svg.tag("ol", *rows, cls="places"), *rest] if rows else []


def _place_row(place: Place, looks: Sequence[WorkerLook], share: float, is_named: bool) -> Markup:
    frames, state = place
    iterations = sorted({look.iteration for look in looks})
    silent_s = max(look.silent_s for look in looks)
    told = [
        plural(len(looks), "worker"),
        f"silent for {seconds(silent_s)}" if silent_s else "",
        f"after iteration {iterations[0]:,}" + (f" to {iterations[-1]:,}" if len(iterations) > 1 else ""),
        f"process {state}" if state else "",
    ]
    stack = [svg.tag("li", frame, cls="leaf" if frame is frames[-1] else None) for frame in frames]
    return svg.tag(
        "li",
        svg.tag(
            "div",
            svg.tag("b", worker_list([look.worker.global_rank for look in looks]), cls="named" if is_named else None),
            svg.tag("p", ", ".join(filter(None, told)), cls="soft"),
            svg.svg(_PLACE_BAR, 14, svg.rect(0, 2, _PLACE_BAR * share, 10, cls="bar-culprit" if is_named else "bar")),
        ),
        svg.tag("ol", *stack, cls="stack") if stack else svg.tag("p", "nobody could tell where", cls="soft"),
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
    return svg.tag("ul", *(svg.tag("li", text) for text in lines), cls="evidence") if lines else None
