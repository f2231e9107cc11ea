"""Transfers that are slow on some paths: a host's network link, or process groups beside like ones.

Two measurements tell. The kernel's TCP counters show on which connections data waits. And like process groups, with
equally many executions of equal size and nobody late, should take equally long; the use of its path then tells which
member sits on the bad link.

Array suffixes: G groups, M members of a group, W workers, I iterations. Times are microseconds per iteration.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.block import Block, Culprit
from eroica.diagnosis.frames import HALF, MOST, Focus
from eroica.diagnosis.outliers import LEAST_AGREEMENT
from eroica.diagnosis.view import View
from eroica.diagnosis.words import FEW, format_ms, join_names, name_workers, short_name, verb
from eroica.localize.excess import SURE, mean_error
from eroica.localize.families import Family, GroupPaths, paths_of, read_families
from eroica.localize.links import Flow, SlowLink, find_slow_link, read_flows
from eroica.localize.rule import USE_FLOOR
from eroica.model.shares import percent
from eroica.model.verdict import ResourceUse
from eroica.model.words import byte_size

Floats = NDArray[np.float64]
#: The fast fifth of like groups shows what a transfer can take. A group is slow from so many times that on, and its
#: members use more of a path from so many times what nearly everybody in other groups uses. Healthy ones differ by
#: up to 40 %.
_LONGER = 1.5
#: Values of a counter behind a worker's use of its path.
_LEAST_SAMPLES = 20
#: A link, or a thread with the interpreter lock, was measured itself: the time lost need be less sure, and that counts
#: for so many more standard errors.
LEAST_STRENGTH, CORROBORATION = 1.5, 4.0
_PATH_STEP = (
    "On these hosts compare nvidia-smi topo -m and nvidia-smi nvlink -s with a healthy host, check that the fabric "
    "manager runs and that driver and firmware are the same, and look at what NCCL_DEBUG=INFO says of the transport it "
    "took; move the job off these hosts until that is mended."
)
_PATHS = {"pcie": "PCIe link", "nic": "network interface", "nvlink": "NVLink"}


def find_slow_transfers(view: View, rows: list[int]) -> Iterator[Block]:
    """Yield the links and the process groups whose transfers are slow.

    Args:
        view: The window.
        rows: Rows of collectives with critical time.
    """
    link = find_slow_link(read_flows(view.fleet.patterns)) if rows else None
    if link is not None:
        yield from _of_link(view, link, rows)
    for family in read_families(view.fleet, view.suspects.arrivals):
        yield from _of_family(view, family)


def _of_link(view: View, link: SlowLink, rows: list[int]) -> Iterator[Block]:
    """Yield the block of a host's link, if the collectives' own time is spent on it."""
    now_I, past = view.fleet.wait_us.min(axis=0), view.suspects.baseline
    busy_us = link.busiest.busy_share * view.iteration_us
    if busy_us < HALF * float(now_I.mean()):
        return
    saved_us, reference = min(busy_us, float(now_I.mean())) * max(1 - link.busiest.rate / link.peers_rate, 0.0), "peers"
    if past is not None and view.is_slow:
        saved_us, reference = float(now_I.mean()) - float(past.wait_us.min(axis=0).mean()), "baseline"
    block = longer_collectives(view, rows, now_I, float(now_I.mean()) - saved_us)
    if saved_us > 0 and block.strength >= LEAST_STRENGTH:
        yield msgspec.structs.replace(
            block,
            workers=tuple(at for at, one in enumerate(view.fleet.patterns) if one.worker.host in link.hosts),
            scope="some",
            reference=reference,
            strength=float(np.hypot(block.strength, CORROBORATION)),
            culprit=_link_culprit(view, link),
        )


def longer_collectives(view: View, rows: list[int], now_I: Floats, usual_us: float) -> Block:
    """Return the block of collectives in which everybody spends more than usual.

    Args:
        view: The window.
        rows: Rows of collectives.
        now_I: Time in them. float64 [I].
        usual_us: The same time in the baseline window, or without what is lost.
    """
    excess_us = float(now_I.mean()) - usual_us
    return Block(
        cell="collectives",
        rows=tuple(rows),
        focus=whole_rows(view, rows),
        workers=tuple(range(view.workers)),
        scope="all",
        reference="baseline",
        removed_us=np.repeat(np.maximum(now_I - usual_us, 0.0)[None], view.workers, axis=0),
        mean_us=float(now_I.mean()),
        reference_us=usual_us,
        strength=excess_us / max(float(mean_error(now_I[None])[0]), 1e-9),
        gain=excess_us / max(view.iteration_us, 1e-9),
    )


def whole_rows(view: View, rows: Sequence[int]) -> Focus:
    """Name rows as they are, without a frame, by the one with most critical time."""
    heaviest = max(rows, key=lambda row: float(view.fleet.critical_us[row].mean()))
    return Focus(name=view.fleet.keys[heaviest].name, functions=tuple(rows))


def _link_culprit(view: View, link: SlowLink) -> Culprit:
    whose = f"The {'' if link.way == 'both' else f'{link.way} '}network link of {link.hosts[0]}"
    if link.way == "path":
        whose = f"The network path from {link.hosts[0]} to {link.hosts[-1]}"
    usual = max((flow.busy_share for flow in link.others), default=0.0)
    sent = sum(flow.retransmits for flow in link.slow), sum(flow.retransmits for flow in link.others)
    return Culprit(
        kind="link",
        subject=(
            f"{whose} is slow: data waits on it {percent(link.busiest.busy_share)} of the time (other links "
            f"{percent(usual)}) and moves at {byte_size(round(link.rate))}/s (others "
            f"{byte_size(round(link.peers_rate))}/s)"
        ),
        ending=f"; the others wait in each {view.now_text} iteration.",
        evidence=(
            *(f"{_described(flow)}." for flow in link.slow),
            f"Segments sent again: {sent[0]:.0f} on the slow flows, {sent[1]:.0f} on the others.",
        ),
        resource=ResourceUse(
            name="network", mean=round(link.rate / 1e6, 3), peers_mean=round(link.peers_rate / 1e6, 3), unit="MB/s"
        ),
    )


def _described(flow: Flow) -> str:
    rtt = f", round trip {flow.rtt_s * 1e3:.2g} ms" if flow.rtt_s else ""
    return (
        f"{flow.source} to {flow.target}: {byte_size(round(flow.sent_bytes))} with data under way "
        f"{percent(flow.busy_share)} of the time, {byte_size(round(flow.rate))}/s{rtt}, "
        f"{byte_size(round(flow.queued_bytes))} waiting on average"
    )


class _Slow(NamedTuple):
    """Slow groups of a family that are slow in one way, and the members that show it.

    Attributes:
        way: Their members are on a slower path than others, on a bad link, or ("between") alike.
        groups: The groups.
        workers: These members (indices).
    """

    way: Literal["path", "link", "between"]
    groups: list[GroupPaths]
    workers: list[int]


def _of_family(view: View, family: Family) -> Iterator[Block]:
    """Yield the groups that take clearly longer than like ones, by what the members' use of their paths tells."""
    fast_I = np.quantile(np.stack([one.transfer_us for one in family.groups]), 0.2, axis=0)
    fast_us, least_us = float(fast_I.mean()), view.settings.min_gain * view.iteration_us
    is_slow = [one.mean_us >= _LONGER * fast_us and one.mean_us - fast_us >= least_us for one in family.groups]
    if not any(is_slow) or sum(is_slow) > MOST * len(is_slow):
        return
    paths = [paths_of(view.fleet, one, _LEAST_SAMPLES) for one in family.groups]
    usual = [one for one, is_one in zip(paths, is_slow, strict=True) if not is_one]
    used = np.concatenate([one.mu[~np.isnan(one.mu)] for one in usual])
    highest = float(np.quantile(used, 0.95)) if used.size else np.inf
    parts: dict[str, _Slow] = {}
    for one in (one for one, is_one in zip(paths, is_slow, strict=True) if is_one):
        way, members = _who_is_slow(one, highest)
        part = parts.setdefault(way, _Slow(way, [], []))
        part.groups.append(one)
        part.workers.extend(members)
    for part in parts.values():
        yield from _of_groups(view, family, part, usual, fast_I)


