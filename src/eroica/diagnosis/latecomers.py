"""Workers of a recorded job for whom the others wait in collectives, whether or not their traces show what kept them.

Online, repetition over many iterations tells a latecomer from chance. A recording often holds one to five iterations;
there the executions of its collectives take their place: whoever comes last again and again is late. Everything is read
from durations on each worker's own clock.

Array suffixes: M members of a group, K matched executions in order of time, W workers, F functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.candidate import Candidate, FindingKind
from eroica.diagnosis.frames import Focus, split_frame
from eroica.diagnosis.view import View
from eroica.diagnosis.words import format_ms, list_numbers, name_workers
from eroica.localize.excess import mean_error
from eroica.localize.matching import Matched
from eroica.model.verdict import NO_FUNCTION

Floats = NDArray[np.float64]
#: Others wait at least this share of the iteration, mean over them.
_LEAST_WAIT = 0.03
#: Executions in which somebody must be late.
_FEWEST_LATE = 2
#: Two who are late in mostly the same executions are one finding.
_ALIKE = 0.5
#: A function is named if it holds this share of the lateness, a step began late if its worker lost less than that
#: since then.
_MOST = 0.5
#: Repetition over a few iterations is no repetition over many.
_HIGHEST_STRENGTH = 5.0
#: Paces within this factor are the same.
_SAME_PACE = 1.15
#: What a finding is worth that names no function and says so, against one that names the right one.
_UNNAMED = 0.5
_MOST_TIMES = 6


class Chain(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """All matched executions of one group, in order of time.

    Attributes:
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

    members: tuple[int, ...]
    kinds: tuple[str, ...]
    duration_us: Floats
    wait_us: Floats
    share: Floats
    nearly_last: NDArray[np.bool_]
    arrival_us: Floats
    iteration: NDArray[np.intp]
    since_us: Floats


def find_latecomers(view: View, explained: set[int]) -> list[Candidate]:
    """Workers that come last again and again, and are not accused of anything yet. Recorded traces only.

    Args:
        view: The window.
        explained: Workers (indices) that a cause was found for.
    """
    if not view.is_trace:
        return []
    found = []
    for chain in chain_executions(view.suspects.arrivals.matched):
        for rows, at in _groups_of_late(chain):
            if not {chain.members[row] for row in rows} <= explained and not _passes_on(view, chain, rows, at):
                found += _candidate(view, chain, rows, at)
    return found


def chain_executions(matched: Sequence[Matched]) -> list[Chain]:
    """Executions of all kinds of each group in the order in which they ended; groups without ends are left out."""
    by_group: dict[tuple[str, tuple[int, ...]], list[Matched]] = {}
    for one in matched:
        if one.end_us.shape[1]:
            by_group.setdefault((one.group, one.members), []).append(one)
    return [_chained(members, parts) for (_, members), parts in sorted(by_group.items(), key=lambda item: item[0])]


def _chained(members: tuple[int, ...], parts: Sequence[Matched]) -> Chain:
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


def _groups_of_late(chain: Chain) -> Iterator[tuple[list[int], NDArray[np.intp]]]:
    """Members (rows of the chain) that are late together, and the executions, the most waited for first."""
    blame_M = (chain.share * chain.wait_us.sum(axis=0)).sum(axis=1)
    left = [int(row) for row in np.argsort(-blame_M, kind="stable") if blame_M[row] > 0]
    while left:
        first = left.pop(0)
        own = chain.nearly_last[first]
        alike = [row for row in left if _overlap(own, chain.nearly_last[row]) >= _ALIKE]
        left = [row for row in left if row not in alike]
        at = np.flatnonzero((chain.share[[first, *alike]] > 0).any(axis=0))
        if at.size >= _FEWEST_LATE and 1 + len(alike) < len(chain.members):
            yield [first, *alike], at


def _overlap(one_K: NDArray[np.bool_], other_K: NDArray[np.bool_]) -> float:
    return float((one_K & other_K).sum() / max(int((one_K | other_K).sum()), 1))


def _passes_on(view: View, chain: Chain, rows: list[int], at: NDArray[np.intp]) -> bool:
    """Whether they are late because they wait for somebody else, in other collectives, longer than the others do."""
    elsewhere_M = view.wait_us[list(chain.members)] - chain.wait_us.sum(axis=1) / view.iterations
    others = [row for row in range(len(chain.members)) if row not in rows]
    late_us = float(chain.wait_us[others][:, at].sum(axis=1).mean()) / view.iterations
    return float(elsewhere_M[rows].mean()) - float(np.median(elsewhere_M[others])) >= _MOST * late_us


