"""Runs a placement beside the interpreter and says what differs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from cora.build import compile_runtime
from cora.interpret import Interpreter, Outcome
from cora.offline import Offline
from cora.packet import supported
from cora.placement import SPLIT, Placement
from cora.program import Program


def visible(outcome: Outcome, frame: bytes) -> tuple[str, bytes]:
    """Return what both must agree on: the verdict, and the packet if it goes on; MAC addresses are set on devices."""
    return outcome.verdict, b"" if outcome.verdict == "drop" else outcome.frame


def interpreter_state(program: Program, interpreter: Interpreter) -> dict:
    found = {}
    for name, entries in interpreter.tables.items():
        sparse = program.tables[name].storage in {"array", "sketch"}
        found[name] = {key: value for key, value in entries.items() if not sparse or any(value.values())}
    return found


def compare(
    program: Program,
    placement: Placement,
    directory: Path,
    sequences: Sequence[Sequence[tuple[bytes, int, int]]],
    moves: bool = True,
) -> list[str]:
    """Return differences in verdicts, packets and final state; keys of split tables move between packets."""
    found = []
    runtime = directory.parent / "runtime.o"
    if not runtime.exists():
        compile_runtime(directory.parent)
    exact = {name for name, table in program.tables.items() if table.consistency == "exact"}
    with Offline(program, placement, directory, runtime=runtime) as tiers:
        for number, packets in enumerate(sequences):
            if number:
                tiers.reset()
            interpreter, chooser = Interpreter(program), random.Random(number)
            for at, (frame, port, time_ns) in enumerate(packets):
                want, got = interpreter.run(frame, port, time_ns), tiers.run(frame, port, time_ns)
                if visible(want, frame) != visible(got, frame):
                    found.append(
                        f"packet {at} of sequence {number}: {want} wanted, {got}; supported {supported(frame)}"
                    )
                if moves and at % 5 == 4:
                    move_some(program, placement, tiers, chooser)
            want_state, got_state = interpreter_state(program, interpreter), tiers.tables.state()
            found += [
                f"table {name} after sequence {number}: {want_state[name]} wanted, {got_state[name]}"
                for name in exact
                if want_state[name] != got_state[name]
            ]
    return found


def move_some(program: Program, placement: Placement, tiers: Offline, chooser: random.Random) -> None:
    for table in program.tables.values():
        if placement.homes[table.name] != SPLIT:
            continue
        up, down = tiers.tables.fast_items(table), tiers.tables.slow_items(table)
        if up and chooser.random() < 0.5:
            tiers.tables.lower_key(table.name, chooser.choice(up)[1])
        if down:
            tiers.tables.raise_key(table.name, chooser.choice(down)[1])
