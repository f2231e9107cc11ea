"""One host's network link is slower than the others': the data waits on its connections while all wait for the data."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.candidate import Candidate, Reference
from eroica.diagnosis.communication import collectives, common_wait
from eroica.diagnosis.frames import whole_rows
from eroica.diagnosis.view import View
from eroica.localize.excess import standard_error
from eroica.localize.links import Flow, SlowLink, find_slow_link, read_flows
from eroica.model.shares import percent
from eroica.model.verdict import ResourceUse

Floats = NDArray[np.float64]
_LEAST_GAIN = 0.05
#: Share of the time that everybody spends in collectives in which data must be under way over the link.
_LEAST_UNDER_WAY = 0.5
#: A path is seen by one flow, a host by all of its flows.
_COVERAGE = {"both": 1.0, "outgoing": 1.0, "incoming": 1.0, "path": 0.5}
#: The link was measured itself, so standard errors of the time lost need be fewer (a link that comes and goes makes
#: iterations jumpy), and count for more.
_LEAST_STRENGTH = 1.5
_CORROBORATION = 3.0


def find_slow_links(view: View) -> list[Candidate]:
    """Accuse the link that stands out, if the collectives' own time is spent on it.

    Collective time that even the last to arrive spends must be there, and data under way on the link for most of it. A
    late worker leaves the links idle; where all links are slow none stands out.
    """
    rows = collectives(view)
    link = find_slow_link(read_flows(view.fleet.patterns))
    if link is None or not rows:
        return []
    now_I = common_wait(view.fleet.wait_us)
    busy_us = link.busiest.busy_share * view.iteration_us
    if busy_us < _LEAST_UNDER_WAY * float(now_I.mean()):
        return []
    saved_us, reference = _saved(view, link, now_I)
    strength = saved_us / max(float(standard_error(now_I)[0]), 1e-9)
    if saved_us <= 0 or strength < _LEAST_STRENGTH * view.strictness:
        return []
    return [_candidate(view, link, rows, now_I, (saved_us, strength, reference))]


def _saved(view: View, link: SlowLink, now_I: Floats) -> tuple[float, Reference]:
    """Return the time a sound link saves in each iteration: against the baseline window, else at the rate of peers."""
    now_us = float(now_I.mean())
    past = view.suspects.baseline
    if past is None or not view.is_slow:
        flow = link.busiest
        on_the_way_us = min(flow.busy_share * view.iteration_us, now_us)
        return on_the_way_us * max(1 - flow.rate / link.peers_rate, 0.0), "peers"
    by_past_us = now_us - float(common_wait(past.wait_us).mean())
    return min(by_past_us, now_us), "baseline"


def _candidate(
    view: View, link: SlowLink, rows: list[int], now_I: Floats, saving: tuple[float, float, Reference]
) -> Candidate:
    saved_us, strength, reference = saving
    heaviest = max(rows, key=lambda at: float(view.fleet.critical_us[at].mean()))
    name = view.fleet.keys[heaviest].name
    focus = whole_rows(name, rows)
    kept_us = float(now_I.mean()) - saved_us
    hosts = [pattern.worker.host for pattern in view.fleet.patterns]
    return Candidate(
        cause="slow-link",
        scope="some",
        workers=tuple(worker for worker, host in enumerate(hosts) if host in link.hosts),
        functions=tuple(rows),
        focus=focus,
        kind="collective",
        removed_us=np.repeat(np.maximum(now_I - kept_us, 0.0), view.workers, axis=0),
        mean_us=float(now_I.mean()),
        reference_us=kept_us,
        reference=reference,
        strength=strength,
        coverage=_COVERAGE[link.way],
        corroboration=_CORROBORATION,
        least_gain=max(_LEAST_GAIN, view.settings.min_gain),
        evidence=tuple(_evidence(view, link)),
        hosts=link.hosts,
        subject=_subject(link),
        resource=ResourceUse(
            name="network", mean=round(link.rate / 1e6, 3), peers_mean=round(link.peers_rate / 1e6, 3), unit="MB/s"
        ),
    )


def _subject(link: SlowLink) -> str:
    """Begin the sentence: whose link it is, and what is seen on it."""
    whose = {
        "both": f"The network link of {link.hosts[0]}",
        "outgoing": f"The outgoing network link of {link.hosts[0]}",
        "incoming": f"The incoming network link of {link.hosts[0]}",
        "path": f"The network path from {link.hosts[0]} to {link.hosts[-1]}",
    }[link.way]
    usual = max((flow.busy_share for flow in link.others), default=0.0)
    return (
        f"{whose} is slow: data waits on it {percent(link.busiest.busy_share)} of the time (other "
        f"links {percent(usual)}) and moves at {format_rate(link.rate)} (others {format_rate(link.peers_rate)})"
    )


def format_rate(rate: float) -> str:
    """Format bytes per second for people: "9.7 MB/s"."""
    for unit in ("B/s", "kB/s", "MB/s"):
        if rate < 1000:
            return f"{rate:.2g} {unit}" if rate < 10 else f"{rate:.0f} {unit}"
        rate /= 1000
    return f"{rate:.1f} GB/s"


def _evidence(view: View, link: SlowLink) -> Iterator[str]:
    for flow in link.slow:
        yield f"{_described(flow)}."
    others = sorted(link.others, key=lambda flow: flow.rate)[:2]
    for flow in others:
        yield f"For comparison: {_described(flow)}."
    sent = sum(flow.retransmits for flow in link.slow), sum(flow.retransmits for flow in link.others)
    yield f"Segments sent again: {sent[0]:.0f} on the slow flows, {sent[1]:.0f} on the others."
    if link.way == "both":
        yield (
            "Acknowledgements share the link with data, so one slow direction makes both look slow: the host is sure, "
            "the direction is not."
        )
    if link.way in ("incoming", "outgoing") and len(link.slow) == 1:
        other = "sends" if link.way == "incoming" else "receives"
        yield f"Acknowledgements of what {link.hosts[0]} {other} are late, too: it is this end of the path."
    if link.way == "path":
        yield "Only the flow between these two is slow: the sender's port, the receiver's or the way between them."
    used = _nic(view, link.hosts)
    if used:
        yield used


def _described(flow: Flow) -> str:
    rtt = f", round trip {flow.rtt_s * 1e3:.2g} ms" if flow.rtt_s else ""
    least = f" (at best {flow.least_rtt_s * 1e3:.2g} ms)" if flow.rtt_s and flow.least_rtt_s else ""
    return (
        f"{flow.source} to {flow.target}: {flow.sent_bytes / 1e6:.3g} MB with data under way "
        f"{percent(flow.busy_share)} of the time, {format_rate(flow.rate)}{rtt}{least}, "
        f"{flow.queued_bytes / 1e3:.0f} kB waiting on average"
    )


def _nic(view: View, hosts: tuple[str, ...]) -> str:
    """State the use of the interface, where its speed is known: a slow link nowhere near full is not overloaded."""
    use = [
        row.mu
        for pattern in view.fleet.patterns
        if pattern.worker.host in hosts
        for row in pattern.functions
        if row.resource == "nic" and row.resource_samples and row.beta > 0
    ]
    return f"Its interface is used at {percent(max(use), 1)} of its stated speed during collectives." if use else ""