def _candidate(view: View, chain: Chain, rows: list[int], at: NDArray[np.intp]) -> list[Candidate]:
    others = [row for row in range(len(chain.members)) if row not in rows]
    waited_RK = chain.wait_us[others][:, at]
    each_us = float(waited_RK.sum(axis=1).mean()) / view.iterations
    if each_us < _LEAST_WAIT * view.iteration_us:
        return []
    workers = tuple(sorted(chain.members[row] for row in rows))
    focus, kind, cause = _focus(view, workers, each_us)
    saved_us = held_up(chain, rows, at) / view.iterations
    return [
        Candidate(
            cause=cause,
            scope="some",
            workers=workers,
            functions=focus.functions,
            focus=focus,
            kind=kind,
            removed_us=np.zeros_like(view.fleet.iteration_us),
            mean_us=each_us,
            reference_us=0.0,
            reference="peers",
            strength=_strength(view, workers, at.size),
            coverage=focus.share,
            agreement=1.0,
            least_gain=view.settings.min_gain,
            evidence=tuple(_evidence(view, chain, rows, at)),
            gain=saved_us / max(view.iteration_us, 1e-9),
            sentence=_sentence(view, chain, rows, at, each_us, focus),
        )
    ]


def held_up(chain: Chain, rows: Sequence[int], at: NDArray[np.intp]) -> float:
    """By how much the others could have gone on earlier at best, summed over iterations, microseconds.

    Over several iterations whoever waits goes on later for it, each time, else its device would fall behind for good.
    In a single one a delay may be carried on from one execution to the next, and then counts once:
    had the late ones come with the last of the others, execution k would end earlier by S(k) = the least over the
    others of (what it waited + S(k - 1) if leaving the execution before was what it went on from). Who works on while
    its device waits comes no earlier for it: its pace from arrival to arrival is that of the late, who do not wait.
    Each iteration counts with its largest S.
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
    """1 for those of the others who had to leave the execution before in order to come to this one. float64 [R]."""
    pace_M = chain.arrival_us[:, place] - chain.arrival_us[:, place - 1]
    return np.asarray(pace_M[others] > _SAME_PACE * pace_M[list(rows)].mean(), dtype=np.float64)


def _strength(view: View, workers: tuple[int, ...], times: int) -> float:
    """Waiting for them in standard errors over iterations.

    In a single one each execution is an observation: one delay is taken to vary as much as it is long, so the mean of n
    is known to one part in the root of n.
    """
    if view.iterations == 1:
        return min(float(np.sqrt(times)), _HIGHEST_STRENGTH)
    blamed_I = view.suspects.arrivals.blamed_us[list(workers)].sum(axis=0)
    return min(float(blamed_I.mean()) / max(float(mean_error(blamed_I[None])[0]), 1e-9), _HIGHEST_STRENGTH)


def _focus(view: View, workers: tuple[int, ...], each_us: float) -> tuple[Focus, FindingKind, str]:
    """The row that holds most of the lateness, and the cause that it means; "no function" where none does."""
    keys = view.fleet.keys
    over_F = np.nan_to_num(view.fleet.critical_us - view.suspects.peers_us)[:, list(workers)].mean(axis=1)
    order = [int(row) for row in np.argsort(-over_F) if keys[row].kind != "collective"]
    if not order or over_F[order[0]] < _MOST * each_us:
        return _NOTHING, "other", "unknown"
    key = keys[order[0]]
    focus = Focus(
        name=key.name,
        place=split_frame(key.stack[-1]).place if key.stack else "",
        stack=key.stack,
        functions=(order[0],),
        share=min(float(over_F[order[0]]) / each_us, 1.0),
        is_own=False,
        is_specific=True,
    )
    if key.phase == "input":
        return focus, "python", "slow-data-loading"
    known = {"python": "python-on-critical-path", "gc": "garbage-collection"}
    return focus, "other" if key.kind == "gc" else key.kind, known.get(key.kind, "unknown")


_NOTHING = Focus(name=NO_FUNCTION, place="", stack=(), functions=(), share=_UNNAMED, is_own=False, is_specific=False)


# --- words ---


def _sentence(view: View, chain: Chain, rows: list[int], at: NDArray[np.intp], each_us: float, focus: Focus) -> str:
    who = _names(view, chain, rows)
    ending, whom = ("s", "it") if len(rows) == 1 else ("", "them")
    others = len(chain.members) - len(rows)
    wait = f"the other {others} workers wait" if others > 1 else "the other worker waits"
    longest = float(chain.wait_us[:, at].max())
    text = (
        f"{who[0].upper()}{who[1:]} come{ending} last to {_which(chain, at, view)}: {wait} {format_ms(each_us)} of "
        f"each {format_ms(view.iteration_us)} iteration for {whom}, up to {format_ms(longest)} at once"
    )
    why = f", most of all because of {focus.label}" if focus.functions else f"; {_why_late(chain, rows, at)}"
    return f"{text}{why}."


def _names(view: View, chain: Chain, rows: Sequence[int]) -> str:
    return name_workers(sorted(view.fleet.ranks[chain.members[row]] for row in rows))


def _which(chain: Chain, at: NDArray[np.intp], view: View) -> str:
    """Such as "collectives 0 to 4 (all_to_all)"; where there are many, how many."""
    kinds = " and ".join(sorted({chain.kinds[place] for place in at}))
    if view.iterations > 1 or at.size > 2 * _MOST_TIMES:
        return f"{at.size} of {len(chain.kinds)} matched collectives ({kinds})"
    return f"collective{'s' if at.size > 1 else ''} {list_numbers(at.tolist())} ({kinds})"


def _why_late(chain: Chain, rows: list[int], at: NDArray[np.intp]) -> str:
    if began_late(chain, rows, at):
        whose = "its step" if len(rows) == 1 else "their steps"
        return f"{whose} began late already, and what came before was not recorded"
    whose = "its trace does" if len(rows) == 1 else "their traces do"
    return f"{whose} not show what kept {'it' if len(rows) == 1 else 'them'}"


def began_late(chain: Chain, rows: list[int], at: NDArray[np.intp]) -> bool:
    """Whether they were late at the window's first collective, and had lost little of that since their window began."""
    if at[0] != 0:
        return False
    own, usual = _since(chain, rows, 0)
    others = [row for row in range(len(chain.members)) if row not in rows]
    waited = float(np.median(chain.duration_us[others, 0]) - chain.duration_us[rows, 0].mean())
    return bool(own - usual < _MOST * waited)


