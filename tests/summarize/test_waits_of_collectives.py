"""When the training thread waits for collectives that threads of the host run beside it."""

import numpy as np
import pytest

from eroica.summarize.activity import find_waits, waits_elsewhere

MS = 1_000_000
NOTHING = (np.empty(0, np.int64), np.empty(0, np.int64))


def waits(spans, active, awake=(), elsewhere=()):
    """Waits in milliseconds, None for a collective that is not waited for."""
    start, end = (np.array(side, np.int64) * MS for side in zip(*spans, strict=True))
    signs, naps, other = ((np.array(one, np.float64) * MS).astype(np.int64) for one in (active, awake, elsewhere))
    found = find_waits((start, end), signs, NOTHING, other, naps, (0, 1000 * MS))
    return [
        (low / MS, high / MS) if low < high else None
        for low, high in zip(found[0].tolist(), found[1].tolist(), strict=True)
    ]


def test_one_that_the_thread_calls_and_waits_for_counts_whole():
    calls = [(at, at + 40) for at in range(50, 1000, 100)]
    active = [moment for at in range(0, 1000, 100) for moment in (at, at + 48)] + [end for _, end in calls]
    assert waits(calls, active) == calls


def test_operators_tell_without_samples():
    """Backward goes on until 60; what ended before was hidden, and of the last one only what came after counts."""
    calls = [(10, 40), (30, 90)]
    assert waits(calls, [*range(0, 61), 91, 92]) == [(39, 40), (60, 90)]


def test_an_end_that_was_noted_late_still_is_one():
    """Who waited for a bucket may go on before the group's thread has its core again, now and then."""
    begins = range(0, 500, 100)
    calls = [(at + 10, at + (63 if at == 200 else 60)) for at in begins]
    active = [one for at in begins for one in (at, at + 8, *np.arange(at + 60, at + 64, 0.1))]
    assert waits(calls, active) == [(at + 10, at + 60) for at in begins]


def test_python_and_a_wait_in_one_function_are_told_by_what_comes_between():
    """40 ms of its own, an operator, and 20 ms in which it waits: frames do not tell lines."""
    begins = range(0, 500, 100)
    calls = [(at, at + 62) for at in begins]
    active = [one for at in begins for one in (at, at + 40, at + 42, at + 62, at + 99)]
    assert waits(calls, active) == [(at + 42, at + 62) for at in begins]


def test_the_kernel_tells_naps_from_waits():
    """One function sleeps beside the receive for 40 ms and then waits for it: only the state of the thread tells."""
    begins = range(0, 500, 100)
    calls = [(at, at + 60) for at in begins]
    active = [one for at in begins for one in (at, at + 61)]
    naps = [at + ms for at in begins for ms in range(1, 40)]
    assert waits(calls, active) == calls
    assert waits(calls, active, awake=naps) == [(at + 39, at + 60) for at in begins]


def test_who_waits_for_a_future_goes_on_before_the_end_is_noted():
    """Always, by some milliseconds with Python between operators; states of the thread show that it had waited."""
    begins = range(0, 500, 100)
    calls = [(at + 10, at + 66) for at in begins]
    active = [one for at in begins for one in (at, at + 10, at + 60, at + 61, at + 63, at + 67)]
    awake = [one for at in begins for one in (at + 60, at + 62, at + 64, at + 65)]
    assert waits(calls, active, awake=awake) == [(at + 10, at + 60) for at in begins]


def test_a_queue_that_is_waited_for_is_no_collective():
    """A futex under both: the kernel does not tell a prefetching thread's queue from a collective, stacks do."""
    begins = range(0, 500, 100)
    calls = [(at, at + 60) for at in begins]
    active = [one for at in begins for one in (at, at + 61)]
    awake = [one for at in begins for one in (at + 62, at + 63)]
    queue = [at + ms for at in begins for ms in range(0, 45, 5)]
    assert waits(calls, active, awake=awake) == calls
    found = waits(calls, active, awake=awake, elsewhere=queue)
    assert found == [(at + 40, at + 60) for at in begins]


@pytest.mark.parametrize(
    ("leaf", "elsewhere"),
    [
        ("wait (threading.py:320)", True),
        ("get (queue.py:171)", True),
        ("select (selectors.py:415)", True),
        ("_recv (multiprocessing/connection.py:395)", True),
        ("wait (project/threading.py:320)", False),
        ("get (queue_of_ours.py:3)", False),
        ("synchronize (torch/distributed/distributed_c10d.py:3)", False),
        ("wait", False),
    ],
)
def test_what_waits_in_the_standard_library_waits_for_no_collective(leaf, elsewhere):
    assert waits_elsewhere(("<module> (train.py:1)", leaf)) == elsewhere
    assert not waits_elsewhere((leaf, "step (train.py:9)"))
    assert not waits_elsewhere(())


@pytest.mark.parametrize(
    ("caller", "elsewhere"),
    [
        ("recv (torch/distributed/distributed_c10d.py:2756)", False),
        ("wait_tensor (torch/distributed/_functional_collectives.py:150)", False),
        ("_step_microbatches (torch/distributed/pipelining/schedules.py:700)", False),
        ("recv (mine/distributed_c10d.py:2)", True),
        ("save (torch/distributed/checkpoint/state_dict_saver.py:90)", True),
    ],
)
def test_a_process_group_that_is_written_in_python_waits_in_the_standard_library_for_its_collectives(caller, elsewhere):
    stack = ("<module> (train.py:1)", caller, "Pending.wait (theirs/group.py:58)", "Condition.wait (threading.py:295)")
    assert waits_elsewhere(stack) == elsewhere
