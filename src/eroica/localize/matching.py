"""Pair the executions of a collective on all its members, and refuse pairs that cannot be the same execution.

Executions are paired by the group's own sequence numbers, or by order where every member has equally many. Recorded
traces hold the end of each execution, which tells the right order, and whether there is one. All members are inside a
collective before the first of them leaves it. So ends of one execution differ, clocks aside, by no more than its
shortest duration. Clocks differ by a constant and drift; the rest, with the median taken away, must be within that.

Array suffixes: M members of a group, K matched executions, R members who wait.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.model.pattern import CollectiveRecord, WorkerPattern
from eroica.model.series import decode_series, decode_together

Floats = NDArray[np.float64]
#: Share of a group's executions that must pair, or none is used (a sampled trace pairs by accident).
_LEAST_PAIRED = 0.8
#: Clocks of two hosts run apart by at most this much (crystals: 100 parts in a million each way).
_DRIFT = 2e-4
#: Orders are shifted against each other by so many executions at most, and the right shift leaves a spread of the ends
#: that is so many times smaller than any other's.
_MOST_SHIFT = 2
_CLEARLY = 3.0
#: How a refusal begins where the ends are what speaks against a pairing.
_ENDS_DIFFER = "ends of the executions"
#: Leaving and writing down takes this long at most where nothing is wrong; threads of a library that runs on the host
#: get a core within milliseconds.
EXIT_US = 500.0
HOST_EXIT_US = 5_000.0
#: Executions from which agreeing ends are evidence that workers were in the same group.
FEWEST_VERIFIED = 3


class Matched(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Paired executions of one kind in one group.

    Attributes:
        group: Name of the process group.
        kind: Kind of collective.
        members: Indices of the workers.
        duration_us: Durations. float64 [M, K].
        wait_us: Critical waiting. float64 [M, K].
        share: Each member's share of the blame, columns sum to at most 1. float64 [M, K].
        nearly_last: Who came last or shortly before. bool [M, K].
        end_us: Ends on each member's own clock; no columns where nobody wrote them down. float64 [M, K or 0].
        columns: Iteration that each member counts an execution in, -1 = none. intp [M, K].
    """

    group: str
    kind: str
    members: tuple[int, ...]
    duration_us: Floats
    wait_us: Floats
    share: Floats
    nearly_last: NDArray[np.bool_]
    end_us: Floats
    columns: NDArray[np.intp]


def pair_executions(
    records: Sequence[CollectiveRecord], exit_us: float | None = EXIT_US
) -> tuple[list[NDArray[np.intp]], str]:
    """Match the executions of all members of a group.

    Args:
        records: One per member.
        exit_us: How unevenly members may leave and write that down; None if their ends say nothing of the pairing.

    Returns:
        For each member the positions of the matched executions, in the same order; and why there are none, else "".
    """
    if any(record.paired_by == "none" for record in records):
        return [], "without sequence numbers"
    ways = {record.paired_by for record in records}
    if len(ways) > 1:
        return [], "sequence numbers on some members only"
    if ways == {"order"} and exit_us is not None and _whole_ends(records) is not None:
        return _by_order_and_ends(records, exit_us)
    same = len({record.sequence for record in records}) == 1
    sequences = [decode_series(record.sequence, np.int64) for record in (records[:1] if same else records)]
    most = max(sequence.size for sequence in sequences)
    if ways == {"order"} and (any(sequence.size != most for sequence in sequences) or any(r.dropped for r in records)):
        return [], "unequal numbers of executions"
    shared = _shared(sequences)
    if most == 0 or shared.size < _LEAST_PAIRED * min(sequence.size for sequence in sequences):
        return [], f"only {shared.size} of {most} executions found on all members"
    places = [_positions(sequence, shared) for sequence in sequences]
    return _checked(records, places * len(records) if same else places, exit_us)


