import pytest
from synthetic_window import TRAINING, Events

from eroica.summarize.iterations import find_iterations
from eroica.summarize.phases import find_training_thread
from eroica.trace.table import Category

ENGINE = 150


def found(events, most=200):
    return find_iterations(events.table(), most)


def steps(*lengths, first=5, gap=1):
    """Profiler steps of these lengths, each with ten operators; shorter ones than 50 have fewer."""
    events, at = Events(), 0
    for number, length in enumerate(lengths):
        events.note(f"ProfilerStep#{first + number}", at, at + length)
        for place in range(10 if length > 50 else 3):
            events.add("aten::mm", at + place * length // 10, at + place * length // 10 + length // 20)
        at += length + gap
    return events


def test_profiler_steps_end_where_the_next_one_begins():
    one = found(steps(100, 100, 110))
    assert one.edges_ns.tolist() == [0, 101, 202, 312]
    assert (one.found_by, one.first, one.steps, one.training_thread) == ("profiler steps", 5, (5, 7), TRAINING)
    assert one.notes == ()


def test_steps_cut_by_the_profiler_at_either_end_are_left_out_and_said_so():
    one = found(steps(30, 100, 100, 3))
    assert one.edges_ns.tolist() == [31, 132, 233]
    assert one.steps == (6, 7)
    assert "not recorded whole" in one.notes[0]


def test_of_steps_with_a_break_between_them_the_longest_row_counts():
    events = steps(100, 100)
    for number in range(3):
        events.note(f"ProfilerStep#{20 + number}", 1000 + number * 100, 1100 + number * 100)
    one = found(events)
    assert one.steps == (20, 22)
    assert "do not follow" in one.notes[0]


@pytest.mark.parametrize(
    ("lengths", "kept"),
    [
        ((900, 100, 110, 100), (6, 8)),
        ((900, 800, 100, 110, 100, 100), (7, 10)),
        ((180, 100, 110, 100), (5, 8)),
        ((250, 100, 110, 240), (5, 8)),
        ((900, 100), (6, 6)),
        ((900,), (5, 5)),
    ],
)
def test_warm_up_is_left_out_only_where_it_is_clear(lengths, kept):
    one = found(steps(*lengths))
    assert one.steps == kept
    assert any("warm-up" in note for note in one.notes) == (kept[0] > 5)


def training(count, optimizers=("SGD",), passes=1, half=0):
    """Iterations of 100: forward and backward passes, then the optimizers; `half` of the first is not traced."""
    events = Events()

    def add(name, start, end, **more):
        if start >= half:
            events.add(name, start, end, **more)

    for number in range(count):
        at = number * 100
        for one in range(passes):
            low = at + one * (80 // passes)
            add("aten::mm", low + 1, low + 3)
            add("aten::mm", low + 4, low + 6)
            add("autograd::engine::evaluate_function: X", low + 7, low + 9, thread=ENGINE)
        for place, name in enumerate(optimizers):
            add(f"Optimizer.step#{name}.step", at + 85 + 5 * place, at + 89 + 5 * place, category=Category.ANNOTATION)
    return events


def test_iterations_end_with_the_optimizer():
    one = found(training(4))
    assert one.edges_ns.tolist() == [1, 89, 189, 289, 389]
    assert (one.found_by, one.first, one.steps) == ("optimizer steps", 0, (-1, -1))


def test_what_came_before_the_first_optimizer_step_counts_only_if_it_is_whole():
    one = found(training(4, half=3))
    assert one.edges_ns.tolist() == [89, 189, 289, 389]
    assert one.first == 1


@pytest.mark.parametrize("has_device", [True, False])
def test_a_first_iteration_in_which_the_host_only_filled_the_queue_of_an_idle_device_is_none(has_device):
    events, at = Events(), 0
    for number in range(4):
        for place in range(10):
            events.add("aten::mm", at + place, at + place + 1)
        events.note("Optimizer.step#SGD.step", at + 10, at + 12)
        events.add("aten::item", at + 13, 100 * (number + 1))  # waits for the device
        if has_device:
            events.add("gemm", max(at, 2), 100 * (number + 1) - 1, Category.KERNEL, thread=7)
        at = 100 * (number + 1)
    one = found(events)
    assert one.edges_ns.tolist() == [12, 112, 212, 312] if has_device else [0, 12, 112, 212, 312]
    assert any("ran ahead of the device" in note for note in one.notes) == has_device


def test_without_an_optimizer_the_loader_marks_iterations():
    events = Events()
    for number in range(4):
        at = number * 100
        events.note("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, at + 10)
        for place in range(8 if number < 3 else 2):
            events.add("aten::mm", at + 10 + place * 10, at + 19 + place * 10)
    one = found(events)
    assert (one.found_by, one.edges_ns.tolist()) == ("loader", [0, 100, 200, 300])


def test_where_nothing_marks_iterations_the_whole_trace_is_one():
    events = Events()
    for place, name in enumerate("abcdefghij"):
        events.add(f"aten::{name}", place * 10, place * 10 + 9)
    one = found(events.add("Trace", -50, 500, Category.OTHER, thread=-1))
    assert (one.found_by, one.edges_ns.tolist()) == ("span", [0, 99])
    assert "all of it counts as one" in one.notes[0]


def launched(device_begins, device_length):
    """Three steps of 100 with ten launches each; kernels begin late and take long."""
    events = steps(99, 99, 99)
    for number in range(30):
        events.add("cudaLaunchKernel", number * 10 + 1, number * 10 + 2, Category.RUNTIME)
        at = device_begins + number * device_length
        events.add("gemm", at, at + device_length, Category.KERNEL, thread=7)
    return events


def test_a_window_ends_with_the_host_though_the_device_lags_a_little():
    assert found(launched(15, 10)).edges_ns[-1] == 299


def test_a_window_ends_with_the_device_where_the_host_had_run_far_ahead_of_it():
    one = found(launched(10, 30))
    assert one.edges_ns[-1] == 910
    assert "ends with the last kernel that it launched" in one.notes[-1]
    assert one.edges_ns.tolist() == [0, 310, 610, 910]


def test_the_main_thread_trains_rather_than_the_engines():
    events = Events()
    for number in range(10):
        events.add("aten::mm", number * 10, number * 10 + 5, thread=300)
        events.add("autograd::engine::evaluate_function: X", number * 10, number * 10 + 5, thread=ENGINE)
        events.add("aten::mm", number * 10, number * 10 + 4, thread=ENGINE)
    assert find_training_thread(events.table()) == 300
