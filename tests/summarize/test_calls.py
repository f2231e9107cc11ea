"""Traced Python calls, with a slow twin that looks at every moment."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_window import TRAINING, Events, capture, is_conserved, row_named

from eroica.settings import Settings
from eroica.summarize.activity import find_outline
from eroica.summarize.calls import call_frame, new_trees, read_calls
from eroica.summarize.pattern import summarize_worker
from eroica.summarize.sweep import Functions
from eroica.trace.table import Category

ENGINE_THREAD = 150
OTHER_THREAD = 160
WINDOW = (10, 70)
MAIN = "train.py(1): main"
RUN = "<built-in method run_backward of torch._C._EngineBase object at 0x7f00aa>"
GRAPH = "torch/autograd/graph.py(966): _engine_run_backward"
APPLY = "torch/autograd/function.py(560): apply"
NAMES = (MAIN, "train.py(10): step", RUN, GRAPH, APPLY, "nn.Module: Linear_0", "<built-in method item>")


def random_calls(seed):
    """Calls of three threads in 80 nanoseconds, some of them outside the window."""
    pick = random.Random(seed)
    events = Events()

    def fill(thread, low, high, depth):
        while low < high and depth < 6 and pick.random() < 0.8:
            start = pick.randrange(low, high)
            end = pick.randrange(start + 1, high + 1)
            events.add(pick.choice(NAMES), start, end, Category.PYTHON, thread)
            fill(thread, start, end, depth + 1)
            low = end

    events.add("autograd::engine::evaluate_function: X", 0, 1, thread=ENGINE_THREAD)
    for thread in (TRAINING, ENGINE_THREAD, OTHER_THREAD):
        fill(thread, 0, 80, 0)
    return events


def open_stack(events, thread, moment):
    rows = sorted(events.rows, key=lambda row: (row[1], -row[2]))
    names = [row[0] for row in rows if row[3] == Category.PYTHON and row[4] == thread and row[1] <= moment < row[2]]
    return tuple(call_frame(name) for name in names if call_frame(name))


def waits(stack):
    return bool(stack) and ("run_backward of" in stack[-1] or "_engine_run_backward" in stack[-1])


def slow_stack(events, moment):
    """Stack of the training thread, that of the engine's thread below it while it waits; and whether it is a hook."""
    stack = open_stack(events, TRAINING, moment)
    below = open_stack(events, ENGINE_THREAD, moment) if waits(stack) else ()
    is_hook = False
    for place in range(1, len(stack + below)):
        above = (stack + below)[place - 1]
        is_hook |= waits((above,)) or above.startswith("apply (torch/autograd/function.py")
    return stack + below, (is_hook and not waits(stack + below)) or bool(below)


def read(events):
    table = events.table()
    functions = Functions()
    trees = new_trees(functions)
    calls = read_calls(table, find_outline(table, TRAINING), WINDOW, trees)
    return calls, dict(enumerate(functions.keys))


@given(st.integers(0, 10**9))
def test_every_moment_has_the_stack_that_is_open(seed):
    events = random_calls(seed)
    calls, keys = read(events)
    for moment in range(*WINDOW):
        stack, is_hook = slow_stack(events, moment)
        layers = [
            (number, keys[int(layer.function[place])])
            for number, layer in enumerate((*calls.hooks, calls.others))
            for place in range(len(layer.start))
            if layer.start[place] <= moment < layer.end[place]
        ]
        assert [bool(stack)] == [bool(layers)] or not stack
        if stack:
            assert layers[0][1].stack == stack
            assert (layers[0][0] < len(calls.hooks)) == is_hook


@pytest.mark.parametrize(
    ("name", "frame"),
    [
        ("torch/nn/modules/module.py(1782): _call_impl", "_call_impl (torch/nn/modules/module.py:1782)"),
        ("/usr/lib/python3.11/site-packages/torch/optim/adam.py(5): step", "step (torch/optim/adam.py:5)"),
        ("/home/me/project/train.py(7): main", "main (project/train.py:7)"),
        ("train.py(7): <lambda>", "<lambda> (train.py:7)"),
        ("<string>(1): <module>", "<module> (<string>:1)"),
        ("<eval_with_key>.12(5): forward", "forward (<eval_with_key>:5)"),
        ("/tmp/torchinductor_me/xy/cabc.py(20): call", "call (torchinductor/compiled.py:20)"),
        ("<built-in method item of Tensor object at 0x7f12ab>", ""),
        ("<built-in function len>", ""),
        (RUN, "<built-in method run_backward of torch._C._EngineBase object>"),
        ("nn.Module: Linear_0", ""),
        ("", ""),
    ],
)
def test_frames_have_the_form_of_sampled_ones_without_what_differs_between_runs(name, frame):
    assert call_frame(name) == frame


