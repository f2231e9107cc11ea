"""Collectives of like process groups as one function, for the comparison of workers.

A hybrid-sharded job has hundreds of groups that do the same. Array suffixes: F functions, R rows, W workers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.localize.fleet import Fleet
from eroica.model.pattern import FunctionKey, WorkerPattern

Floats = NDArray[np.float64]

Likeness = tuple[str, int]


def likeness_of_groups(patterns: Sequence[WorkerPattern]) -> dict[str, Likeness]:
    """Description and size of each process group, by name: groups for which both are equal do the same job."""
    return {
        group.name: (group.description, len(group.ranks)) for pattern in patterns for group in pattern.process_groups
    }


class LikeRows(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Functions to compare workers by.

    Attributes:
        keys: The functions; a collective of several like groups names none of them.
        rows: Rows of the fleet behind each (indices into its keys).
        pattern: float64 [F, W, 3].
        critical_us: float64 [F, W].
        peers_us: What is usual in the role. float64 [F, W].
        before_us: The same worker's in the baseline window. float64 [F, W].
    """

    keys: tuple[FunctionKey, ...]
    rows: tuple[tuple[int, ...], ...]
    pattern: Floats
    critical_us: Floats
    peers_us: Floats
    before_us: Floats


def join_like(fleet: Fleet, peers_us: Floats, before_us: Floats) -> LikeRows:
    """The fleet's rows with those of like groups added up; the very arrays where there is nothing to add."""
    parts = _parts(fleet)
    if len(parts) == len(fleet.keys):
        single = tuple((at,) for at in range(len(fleet.keys)))
        return LikeRows(
            keys=fleet.keys,
            rows=single,
            pattern=fleet.pattern,
            critical_us=fleet.critical_us,
            peers_us=peers_us,
            before_us=before_us,
        )
    first = [part[0] for part in parts]
    made = LikeRows(
        keys=tuple(_key(fleet, part) for part in parts),
        rows=tuple(parts),
        pattern=np.array(fleet.pattern[first]),
        critical_us=np.array(fleet.critical_us[first]),
        peers_us=np.array(peers_us[first]),
        before_us=np.array(before_us[first]),
    )
    for at, part in enumerate(parts):
        if len(part) > 1:
            rows = list(part)
            made.pattern[at] = _joined(fleet.pattern[rows])
            made.critical_us[at] = fleet.critical_us[rows].sum(axis=0)
            made.peers_us[at] = fleet.usual(made.critical_us[at])
            made.before_us[at] = before_us[rows].sum(axis=0)
    return made


def _parts(fleet: Fleet) -> list[tuple[int, ...]]:
    """Rows that belong together, in order of the first."""
    like = likeness_of_groups(fleet.patterns) if any(key.kind == "collective" for key in fleet.keys) else {}
    found: dict[Hashable, list[int]] = defaultdict(list)
    for at, key in enumerate(fleet.keys):
        is_one = key.kind != "collective" or key.group not in like
        found[at if is_one else (key.name, key.phase, key.thread, like[key.group])].append(at)
    return [tuple(rows) for rows in found.values()]


def _key(fleet: Fleet, part: tuple[int, ...]) -> FunctionKey:
    key = fleet.keys[part[0]]
    return key if len(part) == 1 else msgspec.structs.replace(key, group="")


def _joined(pattern_R3: Floats) -> Floats:
    """β added up, μ and σ weighted by β over rows that were sampled; NaN where none was. float64 [W, 3]."""
    beta_RW = pattern_R3[:, :, 0]
    joined_W3 = np.zeros(pattern_R3.shape[1:])
    joined_W3[:, 0] = beta_RW.sum(axis=0)
    for axis in (1, 2):
        known_RW = ~np.isnan(pattern_R3[:, :, axis])
        weight_W = np.where(known_RW, beta_RW, 0.0).sum(axis=0)
        sum_W = np.where(known_RW, beta_RW * np.nan_to_num(pattern_R3[:, :, axis]), 0.0).sum(axis=0)
        unknown_W = np.where(joined_W3[:, 0] > 0, np.nan, 0.0)
        joined_W3[:, axis] = np.divide(sum_W, weight_W, out=unknown_W, where=weight_W > 0)
    return joined_W3
