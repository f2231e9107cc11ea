from __future__ import annotations

import math
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servegen.calibrate import agreement, calibrate
from servegen.engine import Engine, read_engine, simulate
from servegen.errors import BadFile, BadRequest
from servegen.replay import Record

ROOMY = Engine(batch_tokens=64, sequences=8, blocks=100_000)


def slow_twin(
    engine: Engine, times: list[float], inputs: list[int], outputs: list[int]
) -> tuple[list[float], list[float]]:
    """One instance, one iteration at a time, with room for all: times to first token and ends."""
    now, queue, running = 0.0, list(range(len(times))), []
    prefilled = [0] * len(times)
    first, ends, made = [math.nan] * len(times), [math.nan] * len(times), [0] * len(times)
    active = None
    while queue or running or active is not None:
        if active is None and not running:
            now = max(now, times[queue[0]])
        if active is None and queue and times[queue[0]] <= now and len(running) < engine.sequences:
            active = queue.pop(0)
        budget, spent, begun = max(engine.batch_tokens - len(running), 1), 0, []
        cached = sum(inputs[i] + made[i] - 1 for i in running)
        took = engine.fixed_s + engine.per_sequence_s * len(running) + engine.per_cached_token_s * cached
        while active is not None and spent < budget:
            chunk = min(inputs[active] - prefilled[active], budget - spent)
            prefilled[active] += chunk
            spent += chunk
            if prefilled[active] < inputs[active]:
                break
            begun.append(active)
            active = None
            if queue and times[queue[0]] <= now and len(running) + len(begun) < engine.sequences:
                active = queue.pop(0)
        now += took + engine.per_prefill_token_s * spent
        for i in running:
            made[i] += 1
        for i in begun:
            made[i], first[i] = 1, now
        for i in [*running, *begun]:
            if made[i] >= outputs[i]:
                ends[i] = now
        running = [i for i in [*running, *begun] if made[i] < outputs[i]]
    return [f - t + engine.overhead_s for f, t in zip(first, times, strict=True)], ends


requests_strategy = st.lists(
    st.tuples(st.floats(0, 2), st.integers(1, 300), st.integers(1, 60)), min_size=1, max_size=25
)


@given(requests_strategy, st.sampled_from([0.0, 1e-6, 1e-5]))
@settings(max_examples=80, deadline=None)
def test_steps_of_many_iterations_equal_single_iterations(rows: list[tuple[float, int, int]], growth: float) -> None:
    rows = sorted(rows)
    times, inputs, outputs = (list(column) for column in zip(*rows, strict=True))
    engine = msgspec.structs.replace(ROOMY, per_cached_token_s=growth)
    served = simulate(engine, 1, np.array(times), inputs, outputs)
    first, ends = slow_twin(engine, times, inputs, outputs)
    assert served.ttft_s == pytest.approx(np.array(first), abs=1e-6)
    for i, (out, end) in enumerate(zip(outputs, ends, strict=True)):
        if out > 1:
            started = first[i] - engine.overhead_s + times[i]
            assert served.per_token_s[i] == pytest.approx((end - started) / (out - 1), abs=1e-6)


@pytest.mark.parametrize("router", ["round-robin", "least-requests"])
@pytest.mark.parametrize("blocks", [100_000, 60])
def test_every_token_is_made_once_even_if_the_cache_overflows(router: str, blocks: int) -> None:
    rng = np.random.default_rng(1)
    size = 400
    times, inputs, outputs = np.sort(rng.random(size) * 20), rng.integers(1, 400, size), rng.integers(1, 200, size)
    served = simulate(
        msgspec.structs.replace(ROOMY, blocks=blocks), 3, times, inputs.tolist(), outputs.tolist(), router
    )
    assert np.isfinite(served.ttft_s).all()
    assert served.gaps.sum() == (outputs - 1).sum()
    assert (np.isfinite(served.per_token_s) == (outputs > 1)).all()
    assert (served.preempted > 0) == (blocks == 60)


def test_a_request_larger_than_the_cache_does_not_hang() -> None:
    served = simulate(msgspec.structs.replace(ROOMY, blocks=8), 1, np.zeros(3), [10_000] * 3, [10_000] * 3)
    assert np.isfinite(served.ttft_s).all()


def test_more_instances_are_quicker_and_a_hopeless_fleet_is_given_up() -> None:
    rng = np.random.default_rng(1)
    times, inputs, outputs = np.sort(rng.random(2000) * 60), [200] * 2000, [50] * 2000
    p99 = [np.quantile(simulate(ROOMY, n, times, inputs, outputs).ttft_s, 0.99) for n in (4, 8, 16)]
    assert p99[0] > p99[1] > p99[2]
    assert simulate(ROOMY, 1, times, inputs, outputs, ttft_s=0.5, most_late=0.01).given_up


def test_the_router_with_fewest_requests_beats_turns_when_lengths_differ() -> None:
    rng = np.random.default_rng(2)
    times = np.sort(rng.random(1500) * 30)
    outputs = np.where(rng.random(1500) < 0.1, 400, 10).tolist()
    turns, fewest = (
        np.quantile(simulate(ROOMY, 4, times, [50] * 1500, outputs, router).ttft_s, 0.99)
        for router in ("round-robin", "least-requests")
    )
    assert fewest < turns


def records_of(engine: Engine, seed: int, size: int = 120) -> tuple[Record, ...]:
    """What a replay would record if the engine were real, with a tenth of noise."""
    rng = np.random.default_rng(seed)
    times, inputs, outputs = np.sort(rng.random(size) * 30), rng.integers(20, 400, size), rng.integers(2, 80, size)
    served = simulate(engine, 1, times, inputs.tolist(), outputs.tolist())
    noise = rng.lognormal(0, 0.1, (2, size))
    return tuple(
        Record("c", "u", t, t, t + f * a, t + f * a + (o - 1) * p * b, int(o), [], int(i), int(i), int(o), int(o), "")
        for t, i, o, f, p, a, b in zip(times, inputs, outputs, served.ttft_s, served.per_token_s, *noise, strict=True)
    )


def test_calibration_repeats_latencies_of_an_unknown_engine() -> None:
    real = Engine(
        fixed_s=0.011, per_sequence_s=0.002, per_prefill_token_s=0.0003, per_cached_token_s=1e-7, overhead_s=0.02
    )
    base = Engine(batch_tokens=512)
    found = calibrate(records_of(msgspec.structs.replace(real, batch_tokens=512), 1), base)
    other = agreement(found, records_of(msgspec.structs.replace(real, batch_tokens=512), 2))
    assert all(abs(error) < 0.12 for error in other.errors().values()), other


def test_a_calibration_needs_requests() -> None:
    with pytest.raises(BadRequest, match="needs 30"):
        calibrate(records_of(Engine(), 1, 10), Engine())


def test_a_bad_engine_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "e.yaml").write_text("fixed_s: -1\n")
    with pytest.raises(BadFile, match="fixed_s"):
        read_engine(tmp_path / "e.yaml")
    (tmp_path / "e.yaml").write_bytes(msgspec.yaml.encode(ROOMY))
    assert read_engine(tmp_path / "e.yaml") == ROOMY
