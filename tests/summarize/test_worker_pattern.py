import numpy as np
import pytest
from synthetic_window import (
    BACKWARD,
    GLOO,
    HOOK,
    LOADER,
    PID,
    SCRIPT,
    STEP,
    TRAINING,
    Events,
    capture,
    is_conserved,
    row_named,
    timeline,
)

from eroica.errors import InputError
from eroica.hardware.store import Samples, Series
from eroica.hardware.writer import Channel
from eroica.model.series import decode_series
from eroica.model.window import FlightEntry
from eroica.settings import Settings
from eroica.summarize.pattern import summarize_worker
from eroica.wire.codec import encode_record

MS = 1_000_000
CHILD = (
    "BaseProcess._bootstrap (multiprocessing/process.py:290)",
    "_worker_loop (torch/utils/data/_utils/worker.py:244)",
)
SETTINGS = Settings()


def iterations(count, first=0, length=100):
    return tuple((first + number * length) * MS for number in range(count + 1))


def training(count, loader_ms=30, hook_ms=0):
    """`count` iterations of 100 ms: loader, forward, backward with an all-reduce, optimizer; the rest is waiting."""
    events, flight, stretches = Events(), [], []
    for number in range(count):
        at = number * 100

        def ms(value, at=at):
            return round((at + value) * MS)

        events.note("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", ms(0), ms(loader_ms))
        stretches.append((ms(0), ms(loader_ms), (SCRIPT, STEP, *LOADER)))
        stretches.append((ms(loader_ms), ms(50), (SCRIPT, STEP)))
        events.note("DistributedDataParallel.forward", ms(loader_ms), ms(50)).add("aten::linear", ms(35), ms(50))
        events.add("aten::mm", ms(36), ms(49))
        events.add("autograd::engine::evaluate_function: MmBackward0", ms(50), ms(71))
        events.add("aten::mm", ms(51), ms(70 - hook_ms))
        stretches.append((ms(50), ms(70 - hook_ms), (SCRIPT, STEP, *BACKWARD)))
        if hook_ms:
            stretches.append((ms(70 - hook_ms), ms(70), (SCRIPT, STEP, *BACKWARD, HOOK)))
        stretches.append((ms(70), ms(90), (SCRIPT, STEP, *BACKWARD)))
        events.add("c10d::allreduce_", ms(72), ms(73)).note("gloo:all_reduce", ms(72.5), ms(88), thread=GLOO)
        flight.append(
            FlightEntry(name="gloo:all_reduce", group="0", sequence=30 + number, created_ns=ms(72.4), elements=9)
        )
        events.note("Optimizer.step#AdamW.step", ms(90), ms(100)).add("aten::mul_", ms(90), ms(100))
        stretches.append((ms(90), ms(100), (SCRIPT, STEP)))
    return events, flight, stretches


def summarize(
    events, flight=(), stretches=None, boundaries=None, samples=None, threads=None, settings=SETTINGS, **facts
):
    stacks = None if stretches is None else timeline({(PID, TRAINING): stretches, **(threads or {})})
    return summarize_worker(capture(boundaries, **facts), events.table(), stacks, samples, flight, settings)


def test_each_millisecond_of_a_healthy_window_has_its_owner():
    events, flight, stretches = training(4)
    pattern = summarize(events, flight, stretches, iterations(4))
    assert is_conserved(pattern)
    assert pattern.idle_s == 0
    assert row_named(pattern, "aten::mm", phase="forward").critical_s == pytest.approx(4 * 0.013)
    assert row_named(pattern, "aten::mm", phase="backward").critical_s == pytest.approx(4 * 0.019)
    assert row_named(pattern, "aten::linear", phase="forward").critical_s == pytest.approx(4 * 0.002)
    assert row_named(pattern, "aten::mul_", phase="optimizer").beta == pytest.approx(0.1)
    assert row_named(pattern, "gloo:all_reduce", group="0", thread="collective").critical_s == pytest.approx(4 * 0.0155)
    assert row_named(pattern, "_try_get_data", phase="input").critical_s == pytest.approx(4 * 0.030, rel=0.2)
    assert [row.beta for row in pattern.functions] == sorted((row.beta for row in pattern.functions), reverse=True)


def test_a_python_hook_inside_the_backward_pass_is_not_hidden_by_the_engine():
    events, flight, stretches = training(6, hook_ms=15)
    pattern = summarize(events, flight, stretches, iterations(6))
    row = row_named(pattern, "scale", kind="python", phase="backward")
    assert row.key.stack == (SCRIPT, STEP, *BACKWARD, HOOK)
    assert row.critical_s == pytest.approx(6 * 0.015, rel=0.35)
    assert is_conserved(pattern)


def test_where_stacks_are_sampled_they_tell_what_the_compiler_does_and_who_called_it():
    compiler = "_compile (torch/_dynamo/convert_frame.py:1633)"
    events, stretches = Events(), []
    for number in range(4):
        at = number * 100 * MS
        events.add("aten::mm", at, at + 40 * MS)
        events.add("bytecode_tracing (dynamo_timed)", at + 40 * MS, at + 100 * MS)
        stretches += [(at, at + 40 * MS, (SCRIPT, STEP)), (at + 40 * MS, at + 100 * MS, (SCRIPT, STEP, compiler))]
    pattern = summarize(events, (), stretches, iterations(4))
    row = row_named(pattern, "_compile", kind="python")
    assert row.key.stack == (SCRIPT, STEP, compiler)
    assert row.critical_s == pytest.approx(4 * 0.060, rel=0.1)
    assert is_conserved(pattern)
    alone = summarize(events, (), None, iterations(4))
    assert row_named(alone, "bytecode_tracing (dynamo_timed)").critical_s == pytest.approx(4 * 0.060)


