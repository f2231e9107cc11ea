"""What Eroica calls (`eroica.parts`): the parts that the environment asks for, imported only then."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from eroica_c4d.options import read_options

if TYPE_CHECKING:
    from eroica.agent.loop import Agent
    from eroica.collector.service import Collector
    from eroica.parts import AgentPart, CollectorPart


def agent_ways(agent: Agent) -> AgentPart | None:
    """Return the agent's part that reads connections; None if it is off."""
    if not read_options(os.environ).watches:
        return None
    from eroica_c4d.connections import Watch

    return Watch(agent.roster)


def collector_ways(collector: Collector) -> CollectorPart | None:
    """Return the collector's part that finds slow ways; None if it is off."""
    if not read_options(os.environ).watches:
        return None
    from eroica_c4d.watch import Part

    return Part(collector)


def orders(collector: Collector) -> CollectorPart | None:
    """Return the collector's part that gives orders; None if nobody is to be given any."""
    options, ledger = read_options(os.environ), collector.windows.ledger
    if not (options.on_verdict or options.on_verdict_url):
        return None
    from eroica_c4d.orders import Orders

    made = Orders(
        collector.windows.job,
        collector.run_directory,
        options,
        ledger.note,
        lambda: collector.standing,
        lambda: collector.lapsed,
    )
    if os.environ.get("EROICA_RESUME"):
        made.resume()
    collector.listeners.append(made.judged)
    return made
