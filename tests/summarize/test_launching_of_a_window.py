"""A host that launches kernels for a device without work: told apart from Python that keeps it from launching."""

from dataclasses import replace

import numpy as np
import pytest
from synthetic_window import PID, SCRIPT, STEP, TRAINING, Events, capture, is_conserved, row_named, timeline

from eroica.model.pattern import LAUNCHING
from eroica.settings import Settings
from eroica.summarize.pattern import summarize_worker
from eroica.trace.table import Category

US, MS = 1_000, 1_000_000
ENGINE = 150
FORWARD = ("_call_impl (torch/nn/modules/module.py:1770)", "forward (project/model.py:60)")
TOKENIZE = "tokenize (project/text.py:5)"
COUNT = 5


def launch(events, at_us, thread=TRAINING, took_us=8, stream=7):
    """A call of the driver, and its kernel 5 microseconds later, for 6."""
    events.add("cudaLaunchKernel", at_us * US, (at_us + took_us) * US, Category.RUNTIME, thread)
    events.add("gemm", (at_us + took_us + 5) * US, (at_us + took_us + 11) * US, Category.KERNEL, stream)


def window(pause_ms=0, engine=False, stacks=True):
    """Iterations that launch a kernel every 40 microseconds for 10 ms, then tokenize."""
    events, stretches, length_ms = Events(), [], 10 + pause_ms
    for number in range(COUNT):
        at = number * length_ms * 1000
        events.note("DistributedDataParallel.forward", at * US, (at + 10_000) * US)
        for offset in range(0, 10_000, 40):
            launch(events, at + offset, ENGINE if engine else TRAINING)
        if engine:
            events.add("autograd::engine::evaluate_function: X", at * US, (at + 10_000) * US, thread=ENGINE)
        stretches.append((at * US, (at + 10_000) * US, (SCRIPT, STEP, *FORWARD)))
        stretches.append(((at + 10_000) * US, (at + 10_000) * US + pause_ms * MS, (SCRIPT, STEP, TOKENIZE)))
    sampled = timeline({(PID, TRAINING): [one for one in stretches if one[0] < one[1]]}, rate_hz=1000.0)
    boundaries = tuple(number * length_ms * MS for number in range(COUNT + 1))
    found = summarize_worker(
        capture(boundaries), events.table(), sampled if stacks else None, None, (), Settings(), recorded=not stacks
    )
    assert is_conserved(found)
    return found


def test_gaps_between_launches_are_launching_and_no_python():
    pattern = window()
    row = row_named(pattern, LAUNCHING, kind="other", phase="forward")
    kernels = row_named(pattern, "gemm", kind="compute")
    assert row.count == COUNT * 250 and kernels.count == COUNT * 250
    assert row.critical_s + kernels.critical_s == pytest.approx(COUNT * 10e-3, rel=0.01)
    assert kernels.critical_s == pytest.approx(COUNT * 250 * 6e-6, rel=0.01)
    assert sum(one.critical_s for one in pattern.functions if one.key.kind == "python") < 1e-3


def test_launches_of_the_engines_threads_are_the_backward_pass():
    row = row_named(window(engine=True), LAUNCHING)
    assert (row.key.phase, row.key.thread, row.count) == ("backward", "training", COUNT * 250)


def test_a_host_that_is_far_ahead_of_its_device_does_not_hold_it_up():
    events = Events()
    for offset in range(0, 10_000, 40):
        events.add("cudaLaunchKernel", offset * US, (offset + 8) * US, Category.RUNTIME)
    events.add("long_gemm", 20 * US, 20 * MS, Category.KERNEL, 7)
    sampled = timeline({(PID, TRAINING): [(0, 10 * MS, (SCRIPT, STEP, *FORWARD))]}, rate_hz=1000.0)
    pattern = summarize_worker(capture((0, 10 * MS, 20 * MS)), events.table(), sampled, None, (), Settings())
    assert row_named(pattern, LAUNCHING).critical_s <= 20e-6
    assert row_named(pattern, LAUNCHING).count == 250


def linked(table):
    """The k-th call of the driver launched the k-th kernel."""
    link = np.full(len(table), -1, dtype=np.int64)
    for wanted in ("cudaLaunchKernel", "gemm"):
        rows = np.flatnonzero([table.name_of(row) == wanted for row in range(len(table))])
        link[rows] = np.arange(len(rows))
    return replace(table, link=link)


def test_work_of_a_device_belongs_to_the_part_of_the_iteration_that_launched_it():
    """It runs milliseconds later: all kernels of this window run in its last third."""
    events = Events().note("DistributedDataParallel.forward", 0, 2 * MS).note("Optimizer.step#SGD.step", 4 * MS, 5 * MS)
    events.add("autograd::engine::evaluate_function: X", 2 * MS, 4 * MS, thread=ENGINE)
    events.note("enumerate(DataLoader)#X.__next__", 5 * MS, 6 * MS)
    calls = [(0.5, TRAINING), (1.0, TRAINING), (2.5, ENGINE), (3.0, ENGINE), (3.5, ENGINE), (4.5, TRAINING)]
    for number, (at, thread) in enumerate([*calls, (5.5, TRAINING), (6.5, TRAINING)]):
        events.add("cudaLaunchKernel", round(at * MS), round(at * MS) + 5 * US, Category.RUNTIME, thread)
        events.add("gemm", (8 + number) * MS, (8 + number) * MS + 500 * US, Category.KERNEL, 7)
    sampled = timeline({(PID, TRAINING): [(0, 8 * MS, (SCRIPT, STEP))]}, rate_hz=1000.0)
    pattern = summarize_worker(capture((0, 20 * MS)), linked(events.table()), sampled, None, (), Settings())
    counts = {row.key.phase: row.count for row in pattern.functions if row.key.name == "gemm"}
    assert counts == {"forward": 2, "backward": 3, "optimizer": 1, "other": 2}
    unlinked = summarize_worker(capture((0, 20 * MS)), events.table(), sampled, None, (), Settings())
    assert row_named(unlinked, "gemm", phase="other").count == 8


def test_python_tells_what_a_device_does_for_it_long_after():
    events = Events()
    for number, at in enumerate((1, 2, 3, 6, 7)):
        events.add("cudaLaunchKernel", at * MS, at * MS + 5 * US, Category.RUNTIME)
        events.add("gemm", (9 + 2 * number) * MS, (10 + 2 * number) * MS, Category.KERNEL, 7)
    events.add("cudaMalloc", 7 * MS + 100 * US, 7 * MS + 400 * US, Category.RUNTIME)
    stretches = [(0, 4 * MS, (SCRIPT, STEP, *FORWARD)), (4 * MS, 8 * MS, (SCRIPT, STEP, TOKENIZE))]
    sampled = timeline({(PID, TRAINING): stretches}, rate_hz=1000.0)
    pattern = summarize_worker(capture((0, 17 * MS)), linked(events.table()), sampled, None, (), Settings())
    assert row_named(pattern, "forward").device_s == pytest.approx(3e-3)
    assert row_named(pattern, "tokenize").device_s == pytest.approx(1.3e-3)  # the last kernel begins after the window
    unlinked = summarize_worker(capture((0, 17 * MS)), events.table(), sampled, None, (), Settings())
    assert sum(row.device_s for row in unlinked.functions) == 0