def test_a_collector_run_takes_the_place_of_what_it_interrupts():
    events, flight, stretches = training(3)
    collections = ((38 * MS, 44 * MS), (112 * MS, 116 * MS), (174 * MS, 177 * MS))
    pattern = summarize(events, flight, stretches, iterations(3), collections=collections)
    row = row_named(pattern, "garbage collection", kind="gc")
    assert row.critical_s == pytest.approx(0.006 + 0.004 + 0.003)
    assert (row.count, row.active_iterations) == (3, 2)
    assert decode_series(row.per_iteration_us, np.float32).tolist() == pytest.approx([6000, 7000, 0], rel=1e-3)
    assert row_named(pattern, "aten::mm", phase="forward").critical_s == pytest.approx(3 * 0.013 - 0.006)
    assert is_conserved(pattern)


def test_background_threads_and_loader_children_explain_but_are_never_critical():
    events, flight, stretches = training(4)
    threads = {
        (PID, 160): [(0, 400 * MS, ("Thread.run (threading.py:971)",))],
        (900, 900): [(0, 300 * MS, (*CHILD, "Data.__getitem__ (project/data.py:19)")), (300 * MS, 400 * MS, CHILD)],
        (901, 901): [(0, 400 * MS, (*CHILD, "Data.__getitem__ (project/data.py:19)"))],
    }
    pattern = summarize(events, flight, stretches, iterations(4), threads=threads)
    row = row_named(pattern, "Data.__getitem__", thread="loader")
    assert (row.beta, row.critical_s, row.key.phase, row.count) == (0.0, 0.0, "input", 2)
    assert row.total_s == pytest.approx(0.7, rel=0.02)
    assert row_named(pattern, "Thread.run", thread="background").total_s == pytest.approx(0.4, rel=0.02)


def test_time_without_any_sample_is_idle_and_said_so():
    events, flight, _ = training(3)
    pattern = summarize(events, flight, None, iterations(3))
    assert pattern.idle_s > 0.02
    assert is_conserved(pattern)
    assert any("no Python stacks" in note for note in pattern.notes)


def channel(name, device, value, unit="fraction"):
    times = np.arange(1, 401, dtype=np.int64) * MS
    made = Channel(name, device, unit, 1.0, 1000.0, MS)
    return Series(channel=made, start_ns=0, t_ns=times, value=np.full(400, value))


def test_hardware_says_how_busy_the_thread_was_and_what_held_it():
    events, flight, stretches = training(4)
    thread = f"{PID}/{TRAINING}"
    samples = Samples(
        series=(
            channel("cpu", thread, 0.75),
            channel("run_queue", thread, 0.2),
            channel("state", thread, float(ord("T")), "code"),
            channel("cpu_host", "cpu0", 0.5),
            channel("cpu_host", "cpu1", 0.7),
            channel("cpu", "4444/4444", 0.1),
        )
    )
    pattern = summarize(events, flight, stretches, iterations(4), samples=samples)
    assert row_named(pattern, "aten::mul_").mu == pytest.approx(0.75)
    assert row_named(pattern, "aten::mul_").resource == "cpu"
    assert pattern.host_facts == pytest.approx(
        {"run_queue_wait": 0.2, "stopped": 1.0, "cpu_count": 2.0, "host_busy": 0.6}
    )


def crowded(count=200, functions=600):
    """A worker of 200 iterations with hundreds of operators and stacks, and four kinds of collectives."""
    random = np.random.default_rng(7)
    events, flight, stretches = Events(), [], []
    clock = 0
    for _ in range(count):
        for operator in random.integers(0, 80, 12).tolist():
            length = int(random.integers(200_000, 900_000))
            events.add(f"aten::operator_{operator}", clock, clock + length)
            clock += length
        for kind in ("all_reduce", "all_gather", "broadcast", "barrier"):
            for _ in range(3):
                length = int(random.integers(100_000, 900_000))
                flight.append(
                    FlightEntry(name=f"gloo:{kind}", group="0", sequence=len(flight), created_ns=clock - 50_000)
                )
                events.note(f"gloo:{kind}", clock, clock + length, thread=GLOO)
                clock += length
        stack = tuple(
            f"function_{one} (project/module_{one % 50}.py:{one})" for one in random.integers(0, functions, 25)
        )
        stretches.append((clock, clock + 9_000_000, (SCRIPT, STEP, *stack)))
        clock += 9_000_000
    boundaries = tuple(int(one) for one in np.linspace(0, clock, count + 1))
    return events, flight, stretches, boundaries


@pytest.mark.parametrize("budget", [24_000, 6_000])
def test_a_crowded_pattern_stays_in_its_budget_and_owns_up_to_what_it_dropped(budget):
    pattern = summarize(*crowded(), settings=Settings(pattern_bytes=budget))
    assert len(encode_record(pattern)) <= budget * 5 // 4
    assert pattern.dropped_critical_s > 0
    assert is_conserved(pattern)
    assert all(record.executions + record.dropped == 600 for record in pattern.collectives)
    betas = [row.beta for row in pattern.functions]
    assert betas == sorted(betas, reverse=True)


def test_a_capture_without_a_complete_iteration_is_refused():
    events, _, _ = training(1)
    with pytest.raises(InputError, match="no complete iteration"):
        summarize(events, boundaries=(5,))
    with pytest.raises(InputError, match="do not rise"):
        summarize(events, boundaries=(5, 5))


def test_an_empty_trace_gives_an_empty_pattern_that_says_so():
    pattern = summarize(Events(), (), None, iterations(2))
    assert pattern.functions == ()
    assert pattern.idle_s == pattern.duration_s
    assert "the trace holds no events" in pattern.notes