def _who_is_slow(one: GroupPaths, highest: float) -> tuple[Literal["path", "link", "between"], Iterable[int]]:
    """Return the members of a slow group that its use of paths shows, and how.

    Members on a slower path move more over a path between devices than nearly everybody in groups that are not slow.
    Those on a bad link use little of their path, steadily, beside their ring peers (EROICA, section 3: members that
    wait for a bad link have a high deviation, those on it a low one).
    """
    members_M = np.asarray(one.members)
    over_M = one.mu >= max(_LONGER * highest, highest + USE_FLOOR)
    if one.resource == "pcie" and over_M.any():
        return "path", members_M[over_M].tolist()
    if one.resource and not np.isnan(one.mu).all():
        middle, spread = float(np.nanmedian(one.mu)), float(np.nanmedian(one.sigma))
        low_M = (one.mu <= HALF * middle) & (middle - one.mu >= USE_FLOOR) & ~(one.sigma > _LONGER * spread)
        if 0 < low_M.mean() < HALF:
            return "link", members_M[low_M].tolist()
    return "between", one.members


def _of_groups(view: View, family: Family, found: _Slow, usual: list[GroupPaths], fast_I: Floats) -> Iterator[Block]:
    """Yield the block of slow groups, if the others are seen to wait for them, or all workers are in them."""
    removed_WI = np.zeros_like(view.fleet.iteration_us)
    for one in found.groups:
        removed_WI[list(one.members)] = np.maximum(one.transfer_us - fast_I, 0.0)
    members = sorted({worker for one in found.groups for worker in one.members})
    excess_I = removed_WI[members].mean(axis=0)
    strength = float(excess_I.mean()) / max(float(mean_error(excess_I[None])[0]), 1e-9)
    others = np.setdiff1d(np.arange(view.workers), members)
    waited_W, agreement = view.suspects.arrivals.waited_us.mean(axis=1), None
    if others.size:
        agreement = float((np.median(waited_W[others]) - np.median(waited_W[members])) / max(excess_I.mean(), 1e-9))
    if strength < SURE or (agreement is not None and agreement < LEAST_AGREEMENT):
        return
    rows = tuple(sorted({row for one in family.groups for row in one.rows}))
    workers = tuple(sorted({*found.workers}))
    yield Block(
        cell="collectives",
        rows=rows,
        focus=Focus(name=family.name, functions=rows),
        workers=workers,
        scope="all" if len(workers) == view.workers else "some",
        reference="peers",
        removed_us=removed_WI,
        mean_us=float(np.mean([one.mean_us for one in found.groups])),
        reference_us=float(fast_I.mean()),
        strength=strength,
        agreement=None if agreement is None else min(agreement, 1.0),
        culprit=_group_culprit(view, family, found, usual, float(fast_I.mean())),
        gain=_path_gain(view, removed_WI),
    )


