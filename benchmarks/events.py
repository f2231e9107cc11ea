"""What one event costs that may mark an iteration where no optimizer steps, in nanoseconds.

    python benchmarks/events.py [--json FILE]

Each event is called in a loop, with and without Eroica's hook, and the difference is told: the median of 15 rounds, in
CPU time, with warm caches. A torch module that is called under a global forward hook stands beside them: it is what was
not taken.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
import types
from collections.abc import Callable
from pathlib import Path

import torch

from eroica.wire.beat import BACKWARD, EXCHANGES, OPTIMIZER, BeatWriter
from eroica.worker.attach import hear_backward, hear_exchanges
from eroica.worker.hooks import Guest

ROUNDS, CALLS, MODULES = 15, 20_000, 100
CODE = """
def _rank_not_in_group(group):
    return group == 0
def all_reduce(tensor, group=None):
    return _rank_not_in_group(group)
def isend(tensor, dst=None, group=None, group_dst=None):
    return _rank_not_in_group(group)
def get_rank(group=None):
    return _rank_not_in_group(group)
"""


def nanoseconds(call: Callable[[], object], calls: int = CALLS) -> float:
    """Return the processor time of one call, nanoseconds."""
    rounds = []
    for _ in range(ROUNDS):
        began = time.thread_time_ns()
        for _ in range(calls):
            call()
        rounds.append((time.thread_time_ns() - began) / calls)
    return statistics.median(rounds)


def guest_that_shows(source: int, place: Path) -> Guest:
    """A guest with a beat file, in whose process exchanges and backward passes repeat and this source is shown."""
    guest = Guest()
    guest._joining = object()  # type: ignore[assignment]
    for hear, kind in ((guest.exchanged, 1), (guest.passed_back, None)):
        for _ in range(40):
            hear(kind)
    guest._beats = BeatWriter.create(place, {})
    guest._capturer = types.SimpleNamespace(phase=0, give_up=lambda _: None)  # type: ignore[assignment]
    guest._sources.shown = source
    return guest


def costs(place: Path) -> dict[str, float]:
    """Nanoseconds of each event."""
    found = {}
    module = types.ModuleType("distributed")
    exec(CODE, module.__dict__)
    calls = {
        "collective": lambda: module.all_reduce(1),
        "send": lambda: module.isend(1, 3),
        "question that is no exchange": lambda: module.get_rank(None),
    }
    for source in (OPTIMIZER, EXCHANGES):
        guest = guest_that_shows(source, place)
        alone = {name: nanoseconds(call) for name, call in calls.items()}
        undo = hear_exchanges(module, guest.exchanged)
        for name, call in calls.items():
            found[f"{name}, {'iterations are steps' if source == OPTIMIZER else 'marks them'}"] = (
                nanoseconds(call) - alone[name]
            )
        undo()
    engine = torch.autograd.variable.Variable
    alone_ns = nanoseconds(lambda: engine._execution_engine.run_backward)
    for source in (OPTIMIZER, BACKWARD):
        undo = hear_backward(torch.autograd.variable, guest_that_shows(source, place).passed_back)
        name = "iterations are steps" if source == OPTIMIZER else "marks them"
        found[f"backward pass, {name}"] = nanoseconds(lambda: engine._execution_engine.run_backward) - alone_ns
        undo()
    net, one = torch.nn.Sequential(*(torch.nn.Identity() for _ in range(MODULES))), torch.ones(1)
    alone_ns = nanoseconds(lambda: net(one), 200)
    handle = torch.nn.modules.module.register_module_forward_pre_hook(lambda *_: None)
    found["each module under a global forward hook (not taken)"] = (
        nanoseconds(lambda: net(one), 200) - alone_ns
    ) / MODULES
    handle.remove()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        found = {name: round(cost) for name, cost in costs(Path(place)).items()}
    for name, cost in found.items():
        sys.stdout.write(f"{cost:6d} ns  {name}\n")
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
