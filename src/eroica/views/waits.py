"""Who waits for whom: a matrix of waiting workers and the workers they wait for, with bars of the sums.

Beyond 64 workers, a host stands for its workers; workers that the verdict names stand alone.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from markupsafe import Markup

from eroica.model.shares import percent
from eroica.model.verdict import Waits
from eroica.model.words import clean
from eroica.views import svg
from eroica.views.material import Material
from eroica.views.svg import Facts, Picture, facts

#: Workers that are shown one by one, and hosts.
_MOST_WORKERS, _MOST_HOSTS = 64, 24
_MOST_CULPRITS = 8
_WIDTH, _LEFT, _BARS, _SIDE = 960.0, 128.0, 84.0, 560.0
_LARGEST_CELL = 56.0
#: Least size of a cell with a number, and of rows with labels; pixels.
_NUMBERED, _LABELED = 44.0, 11.0


class _Party(NamedTuple):
    """A row and column of the matrix: a worker, or the workers of a host."""

    name: str
    short: str
    is_culprit: bool


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
    def __init__(self, material: Material, waits: Waits) -> None:
        self.material, self.waits = material, waits
        named = {rank for edge in waits.edges for rank in (edge.waiter, edge.on)}
        known = sorted(named | set(waits.waited_ms) | set(waits.blamed_ms) | set(material.places))
        self.by_host = len(known) > _MOST_WORKERS
        self.place, self.parties = self._by_hosts(known) if self.by_host else self._one_by_one(known)
        self.cells: dict[tuple[int, int], float] = defaultdict(float)
        listed = self._counts({edge.waiter for edge in waits.edges})
        for edge in waits.edges:
            row = self.place[edge.waiter]
            self.cells[row, self.place[edge.on]] += edge.per_iteration_ms / listed[row]
        told = self._counts(waits.waited_ms)
        self.waited = [total / count for total, count in zip(self._summed(waits.waited_ms), told, strict=True)]
        self.blamed = self._summed(waits.blamed_ms)
        self.top_ms = max(*self.cells.values(), 1e-9)
        self.cell = min(_LARGEST_CELL, _SIDE / len(self.parties))
        self.left, self.top = _LEFT, _BARS + (26 if self.cell >= 20 else 40)
        self.end = self.left + self.cell * len(self.parties)

    def _counts(self, ranks: Iterable[int]) -> list[int]:
        """Return how many of these workers each party stands for, at least 1."""
        counts = [0] * len(self.parties)
        for rank in ranks:
            counts[self.place[rank]] += 1
        return [max(count, 1) for count in counts]

    def _one_by_one(self, known: Sequence[int]) -> tuple[dict[int, int], list[_Party]]:
        names = [_Party(f"worker {rank}", str(rank), rank in self.material.culprits) for rank in known]
        return {rank: at for at, rank in enumerate(known)}, names

    def _by_hosts(self, known: Sequence[int]) -> tuple[dict[int, int], list[_Party]]:
        """Return culprits, then the hosts that wait and cause most in order of rank, then all others."""
        own = [rank for rank in self.material.culprits if rank in set(known)][:_MOST_CULPRITS]
        weight: dict[str, float] = defaultdict(float)
        for edge in self.waits.edges:
            for rank in {edge.waiter, edge.on}.difference(own):
                weight[self._host(rank)] += edge.per_iteration_ms
        hosts = list(dict.fromkeys(self._host(rank) for rank in known if rank not in own))
        heavy = set(sorted(hosts, key=lambda host: -weight[host])[:_MOST_HOSTS])
        shown = [host for host in hosts if host in heavy]
        parties = [_Party(f"worker {rank}", str(rank), True) for rank in own]
        parties += [_Party(host, host, False) for host in shown]
        at = {host: len(own) + number for number, host in enumerate(shown)}
        if len(shown) < len(hosts):
            parties.append(_Party(f"{len(hosts) - len(shown)} other hosts", "others", False))
        place = {rank: at.get(self._host(rank), len(own) + len(shown)) for rank in known}
        return place | {rank: number for number, rank in enumerate(own)}, parties

    def _host(self, rank: int) -> str:
        return self.material.hosts.get(rank) or "unknown host"

    def _summed(self, by_rank: dict[int, float]) -> list[float]:
        sums = [0.0] * len(self.parties)
        for rank, value in by_rank.items():
            sums[self.place[rank]] += value
        return sums

    # --- the drawing ---

    def picture(self) -> Picture:
        """Return drawing and table."""
        bottom = self.top + self.cell * len(self.parties)
        drawn = svg.svg(
            _WIDTH,
            bottom + 12,
            self._grid(bottom),
            self._names(),
            *(self._square(*pair, value) for pair, value in self.cells.items() if value > 0),
            self._blame_bars(),
            self._wait_bars(),
            title=f"Matrix of who waits for whom among {len(self.parties)} {'hosts' if self.by_host else 'workers'}",
            cls="wide waits",
        )
        return Picture(
            id="waits",
            title="Who waits for whom",
            body=svg.tag("div", drawn, cls="scroll"),
            reads=self._reads(),
            facts=self._facts(),
        )

    def _reads(self) -> str:
        hosts = (
            " Hosts stand for their workers, with the mean of those on record; workers that the verdict names stand "
            "alone."
            if self.by_host
            else ""
        )
        few = len(self.waits.edges) < self.waits.workers - 1
        some = f" On record are the {len(self.waits.edges)} longest waits." if few else ""
        withheld = self.waits.withheld_ms / self.waits.total_ms
        nobody = f" {percent(withheld)} of all waiting is laid at nobody." if withheld >= 0.005 else ""
        return (
            "A square says that the worker of its row waits directly for the one of its column, its area how long; "
            "bars above are the waiting laid at each one, summed over all who wait, after chains are followed."
            f"{nobody}{hosts}{some}"
        )

    def _grid(self, bottom: float) -> Markup:
        """Return lines, and the columns of culprits as bands."""
        count, cell = len(self.parties), self.cell
        bands = [
            svg.rect(self.left + cell * at, self.top, cell, bottom - self.top, cls="blamed-band")
            for at, party in enumerate(self.parties)
            if party.is_culprit
        ]
        spots = range(count + 1)
        lines = [svg.line(self.left, self.top + cell * at, self.end, self.top + cell * at, cls="grid") for at in spots]
        lines += [svg.line(self.left + cell * at, self.top, self.left + cell * at, bottom, cls="grid") for at in spots]
        return svg.group(*bands, *(lines if cell >= 7 else (lines[0], lines[count], lines[count + 1], lines[-1])))

    def _names(self) -> Markup:
        parts = [svg.label(0, self.top - 7, "waiting ↓   for →", cls="axis-title")]
        widest = max(svg.text_width(clean(party.short, 12)) for party in self.parties)
        most = max(self.blamed)
        for at, party in enumerate(self.parties):
            cls = "culprit-text" if party.is_culprit else "soft"
            y = self.top + self.cell * (at + 0.5) + 4
            text = svg.clip("◆ " * party.is_culprit + party.name, _LEFT - 10, 12)
            if self._has_name(at, _LABELED):
                parts.append(svg.label(self.left - 8, y, text, text_anchor="end", cls=cls))
            if self._has_name(at, widest + 6) or self.blamed[at] == most > 0:
                x = self.left + self.cell * (at + 0.5)
                parts.append(svg.label(x, self.top - 7, clean(party.short, 12), text_anchor="middle", cls=cls))
        return svg.group(*parts)

    def _has_name(self, at: int, room: float) -> bool:
        """Return whether a party has a label: culprits do, others where there is room."""
        if self.parties[at].is_culprit:
            return True
        every = max(1, math.ceil(room / self.cell))
        if self.by_host and every > 1:
            return False
        beside = self.parties[max(at - every + 1, 0) : at + every]
        return at % every == 0 and not (every > 1 and any(party.is_culprit for party in beside))

    def _square(self, row: int, column: int, value: float) -> Markup:
        side = max((self.cell - 2) * (value / self.top_ms) ** 0.5, 1.2)
        x = self.left + self.cell * (column + 0.5)
        y = self.top + self.cell * (row + 0.5)
        who, whom = self.parties[row].name, self.parties[column].name
        is_culprit = self.parties[column].is_culprit
        told = svg.hint(f"{who} {'wait' if self._is_many(row) else 'waits'} {svg.time(value)} an iteration for {whom}")
        box = svg.rect(x - side / 2, y - side / 2, side, side, told, cls="blamed-cell" if is_culprit else "bar")
        has_number = self.cell >= _NUMBERED and side > 0.75 * self.cell
        number = svg.label(x, y + 4, f"{value:.3g}", text_anchor="middle", cls="on-square") if has_number else None
        return svg.group(box, number)

    def _is_many(self, at: int) -> bool:
        return self.by_host and not self.parties[at].is_culprit

    def _blame_bars(self) -> Markup:
        """Return the bars above the columns: waiting of others that a party causes."""
        most = max(*self.blamed, 1e-9)
        base, room = self.top - (26 if self.cell >= 20 else 24), _BARS - 30
        parts = [
            svg.label(0, 14, "waiting laid at each,", cls="axis-title"),
            svg.label(0, 29, "summed over all,", cls="axis-title"),
            svg.label(0, 44, "per iteration", cls="axis-title"),
        ]
        parts.append(svg.line(self.left, base, self.end, base, cls="axis"))
        for at, value in enumerate(self.blamed):
            if value <= 0:
                continue
            party, tall = self.parties[at], max(room * value / most, 1)
            x, wide = self.left + self.cell * at, max(self.cell - 2, 1.5)
            told = svg.hint(f"{svg.time(value)} of waiting an iteration is laid at {party.name}, over all who wait")
            parts.append(
                svg.rect(x + 1, base - tall, wide, tall, told, cls="bar-culprit" if party.is_culprit else "bar")
            )
            text = svg.time(value)
            if value == most or svg.text_width(text) <= self.cell:
                cls = "culprit-text" if party.is_culprit else "soft"
                anchor = max(x + self.cell / 2, self.left + svg.text_width(text) / 2)
                parts.append(svg.label(anchor, base - tall - 5, text, text_anchor="middle", cls=cls))
        return svg.group(*parts)

    def _wait_bars(self) -> Markup:
        """Return the bars right of the rows: the party's own waiting."""
        most = max(*self.waited, 1e-9)
        x, room = self.end + 24, max(_WIDTH - self.end - 24 - 78, 60)
        title = "waits, mean per iteration" if self.by_host else "waits, per iteration"
        parts = [svg.label(x, self.top - 7, title, cls="axis-title")]
        for at, value in enumerate(self.waited):
            party, long = self.parties[at], max(room * value / most, 0.5)
            y, thick = self.top + self.cell * at + 1, min(max(self.cell - 2, 1.5), 22)
            y += (self.cell - 2 - thick) / 2 if self.cell > thick else 0
            verb = "wait" if self._is_many(at) else "waits"
            told = svg.hint(f"{party.name} {verb} {svg.time(value)} an iteration in all")
            if value > 0:
                parts.append(svg.rect(x, y, long, thick, told, cls="bar-culprit" if party.is_culprit else "bar"))
            if self._has_name(at, _LABELED):
                parts.append(svg.label(x + long + 6, y + thick / 2 + 4, svg.time(value), cls="soft"))
        return svg.group(*parts)

    def _facts(self) -> Facts:
        ordered = sorted(self.cells.items(), key=lambda item: -item[1])
        names = [party.name for party in self.parties]
        rows = [[names[row], names[column], svg.time(value)] for (row, column), value in ordered if value > 0]
        blamed = sorted(((value, at) for at, value in enumerate(self.blamed) if value > 0), reverse=True)
        laid = [["all others", f"{names[at]}, chains followed", svg.time(value)] for value, at in blamed[:10]]
        return facts(("who waits", "for whom", "each iteration"), [*laid, *rows])