def _since(chain: Chain, rows: list[int], execution: int) -> tuple[float, float]:
    """Time before an execution on those who are late, and on the others (median)."""
    others = [row for row in range(len(chain.members)) if row not in rows]
    return float(chain.since_us[rows, execution].mean()), float(np.median(chain.since_us[others, execution]))


def _evidence(view: View, chain: Chain, rows: list[int], at: NDArray[np.intp]) -> Iterator[str]:
    others = [row for row in range(len(chain.members)) if row not in rows]
    worst = at[np.argsort(-chain.wait_us[others][:, at].max(axis=0), kind="stable")[:_MOST_TIMES]]
    shown = sorted(worst.tolist())
    times = ", ".join(f"{place}: {format_ms(float(chain.wait_us[others, place].max()))}" for place in shown)
    own = chain.duration_us[rows][:, at]
    spans = f"{format_ms(float(own.min()))} to {format_ms(float(own.max()))}"
    who = _names(view, chain, rows)
    yield f"Longest wait of the others by collective: {times}; in the same ones {who} stay{_s(rows)} {spans}."
    first = int(at[0])
    before = "the start of the step" if first == 0 else f"the end of collective {first - 1}"
    own_us, usual_us = (format_ms(time) for time in _since(chain, rows, first))
    yield f"From {before} to collective {first} {who} take{_s(rows)} {own_us}, the others {usual_us}."
    if began_late(chain, rows, at):
        yield (
            "So the delay is older than the recorded step: the step before, or the start of the profiler itself, which "
            "does not take equally long everywhere."
        )
    if view.iterations == 1:
        yield f"One iteration was recorded: this is repeated over {at.size} collectives, not over iterations."


def _s(rows: Sequence[int]) -> str:
    return "s" if len(rows) == 1 else ""
