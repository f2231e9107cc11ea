from __future__ import annotations

from pathlib import Path

import pytest

from cora import bpf
from cora.functions import FUNCTIONS, load
from cora.placement import SPLIT, Placement, options, why_illegal
from cora.traffic import Shape, make_traffic
from equivalence import compare
from random_programs import random_packets, random_placement, random_program

pytestmark = [pytest.mark.root, pytest.mark.skipif(bool(bpf.why_not()), reason=bpf.why_not() or "-")]


def check_random(seeds: range, directory: Path) -> None:
    for seed in seeds:
        program = random_program(seed)
        for number in range(5):
            placement = random_placement(program, 100 * seed + number)
            sequences = [random_packets(1000 * seed + 10 * number + i, 40) for i in range(10)]
            differences = compare(program, placement, directory / f"{seed}_{number}", sequences)
            assert not differences, f"program {seed}, {placement}: {differences[:3]}"


@pytest.mark.parametrize("part", range(4))
def test_random_programs_equal_the_interpreter_under_every_plan(part: int, tmp_path: Path) -> None:
    """A tenth of 200 programs x 5 plans x 10 sequences of packets."""
    check_random(range(5 * part, 5 * part + 5), tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize("part", range(18))
def test_the_other_nine_tenths_equal_it_too(part: int, tmp_path: Path) -> None:
    check_random(range(20 + 10 * part, 30 + 10 * part), tmp_path)


def placements(name: str) -> list[Placement]:
    program = load(name)
    found = []
    for wanted in ("fast", "slow", SPLIT, "both"):
        homes = {}
        for table in program.tables.values():
            allowed = options(program, table)
            homes[table.name] = next(home for home in (wanted, "both", "slow") if home in allowed)
        rooms = {table: 8 for table, home in homes.items() if home == SPLIT}
        placement = Placement(homes, rooms)
        if not why_illegal(program, placement) and placement not in found:
            found.append(placement)
    by_state = {t.name: "fast" if t.storage == "array" else "slow" for t in program.tables.values()}
    bouncing = Placement(by_state, {}, bounces=True)
    return found if why_illegal(program, bouncing) else [*found, bouncing]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_shipped_function_equals_the_interpreter_under_every_kind_of_plan(name: str, tmp_path: Path) -> None:
    settings = {"nat": {"ports": [20000, 20063]}, "cache": {"entries": 40}, "monitor": {"flows": 50}}.get(name, {})
    program = load(name, settings)
    traffic = make_traffic(name, Shape(keys=80, packets=400, rate_per_s=300, back=0.5))
    odd = [packet for seed in (1, 2) for packet in random_packets(seed, 60)]
    sequence = [(packet.frame, packet.port, packet.time_ns) for packet in traffic] + [
        (frame, port, time_ns + traffic[-1].time_ns) for frame, port, time_ns in odd
    ]
    for number, placement in enumerate(placements(name)):
        assert not compare(program, placement, tmp_path / str(number), [sequence])[:3], placement
