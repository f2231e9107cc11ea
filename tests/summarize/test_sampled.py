import numpy as np
from synthetic_window import BACKWARD, HOOK, LOADER, PID, SCRIPT, STEP, TRAINING, timeline

from eroica.model.window import ClockPair
from eroica.summarize.clock import WallClock
from eroica.summarize.sampled import (
    ENGINE,
    PLAIN,
    StackReader,
    ThreadSamples,
    spread_samples,
    stack_function,
    training_samples,
)
from eroica.summarize.sampled import (
    HOOK as HOOK_KIND,
)
from eroica.summarize.sweep import Functions, Layer, empty_layer

CLOCK = WallClock([ClockPair(realtime_ns=0, monotonic_ns=0)])
MS = 1_000_000
NOTHING = (np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))


def samples_at(*pairs):
    time = np.array([moment * MS for moment, _ in pairs], dtype=np.int64)
    number = np.array([number for _, number in pairs], dtype=np.int32)
    return ThreadSamples(time, number, np.zeros(len(pairs), dtype=np.int8))


def test_a_sample_stands_for_half_a_period_to_both_sides():
    cells = spread_samples(samples_at((15, 1), (25, 2), (35, 1)), NOTHING, empty_layer(), (10 * MS, 40 * MS), 100.0)
    assert cells.others.start.tolist() == [10 * MS, 20 * MS, 30 * MS]
    assert cells.others.end.tolist() == [20 * MS, 30 * MS, 40 * MS]
    assert cells.others.function.tolist() == [1, 2, 1]


def test_python_shorter_than_a_period_is_seen_at_its_true_share():
    """A 3 ms function in each 20 ms, operators in 12 ms of it: on average its samples stand for 3 of 20."""
    period, estimates = 20 * MS, []
    busy = (np.arange(0, 4000, 20) * MS, (np.arange(0, 4000, 20) + 12) * MS)
    for shift in range(0, 100, 7):
        time = (np.arange(0, 4000 * MS, 9_700_000) + shift * 100_000).astype(np.int64)
        inside_function = (time % period >= 12 * MS) & (time % period < 15 * MS)
        samples = ThreadSamples(time, np.where(inside_function, 1, 2).astype(np.int32), np.zeros(len(time), np.int8))
        cells = spread_samples(samples, busy, empty_layer(), (0, 4000 * MS), 103.0)
        free = np.zeros(4000 * 10, dtype=bool)
        for low, high, function in zip(cells.others.start, cells.others.end, cells.others.function, strict=True):
            if function == 1:
                free[low // 100_000 : high // 100_000] = True
        estimates.append(free.reshape(-1, 200)[:, 120:].sum() / free.size)
    assert abs(np.mean(estimates) - 0.15) < 0.015


def wrappers_and_hooks(hooked, engine):
    """Fifty runs of a wrapper, 4 ms of each 20; samples in `hooked` of them show a hook, in `engine` of them none."""
    start = np.arange(0, 1000, 20) * MS
    wrappers = Layer(start, start + 4 * MS, np.full(50, 9, np.int32), np.full(50, -1, np.int32))
    pairs = sorted([(20 * run + 2, 1, HOOK_KIND) for run in hooked] + [(20 * run + 2, 2, ENGINE) for run in engine])
    samples = ThreadSamples(
        np.array([moment * MS for moment, _, _ in pairs], dtype=np.int64),
        np.array([function for _, function, _ in pairs], dtype=np.int32),
        np.array([kind for _, _, kind in pairs], dtype=np.int8),
    )
    cells = spread_samples(samples, NOTHING, wrappers, (0, 1000 * MS), 100.0)
    return int((cells.hooks.end - cells.hooks.start).sum()) / MS, cells


def test_a_hook_has_its_wrappers_time_also_where_no_sample_hit_it():
    hooks_ms, cells = wrappers_and_hooks(hooked=range(0, 50, 4), engine=())
    assert hooks_ms == 200
    assert set(cells.hooks.function.tolist()) == {1}


def test_most_samples_decide_and_fewer_share():
    assert wrappers_and_hooks(hooked=range(0, 50, 4), engine=range(1, 50, 10))[0] == 200
    assert 20 < wrappers_and_hooks(hooked=range(0, 50, 10), engine=range(5, 50, 4))[0] < 100
    assert wrappers_and_hooks(hooked=(), engine=range(0, 50, 4))[0] == 0


def test_a_leaf_that_waits_in_the_engine_and_one_below_it_are_told_apart():
    reader = StackReader(Functions())
    apply = "Function.apply (torch/autograd/function.py:560)"
    kinds = [
        reader.identify(stack, "training")[1]
        for stack in [
            (SCRIPT, STEP),
            (SCRIPT, *BACKWARD),
            (SCRIPT, *BACKWARD, HOOK),
            (SCRIPT, apply, HOOK),
            (SCRIPT, apply),
        ]
    ]
    assert kinds == [PLAIN, ENGINE, HOOK_KIND, HOOK_KIND, PLAIN]


def test_python_on_the_engines_thread_stands_below_the_leaf_that_waits():
    stacks = timeline(
        {
            (PID, TRAINING): [(0, 50 * MS, (SCRIPT, *BACKWARD)), (50 * MS, 90 * MS, (SCRIPT, STEP))],
            (PID, 150): [(20 * MS, 40 * MS, (HOOK,))],
        }
    )
    functions = Functions()
    samples = training_samples(stacks, PID, TRAINING, (150,), CLOCK, StackReader(functions))
    names = [functions.keys[number].name for number in samples.function]
    assert names == ["_engine_run_backward"] * 2 + ["scale"] * 2 + ["_engine_run_backward"] + ["step"] * 4
    assert functions.keys[samples.function[2]].stack == (SCRIPT, *BACKWARD, HOOK)


def test_a_stack_that_was_read_while_it_changed_is_dropped():
    good = [(turn * 10 * MS, (turn + 1) * 10 * MS, (SCRIPT, STEP)) for turn in range(20)]
    good[7] = (70 * MS, 80 * MS, (STEP, HOOK))
    samples = training_samples(timeline({(PID, TRAINING): good}), PID, TRAINING, (), CLOCK, StackReader(Functions()))
    assert len(samples.time_ns) == 19


CHILD = (
    "BaseProcess._bootstrap (multiprocessing/process.py:290)",
    "_worker_loop (torch/utils/data/_utils/worker.py:244)",
    "Data.__getitem__ (project/data.py:19)",
)


def test_a_loader_childs_stack_begins_where_the_child_began():
    key = stack_function((SCRIPT, STEP, *LOADER, "Popen._launch (multiprocessing/popen_fork.py:62)", *CHILD), "loader")
    assert key.stack == CHILD
    assert (key.name, key.phase, key.thread) == ("Data.__getitem__", "input", "loader")


def test_frames_of_our_own_hooks_are_left_out_unless_they_are_the_leaf():
    own = "LoaderProxy.__next__ (eroica/worker/hooks.py:40)"
    assert stack_function((SCRIPT, own, *LOADER), "training").stack == (SCRIPT, *LOADER)
    assert stack_function((SCRIPT, own), "training").stack == (SCRIPT, own)
