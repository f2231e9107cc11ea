"""A host's network link on which data waits, by the kernel's counters of TCP connections.

Array suffixes: W workers, I iterations. Times are microseconds per iteration.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from eroica.diagnosis.block import Block, Culprit
from eroica.diagnosis.frames import whole_rows
from eroica.diagnosis.view import View
from eroica.localize.excess import standard_error
from eroica.localize.links import Flow, SlowLink, find_slow_link, read_flows
from eroica.model.shares import percent
from eroica.model.verdict import ResourceUse

#: Share of everybody's collective time in which data must be under way over the link.
_LEAST_UNDER_WAY = 0.5
#: A link was measured itself, so the time lost need be less sure, and counts for so many more standard errors.
_LEAST_STRENGTH, _CORROBORATION = 1.5, 3.0


def find_slow_transfers(view: View, rows: list[int]) -> Iterator[Block]:
    """Yield the block of a host's link, if the collectives' own time is spent on it.

    Args:
        view: The window.
        rows: Rows of collectives with critical time.
    """
    link = find_slow_link(read_flows(view.fleet.patterns)) if rows else None
    if link is None:
        return
    now_I, past = view.fleet.wait_us.min(axis=0), view.suspects.baseline
    busy_us = link.busiest.busy_share * view.iteration_us
    if busy_us < _LEAST_UNDER_WAY * float(now_I.mean()):
        return
    saved_us, reference = min(busy_us, float(now_I.mean())) * max(1 - link.busiest.rate / link.peers_rate, 0.0), "peers"
    if past is not None and view.is_slow:
        saved_us, reference = float(now_I.mean()) - float(past.wait_us.min(axis=0).mean()), "baseline"
    strength = saved_us / max(float(standard_error(now_I[None])[0]), 1e-9)
    if saved_us <= 0 or strength < _LEAST_STRENGTH:
        return
    kept_us = float(now_I.mean()) - saved_us
    heaviest = max(rows, key=lambda row: float(view.fleet.critical_us[row].mean()))
    workers = [at for at, one in enumerate(view.fleet.patterns) if one.worker.host in link.hosts]
    yield Block(
        cell="collectives",
        rows=tuple(rows),
        focus=whole_rows(view.fleet.keys[heaviest].name, rows),
        workers=tuple(workers),
        scope="some",
        reference=reference,  # type: ignore[arg-type]
        removed_us=np.repeat(np.maximum(now_I - kept_us, 0.0)[None], view.workers, axis=0),
        mean_us=float(now_I.mean()),
        reference_us=kept_us,
        strength=float(np.hypot(strength, _CORROBORATION)),
        culprit=_link_culprit(link),
        gain=saved_us / max(view.iteration_us, 1e-9),
    )


def _link_culprit(link: SlowLink) -> Culprit:
    whose = {
        "both": f"The network link of {link.hosts[0]}",
        "outgoing": f"The outgoing network link of {link.hosts[0]}",
        "incoming": f"The incoming network link of {link.hosts[0]}",
        "path": f"The network path from {link.hosts[0]} to {link.hosts[-1]}",
    }[link.way]
    usual = max((flow.busy_share for flow in link.others), default=0.0)
    others = sorted(link.others, key=lambda flow: flow.rate)[:2]
    sent = sum(flow.retransmits for flow in link.slow), sum(flow.retransmits for flow in link.others)
    return Culprit(
        kind="link",
        subject=(
            f"{whose} is slow: data waits on it {percent(link.busiest.busy_share)} of the time (other links "
            f"{percent(usual)}) and moves at {format_rate(link.rate)} (others {format_rate(link.peers_rate)})"
        ),
        evidence=(
            *(f"{_described(flow)}." for flow in link.slow),
            *(f"For comparison: {_described(flow)}." for flow in others),
            f"Segments sent again: {sent[0]:.0f} on the slow flows, {sent[1]:.0f} on the others.",
        ),
        resource=ResourceUse(
            name="network", mean=round(link.rate / 1e6, 3), peers_mean=round(link.peers_rate / 1e6, 3), unit="MB/s"
        ),
    )


def format_rate(rate: float) -> str:
    """Return bytes per second for people: "9.7 MB/s"."""
    for unit in ("B/s", "kB/s", "MB/s"):
        if rate < 1000:
            return f"{rate:.2g} {unit}" if rate < 10 else f"{rate:.0f} {unit}"
        rate /= 1000
    return f"{rate:.1f} GB/s"


def _described(flow: Flow) -> str:
    rtt = f", round trip {flow.rtt_s * 1e3:.2g} ms" if flow.rtt_s else ""
    return (
        f"{flow.source} to {flow.target}: {flow.sent_bytes / 1e6:.3g} MB with data under way "
        f"{percent(flow.busy_share)} of the time, {format_rate(flow.rate)}{rtt}, "
        f"{flow.queued_bytes / 1e3:.0f} kB waiting on average"
    )