def _path_gain(view: View, removed_WI: Floats) -> float:
    """Return the gain of shorter transfers as a share of the iteration.

    A worker's path through an iteration is all but the waiting for others; the longest path is the iteration. Two
    causes on different workers hide each other, so it is the larger of what this gains alone, and what it adds when
    everybody else is no later than the median.
    """
    path_WI = np.maximum(view.fleet.iteration_us - view.suspects.arrivals.waited_us, 0.0)
    left_WI = np.maximum(path_WI - removed_WI, 0.0)
    touched = removed_WI.any(axis=1)
    alone_I = path_WI.max(axis=0) - left_WI.max(axis=0)
    after_I = path_WI[touched].max(axis=0) - np.maximum(left_WI[touched].max(axis=0), np.median(path_WI, axis=0))
    return max(float(alone_I.mean()), float(np.maximum(after_I, 0.0).mean())) / max(view.iteration_us, 1e-9)


def _group_culprit(view: View, family: Family, found: _Slow, usual: list[GroupPaths], fast_us: float) -> Culprit:
    workers, path = sorted({*found.workers}), _PATHS.get(found.groups[0].resource, found.groups[0].resource)
    name = short_name(family.name.partition("(")[0])
    who = name_workers([view.fleet.ranks[worker] for worker in workers], capital=found.way != "link")
    use, whose = verb(workers, "uses", "use"), verb(workers, "its", "their")
    every = [*found.groups, *usual]
    is_own = [np.isin(one.members, workers) & (at < len(found.groups)) for at, one in enumerate(every)]
    mu, own = np.concatenate([one.mu for one in every]), np.concatenate(is_own)
    used, others = (percent(float(np.nan_to_num(np.nanmean(mu[some])))) for some in (own, ~own))
    slow_us = float(np.mean([one.mean_us for one in found.groups]))
    times = f"{format_ms(slow_us)} for {name} instead of {format_ms(fast_us)}"
    hosts = list(dict.fromkeys(view.fleet.patterns[at].worker.host for at in workers))
    where = f"{len(hosts)} hosts ({', '.join(hosts[:FEW])}, ...)" if len(hosts) > FEW else join_names(hosts)
    subject = {
        "path": f"{who} ({where}) send data over {whose} {path} that others keep off it ({used} of it used against "
        f"{others}), and {whose} groups take {times}",
        "link": f"The network link of {where} carries little: {who} {use} {used} of {whose} {path} in {name}, {whose} "
        f"ring peers {others}, and the groups take {times}",
        "between": f"The network paths among {where} are slow: {len(found.groups)} of {len(family.groups)} like groups "
        f"of {family.size} workers take {times}",
    }[found.way]
    means = sorted(one.mean_us for one in family.groups)
    text = (
        f"Over all {len(means)} like groups it takes {format_ms(means[0])} to {format_ms(means[-1])}, with "
        "equally many executions of equal size, and nobody comes late."
    )
    return Culprit(
        kind="link",
        subject=subject,
        ending=f"; the others wait in each {view.now_text} iteration.",
        evidence=(text,),
        next_step=_PATH_STEP if found.way == "path" else "",
        doubt=0.7 if found.way == "between" else 1.0,
    )
