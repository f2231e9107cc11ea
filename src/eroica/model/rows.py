"""The rows of a pattern as columns: a hundred thousand workers have ten million rows, and few of them are looked at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from eroica.model.pattern import FunctionKey, FunctionPattern

#: Fields of a row that are numbers, in the order of their columns.
NUMBERS = (
    "beta",
    "mu",
    "sigma",
    "critical_s",
    "total_s",
    "max_s",
    "beta_error",
    "device_s",
    "count",
    "resource_samples",
    "active_iterations",
)
#: Those of them that are whole numbers: the last ones.
COUNTS = ("count", "resource_samples", "active_iterations")
_read_numbers = attrgetter(*NUMBERS)


class RowTable(Sequence[FunctionPattern]):
    """Rows of one worker, made when somebody asks for one.

    Attributes:
        keys: Which functions, R of them.
        numbers: Their `NUMBERS`. float64 [N, R], not to be written to.
        resources: Names of resources.
        resource: Which of them bounds each function. int32 [R].
        series: `per_iteration_us` of all rows, one after another.
        ends: Where in `series` that of each row ends. int64 [R].
    """

    __slots__ = ("ends", "keys", "numbers", "resource", "resources", "series")

    def __init__(
        self,
        keys: tuple[FunctionKey, ...],
        numbers: NDArray[np.float64],
        resources: tuple[str, ...],
        resource: NDArray[np.int32],
        series: bytes,
        ends: NDArray[np.int64],
    ) -> None:
        self.keys, self.numbers, self.resources, self.resource = keys, numbers, resources, resource
        self.series, self.ends = series, ends

    @classmethod
    def of(cls, rows: Sequence[FunctionPattern]) -> RowTable:
        """These rows as a table; a table is its own."""
        if isinstance(rows, RowTable):
            return rows
        flat = np.fromiter(chain.from_iterable(map(_read_numbers, rows)), np.float64, len(NUMBERS) * len(rows))
        place = {name: at for at, name in enumerate(dict.fromkeys(row.resource for row in rows))}
        parts = [row.per_iteration_us for row in rows]
        return cls(
            tuple(row.key for row in rows),
            np.ascontiguousarray(flat.reshape(len(rows), len(NUMBERS)).T),
            tuple(place),
            np.asarray([place[row.resource] for row in rows], dtype=np.int32),
            b"".join(parts),
            np.cumsum(np.asarray([len(part) for part in parts], dtype=np.int64)),
        )

    def column(self, name: str) -> NDArray[np.float64]:
        """One of `NUMBERS`. float64 [R]."""
        return np.asarray(self.numbers[NUMBERS.index(name)])

    def series_of(self, row: int) -> bytes:
        """`per_iteration_us` of one row."""
        return self.series[int(self.ends[row - 1]) if row else 0 : int(self.ends[row])]

    def __len__(self) -> int:
        return len(self.keys)

    @overload
    def __getitem__(self, at: int) -> FunctionPattern: ...

    @overload
    def __getitem__(self, at: slice) -> tuple[FunctionPattern, ...]: ...

    def __getitem__(self, at: int | slice) -> FunctionPattern | tuple[FunctionPattern, ...]:
        places = range(len(self))[at]
        return tuple(map(self._row, places)) if isinstance(places, range) else self._row(places)

    def __iter__(self) -> Iterator[FunctionPattern]:
        return map(self._row, range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"RowTable({list(self)!r})"

    def _row(self, at: int) -> FunctionPattern:
        values: dict[str, Any] = dict(zip(NUMBERS, self.numbers[:, at].tolist(), strict=True))
        values |= {name: int(values[name]) for name in COUNTS}
        return FunctionPattern(
            key=self.keys[at],
            resource=self.resources[self.resource[at]],
            per_iteration_us=self.series_of(at),
            **values,
        )