def _shared(sequences: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Numbers that all have, rising; nearly always all have the same. int64 [K]."""
    first = sequences[0]
    if np.all(first[1:] > first[:-1]) and all(np.array_equal(first, other) for other in sequences[1:]):
        return first
    shared = first
    for sequence in sequences[1:]:
        shared = np.intersect1d(shared, sequence)
    return shared


def pair_by_order(records: Sequence[CollectiveRecord], exit_us: float = EXIT_US) -> tuple[list[NDArray[np.intp]], str]:
    """Match executions of workers whose trace names no group: by order, and only if the ends confirm it.

    Args:
        records: One per worker that ran this kind of collective, all with ends.
        exit_us: How unevenly members may leave and write that down.

    Returns:
        As `pair_executions`.
    """
    if _whole_ends(records) is None:
        return [], "its members are unknown, and their ends too"
    least = min(record.executions for record in records)
    if least < FEWEST_VERIFIED:
        return [], f"its members are unknown, and {least} executions are too few to find them by"
    return _by_order_and_ends(records, exit_us)


def _by_order_and_ends(records: Sequence[CollectiveRecord], exit_us: float) -> tuple[list[NDArray[np.intp]], str]:
    """Match executions by order: shifted where the ends clearly ask for it, else only if members have equally many."""
    places, why = align_by_ends(records, exit_us)
    if not why:
        return places, ""
    counts = {record.executions for record in records}
    if len(counts) > 1 or any(record.dropped for record in records):
        return [], why
    return _checked(records, [np.arange(record.executions, dtype=np.intp) for record in records], exit_us)


def _whole_ends(records: Sequence[CollectiveRecord]) -> Floats | list[Floats] | None:
    """The ends of each member's executions; None unless every member says of each when it ended."""
    if not all(record.end_us or not record.executions for record in records):
        return None
    encoded = [record.end_us for record in records]
    together = decode_together(encoded, np.float64)
    if together is not None and all(record.executions == together.shape[1] for record in records):
        return together if np.isfinite(together).all() else None
    ends = [decode_series(data, np.float64) for data in encoded]
    whole = (
        end.size == record.executions and bool(np.isfinite(end).all())
        for end, record in zip(ends, records, strict=True)
    )
    return ends if all(whole) else None


def align_by_ends(records: Sequence[CollectiveRecord], exit_us: float = EXIT_US) -> tuple[list[NDArray[np.intp]], str]:
    """Match executions by order where windows may lack one or two at their borders.

    A collective that runs on while its host has begun the next step lies in one worker's window and outside another's.
    Of the few ways to lay one order beside the other, the right one leaves the differences of the ends constant; it is
    taken if no other way comes near that.

    Args:
        records: One per member.
        exit_us: How unevenly members may leave and write that down.

    Returns:
        As `pair_executions`.
    """
    ends = _whole_ends(records)
    sizes = [record.executions for record in records]
    least = min(sizes)
    is_far = max(sizes) - least > max(_MOST_SHIFT, (1 - _LEAST_PAIRED) * least)
    if ends is None or least < FEWEST_VERIFIED or is_far:
        return [], "unequal numbers of executions"
    reference = ends[sizes.index(least)]
    shifts = [_shift(reference, end) for end in ends]
    known = [shift for shift in shifts if shift is not None]
    if len(known) < len(shifts):
        return [], "unequal numbers of executions, and their ends do not tell which belong together"
    first = max(0, *(-shift for shift in known))
    last = min(size - shift for size, shift in zip(sizes, known, strict=True))
    shared = np.arange(first, min(last, least), dtype=np.intp)
    if shared.size < _LEAST_PAIRED * least:
        return [], f"only {shared.size} of {max(sizes)} executions found on all members"
    return _checked(records, [shared + shift for shift in known], exit_us)


def _shift(reference: Floats, end: Floats) -> int | None:
    """Count the places by which `end` lies behind the reference; None if the ends do not tell it clearly."""
    spreads: list[tuple[float, int]] = []
    for shift in range(-_MOST_SHIFT, end.size - reference.size + _MOST_SHIFT + 1):
        low, high = max(0, -shift), min(reference.size, end.size - shift)
        if high - low >= max(FEWEST_VERIFIED, _LEAST_PAIRED * reference.size):
            difference = end[low + shift : high + shift] - reference[low:high]
            spreads.append((float(np.median(np.abs(difference - np.median(difference)))), shift))
    spreads.sort()
    clear = len(spreads) == 1 or (len(spreads) > 1 and spreads[1][0] > _CLEARLY * spreads[0][0] + 1)
    return spreads[0][1] if clear else None


def _checked(
    records: Sequence[CollectiveRecord], places: list[NDArray[np.intp]], exit_us: float | None
) -> tuple[list[NDArray[np.intp]], str]:
    """The pairing, unless sizes or ends contradict it."""
    if not _sizes_agree(records, places):
        return [], "members moved different amounts under one number"
    contradiction = "" if exit_us is None else _contradicted_by_ends(records, places, exit_us)
    return ([], contradiction) if contradiction else (places, "")


def _positions(sequence: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[np.intp]:
    if wanted is sequence:
        return np.arange(sequence.size, dtype=np.intp)
    order = np.argsort(sequence, kind="stable")
    return np.asarray(order[np.searchsorted(sequence, wanted, sorter=order)], dtype=np.intp)


def _sizes_agree(records: Sequence[CollectiveRecord], places: Sequence[NDArray[np.intp]]) -> bool:
    """All-reduces of one number move equally much everywhere; other kinds, and unknown sizes, are not judged."""
    if records[0].kind != "all_reduce" or not all(record.elements for record in records):
        return True
    if len({record.elements for record in records}) == 1 and _are_same(places):
        return True
    sizes = np.stack([decode_series(r.elements, np.int64)[at] for r, at in zip(records, places, strict=True)])
    known = (sizes > 0).all(axis=0)
    return bool((sizes[:, known] == sizes[0, known]).all())


def _contradicted_by_ends(
    records: Sequence[CollectiveRecord], places: Sequence[NDArray[np.intp]], exit_us: float
) -> str:
    """Tell why the paired executions cannot be the same ones, "" if they can or their ends were not recorded."""
    end_MK = stacked_ends(records, places)
    if end_MK.shape[1] < 2:
        return ""
    duration_MK = stacked(records, places, "duration_us")
    apart_MK = end_residuals(end_MK)
    span_K = np.abs(end_MK[0] - np.median(end_MK[0]))
    wrong_K = apart_MK.max(axis=0) > duration_MK.min(axis=0) + _DRIFT * span_K + exit_us
    if wrong_K.mean() <= 1 - _LEAST_PAIRED:
        return ""
    worst = float(apart_MK.max()) / 1e3
    how = "sequence number" if records[0].paired_by == "sequence" else "order"
    return f"{_ENDS_DIFFER} paired by {how} differ by up to {worst:.3g} ms, clocks aside"


def is_contradiction(reason: str) -> bool:
    """Return whether executions were refused because their ends cannot be those of the same ones."""
    return reason.startswith(_ENDS_DIFFER)


def end_residuals(end_MK: Floats) -> Floats:
    """Measure by how much each member's ends differ from the first one's, without the difference of their clocks.

    Args:
        end_MK: Ends on each member's own clock, microseconds. float64 [M, K].

    Returns:
        Microseconds, not negative. float64 [M, K].
    """
    difference_MK = end_MK - end_MK[0]
    return np.asarray(np.abs(difference_MK - np.median(difference_MK, axis=1, keepdims=True)))


def waits_in(duration_MK: Floats, critical_MK: Floats) -> Floats:
    """Critical waiting for the last member to come: duration beyond the shortest. float64 [M, K], or [G, M, K]."""
    return np.asarray(np.minimum(duration_MK - duration_MK.min(axis=-2, keepdims=True), critical_MK))


def stacked(records: Sequence[CollectiveRecord], places: Sequence[NDArray[np.intp]], name: str) -> Floats:
    """One array of the records, matched executions only. float64 [M, K]."""
    together = decode_together([getattr(record, name) for record in records], np.float32)
    if together is not None and _are_same(places):
        return together[:, places[0]].astype(np.float64)
    rows = [
        decode_series(getattr(record, name), np.float32)[at].astype(np.float64)
        for record, at in zip(records, places, strict=True)
    ]
    return np.stack(rows)


def stacked_ends(records: Sequence[CollectiveRecord], places: Sequence[NDArray[np.intp]]) -> Floats:
    """Ends on each member's own clock; no columns unless every member has them. float64 [M, K or 0]."""
    ends = _whole_ends(records)
    if ends is None:
        return np.zeros((len(records), 0))
    if isinstance(ends, np.ndarray) and _are_same(places):
        return np.asarray(ends[:, places[0]])
    return np.stack([end[at] for end, at in zip(ends, places, strict=True)])


def _are_same(places: Sequence[NDArray[np.intp]]) -> bool:
    """Return whether one array tells the positions of the matched executions for all members."""
    return len(places) > 0 and all(at is places[0] for at in places)


# --- least differences between the moments at which members leave one execution, by the library that carries it ---


#: Least exit skew: members of one host under NCCL leave within microseconds, gloo's threads within scheduling slices.
SKEW_FLOOR_OTHER_US = 500.0


class Carriers:
    """Library of each process group, read once from all workers; the first one that knows the group names it."""

    def __init__(self, patterns: Sequence[WorkerPattern]) -> None:
        self._backends: dict[str, str] = {}
        for pattern in patterns:
            for group in pattern.process_groups:
                self._backends.setdefault(group.name, group.backend)
        self._on_accelerator = any(pattern.has_accelerator for pattern in patterns)

    def _runs_on_device(self, group: str) -> bool:
        """Recorded traces often do not name the library, but where there is an accelerator it runs on that."""
        backend = self._backends.get(group, "")
        return "nccl" in backend or "rccl" in backend if backend else self._on_accelerator

    def skew_floor(self, group: str, is_recorded: bool = False) -> float:
        """Least exit skew of a group's library, microseconds: less on a device where ends were recorded."""
        if is_recorded and self._runs_on_device(group):
            return 5.0
        return 20.0 if self._backends.get(group) == "nccl" else SKEW_FLOOR_OTHER_US

    def uneven_exit(self, group: str) -> float:
        """Return how unevenly members may leave an execution and still have been in the same one, microseconds."""
        return EXIT_US if self._runs_on_device(group) else HOST_EXIT_US


# --- the executions of one group in order of time, and what its late members cost the others ---


class Chain(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """All matched executions of one group, in order of time.

    Attributes:
        group: Name of the process group.
        members: Indices of the workers.
        kinds: Kind of each execution.
        duration_us: float64 [M, K].
        wait_us: Critical waiting. float64 [M, K].
        share: Shares of blame. float64 [M, K].
        nearly_last: Who came last or shortly before. bool [M, K].
        arrival_us: Start of each execution on each member's own clock, from the start of its window. float64 [M, K].
        iteration: Iteration of each execution on the first member, -1 = none. intp [K].
        since_us: Time from leaving the execution before, or from the start of the window. float64 [M, K].
    """

    group: str
    members: tuple[int, ...]
    kinds: tuple[str, ...]
    duration_us: Floats
    wait_us: Floats
    share: Floats
    nearly_last: NDArray[np.bool_]
    arrival_us: Floats
    iteration: NDArray[np.intp]
    since_us: Floats


def chain_executions(matched: Sequence[Matched]) -> list[Chain]:
    """Chain the executions of all kinds of each group in the order of their ends; groups without ends are left out."""
    by_group: dict[tuple[str, tuple[int, ...]], list[Matched]] = {}
    for one in matched:
        if one.end_us.shape[1]:
            by_group.setdefault((one.group, one.members), []).append(one)
    ordered = sorted(by_group.items(), key=lambda item: item[0])
    return [_chained(group, members, parts) for (group, members), parts in ordered]


def _chained(group: str, members: tuple[int, ...], parts: Sequence[Matched]) -> Chain:
    end_MK = np.concatenate([part.end_us for part in parts], axis=1)
    order = np.argsort(end_MK[0], kind="stable")
    duration_MK, wait_MK, share_MK, near_MK = (
        np.concatenate([getattr(part, name) for part in parts], axis=1)[:, order]
        for name in ("duration_us", "wait_us", "share", "nearly_last")
    )
    end_MK = end_MK[:, order]
    arrival_MK = end_MK - duration_MK
    before_MK = np.concatenate([np.zeros((len(members), 1)), end_MK[:, :-1]], axis=1)
    kinds = [part.kind for part in parts for _ in range(part.duration_us.shape[1])]
    return Chain(
        group=group,
        members=members,
        kinds=tuple(kinds[at] for at in order),
        duration_us=duration_MK,
        wait_us=wait_MK,
        share=share_MK,
        nearly_last=near_MK,
        arrival_us=arrival_MK,
        iteration=np.concatenate([part.columns[0] for part in parts])[order],
        since_us=np.maximum(arrival_MK - before_MK, 0.0),
    )


def without(chain: Chain, rows: Sequence[int]) -> Chain:
    """The chain as the other members see it."""
    if not rows:
        return chain
    left = [row for row in range(len(chain.members)) if row not in rows]
    arrays = ("duration_us", "wait_us", "share", "nearly_last", "arrival_us", "since_us")
    changes = {name: getattr(chain, name)[left] for name in arrays}
    return msgspec.structs.replace(chain, members=tuple(chain.members[row] for row in left), **changes)


def blame_of(chain: Chain) -> Floats:
    """Waiting laid at each member. float64 [M]."""
    return np.asarray((chain.share * chain.wait_us.sum(axis=0)).sum(axis=1))


def held_up(chain: Chain, rows: Sequence[int], at: NDArray[np.intp]) -> float:
    """Bound the time by which the others could have gone on earlier, summed over iterations, microseconds.

    Over several iterations a waiting member goes on later for it, each time, else its device would fall behind for
    good. In a single iteration a delay may be carried on from one execution to the next, and then counts once.

    Had the late members come with the last of the others, execution k would end earlier by S(k). S(k) is the least
    over the others of (its waiting + S(k - 1), the latter if it went on from leaving the execution before). A member
    that works on while its device waits comes no earlier for it: its pace from arrival to arrival is that of the late
    members, which do not wait. Each iteration counts with its largest S.
    """
    others = [row for row in range(len(chain.members)) if row not in rows]
    most: dict[int, float] = {}
    several = len(np.unique(chain.iteration[chain.iteration >= 0])) > 1
    earlier, last = 0.0, -2
    for place in at.tolist():
        gap_R = np.minimum(
            chain.duration_us[others, place] - chain.duration_us[rows, place].min(), chain.wait_us[others, place]
        )
        follows = place == last + 1 and chain.iteration[place] == chain.iteration[last]
        went_on_R = np.ones(len(others)) if several else _went_on(chain, rows, others, place)
        earlier = float((gap_R + earlier * went_on_R).min()) if follows else gap_R.min()
        earlier, last = max(float(earlier), 0.0), place
        iteration = int(chain.iteration[place])
        most[iteration] = max(most.get(iteration, 0.0), earlier)
    return sum(most.values())


def _went_on(chain: Chain, rows: Sequence[int], others: Sequence[int], place: int) -> Floats:
    """Flag with 1 the others that had to leave the execution before in order to come to this one. float64 [R]."""
    pace_M = chain.arrival_us[:, place] - chain.arrival_us[:, place - 1]
    return np.asarray(pace_M[others] > 1.15 * pace_M[list(rows)].mean(), dtype=np.float64)


def began_late(chain: Chain, rows: list[int], at: NDArray[np.intp]) -> bool:
    """Return whether members were late at the window's first collective, and lost less than half of that since then."""
    if at[0] != 0:
        return False
    others = [row for row in range(len(chain.members)) if row not in rows]
    lost = float(chain.since_us[rows, 0].mean()) - float(np.median(chain.since_us[others, 0]))
    waited = float(np.median(chain.duration_us[others, 0]) - chain.duration_us[rows, 0].mean())
    return lost < waited / 2