def window(events, **facts):
    return summarize_worker(capture((0, 100, 200), **facts), events.table(), None, None, [], Settings())


def iteration(events, at):
    def call(name, start, end, thread=TRAINING):
        events.add(name, at + start, at + end, Category.PYTHON, thread)

    call(MAIN, 0, 100)
    call("torch/utils/data/dataloader.py(700): __next__", 0, 30)
    call("data.py(5): __getitem__", 5, 25)
    call("torch/_tensor.py(566): backward", 50, 90)
    call(GRAPH, 51, 89)
    call(RUN, 52, 88)
    call("train.py(30): scale", 60, 70)
    events.add("aten::mm", at + 32, at + 48)
    events.add("autograd::engine::evaluate_function: MyBackward", at + 53, at + 86)
    events.add("MyBackward", at + 54, at + 85)


def test_python_that_was_traced_takes_the_place_of_samples():
    events = Events()
    iteration(events, 0)
    iteration(events, 100)
    pattern = window(events)
    assert is_conserved(pattern)
    assert pattern.idle_s == 0
    load = row_named(pattern, "__getitem__", phase="input")
    assert (load.critical_s, load.count, load.active_iterations) == (pytest.approx(40e-9), 2, 2)
    assert load.key.stack == (
        "main (train.py:1)",
        "__next__ (torch/utils/data/dataloader.py:700)",
        "__getitem__ (data.py:5)",
    )
    assert row_named(pattern, "scale", phase="backward").critical_s == pytest.approx(20e-9)
    assert row_named(pattern, "MyBackward", kind="compute").critical_s == pytest.approx(42e-9)
    assert not any("no Python stacks" in note for note in pattern.notes)


def test_python_of_the_engines_threads_stands_below_what_waits_for_them():
    events = Events()
    iteration(events, 0)
    iteration(events, 100)
    events.add("autograd::engine::evaluate_function: X", 152, 188, thread=ENGINE_THREAD)
    events.add("hook.py(3): hook", 160, 185, Category.PYTHON, ENGINE_THREAD)
    events.add("gemm", 0, 5, Category.KERNEL, 7)
    pattern = window(events)
    row = row_named(pattern, "hook", phase="backward")
    assert row.critical_s == pytest.approx(15e-9)
    assert row.key.stack[-2:] == ("<built-in method run_backward of torch._C._EngineBase object>", "hook (hook.py:3)")
    assert row.key.thread == "training"


def test_other_threads_explain_but_are_never_critical():
    events = Events()
    iteration(events, 0)
    events.add("threading.py(971): run", 0, 200, Category.PYTHON, OTHER_THREAD)
    row = row_named(window(events), "run", thread="background")
    assert (row.beta, row.count, row.total_s) == (0.0, 1, pytest.approx(200e-9))


def test_a_million_stacks_do_not_make_a_million_rows():
    events = Events()
    for number in range(4000):
        events.add(f"train.py({number + 1}): step", number * 10, number * 10 + 10, Category.PYTHON)
    pattern = summarize_worker(capture((0, 20_000, 40_000)), events.table(), None, None, [], Settings())
    assert is_conserved(pattern)
    assert len(pattern.functions) <= 3000
    assert pattern.dropped_critical_s > 0


def test_what_is_too_deep_or_too_much_is_said(monkeypatch):
    monkeypatch.setattr("eroica.summarize.calls.MOST_FRAMES", 20)
    monkeypatch.setattr("eroica.summarize.calls._MOST_STACKS", 10)
    events = Events()
    for depth in range(50):
        events.add("train.py(3): again", 0, 6000 - depth, Category.PYTHON)
    notes = summarize_worker(capture((0, 6000)), events.table(), None, None, [], Settings()).notes
    assert any("left out: 30 Python calls below more than" in note for note in notes)
    assert any("more than 10 different Python stacks" in note for note in notes)
