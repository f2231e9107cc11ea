"""When the training thread waits for collectives that threads of the host run beside it."""

import itertools
import random

import numpy as np
import pytest

from eroica.summarize.sampled import ThreadSamples
from eroica.summarize.waits import Witness, find_waits, waits_elsewhere

MS = 1_000_000
RATE_HZ = 200.0
PERIOD = 5 * MS
WINDOW = (0, 1000 * MS)
TRAINING, ALL_REDUCE, DEVICE, OTHER = range(4)
NOTHING = (np.empty(0, np.int64), np.empty(0, np.int64))


def thread(*parts):
    """What the training thread did: (until when, function), sampled every period; moments between two are told by no
    event."""
    time, function, begin = [], [], 0
    for until, number in parts:
        moments = np.arange(-(-begin // PERIOD) * PERIOD, until * MS, PERIOD)
        time += moments.tolist()
        function += [number] * len(moments)
        begin = until * MS
    return ThreadSamples(np.array(time, np.int64), np.array(function, np.int32), np.zeros(len(time), np.int8))


def waits(spans, samples, active=(), busy=NOTHING, awake=(), elsewhere=()):
    """Waits in milliseconds, None for a collective that is not waited for."""
    start, end = (np.array(side, np.int64) * MS for side in zip(*spans, strict=True))
    signs, naps, other = ((np.array(one, np.float64) * MS).astype(np.int64) for one in (active, awake, elsewhere))
    found = find_waits((start, end), signs, busy, Witness(samples, RATE_HZ, naps, other), WINDOW)
    return [
        (low / MS, high / MS) if low < high else None
        for low, high in zip(found[0].tolist(), found[1].tolist(), strict=True)
    ]


def test_one_that_the_thread_calls_and_waits_for_counts_whole():
    calls = [(at, at + 40) for at in range(50, 1000, 100)]
    parts = [one for at in range(50, 1000, 100) for one in ((at, TRAINING), (at + 40, ALL_REDUCE))]
    active = [moment for at in range(0, 1000, 100) for moment in (at, at + 48)] + [end for _, end in calls]
    assert waits(calls, thread(*parts), active) == calls


def test_one_that_ends_while_the_thread_is_elsewhere_costs_nothing():
    """A device is waited for, for 80 of 100 ms, while an all-reduce of 50 ms runs beside it."""
    calls = [(at, at + 50) for at in range(0, 1000, 100)]
    parts = [one for at in range(0, 1000, 100) for one in ((at + 80, DEVICE), (at + 100, TRAINING))]
    active = [moment for at in range(0, 1000, 100) for moment in (at, at + 80, at + 99)]
    assert waits(calls, thread(*parts), active) == [None] * 10


def test_of_one_that_lasts_longer_than_the_work_beside_it_the_rest_counts():
    calls = [(at, at + 70) for at in range(0, 1000, 100)]
    parts = [one for at in range(0, 1000, 100) for one in ((at + 40, DEVICE), (at + 70, ALL_REDUCE), (at + 100, OTHER))]
    active = [moment for at in range(0, 1000, 100) for moment in (at, at + 71)]
    for (low, high), begin in zip(waits(calls, thread(*parts), active), range(0, 1000, 100), strict=True):
        assert (low, high) == (pytest.approx(begin + 40, abs=2.6), begin + 70)


def test_operators_tell_without_samples():
    """Backward goes on until 60; what ended before was hidden, and of the last one only what came after counts."""
    calls = [(10, 40), (30, 90)]
    assert waits(calls, thread(), active=[*range(0, 61), 91, 92]) == [(39, 40), (60, 90)]


def test_an_end_that_was_noted_late_still_is_one():
    """Who waited for a bucket may go on before the group's thread has its core again, now and then."""
    begins = range(0, 500, 100)
    calls = [(at + 10, at + (63 if at == 200 else 60)) for at in begins]
    active = [one for at in begins for one in (at, at + 8, *np.arange(at + 60, at + 64, 0.1))]
    parts = [one for at in begins for one in ((at + 60, ALL_REDUCE), (at + 100, OTHER))]
    assert waits(calls, thread(*parts), active) == [(at + 10, at + 60) for at in begins]


def test_what_always_ends_soon_after_the_work_beside_it_was_not_waited_for():
    begins = range(0, 500, 100)
    calls = [(at + 10, at + 63) for at in begins]
    active = [one for at in begins for one in (at, at + 8, *np.arange(at + 60, at + 64, 0.1))]
    parts = [one for at in begins for one in ((at + 60, DEVICE), (at + 100, OTHER))]
    assert waits(calls, thread(*parts), active) == [None] * 5


def test_python_and_a_wait_in_one_function_are_told_by_what_comes_between():
    """40 ms of its own, an operator, and 20 ms in which it waits: frames do not tell lines."""
    begins = range(0, 500, 100)
    calls = [(at, at + 62) for at in begins]
    active = [one for at in begins for one in (at, at + 40, at + 42, at + 62, at + 99)]
    assert waits(calls, thread((500, TRAINING)), active) == [(at + 42, at + 62) for at in begins]


def test_the_kernel_tells_naps_from_waits():
    """One function sleeps beside the receive for 40 ms and then waits for it: only the state of the thread tells."""
    begins = range(0, 500, 100)
    calls = [(at, at + 60) for at in begins]
    active = [one for at in begins for one in (at, at + 61)]
    naps = [at + ms for at in begins for ms in range(1, 40)]
    assert waits(calls, thread((500, TRAINING)), active) == calls
    assert waits(calls, thread((500, TRAINING)), active, awake=naps) == [(at + 39, at + 60) for at in begins]


def test_who_waits_for_a_future_goes_on_before_the_end_is_noted():
    """Always, by some milliseconds with Python between operators; states of the thread show that it had waited."""
    begins = range(0, 500, 100)
    calls = [(at + 10, at + 66) for at in begins]
    active = [one for at in begins for one in (at, at + 10, at + 60, at + 61, at + 63, at + 67)]
    parts = [one for at in begins for one in ((at + 60, ALL_REDUCE), (at + 100, OTHER))]
    awake = [one for at in begins for one in (at + 60, at + 62, at + 64, at + 65)]
    assert waits(calls, thread(*parts), active, awake=awake) == [(at + 10, at + 60) for at in begins]


def test_a_queue_that_is_waited_for_is_no_collective():
    """A futex under both: the kernel does not tell a prefetching thread's queue from a collective, stacks do."""
    begins = range(0, 500, 100)
    calls = [(at, at + 60) for at in begins]
    active = [one for at in begins for one in (at, at + 61)]
    awake = [one for at in begins for one in (at + 62, at + 63)]
    queue = [at + ms for at in begins for ms in range(0, 45, 5)]
    assert waits(calls, thread((500, TRAINING)), active, awake=awake) == calls
    found = waits(calls, thread((500, TRAINING)), active, awake=awake, elsewhere=queue)
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


# --- against a slow twin ---


def slow_waits(spans, active, awake, busy, samples, rate_hz, window):
    """The same, one collective after the other, over lists."""
    period = 1e9 / rate_hz
    cuts = sorted({*window, *(one for one in (*active, *awake) if window[0] < one < window[1])})
    stretches = list(itertools.pairwise(cuts))

    def is_busy(stretch):
        return any(low <= stretch[0] + (stretch[1] - stretch[0]) // 2 < high for low, high in busy)

    def shared(span, stretch):
        return min(span[1], stretch[1]) - max(span[0], stretch[0])

    def ending(span):
        own = next(one for one in stretches if one[0] < span[1] <= one[1])
        free = [one for one in stretches if one[1] - one[0] > 200_000 and not is_busy(one) and one < own]
        if awake:
            best, most = own, 0 if is_busy(own) else 4 * max(0, shared(span, own))
            for one in free[-16:][::-1]:
                if one[1] >= span[1] - 10 * MS and shared(span, one) > max(most, 200_000):
                    best, most = one, shared(span, one)
            return best, best != own
        if not free or not (is_busy(own) or shared(span, own) <= 200_000):
            return own, False
        is_late = shared(span, free[-1]) > 200_000 and free[-1][1] >= span[1] - 10 * MS
        return (free[-1], True) if is_late else (own, False)

    runs = []  # function, stretch, moments
    for time, number in samples:
        if window[0] <= time < window[1]:
            stretch = next(one for one in stretches if one[0] <= time < one[1])
            if not runs or runs[-1][:2] != (number, stretch):
                runs.append((number, stretch, []))
            runs[-1][2].append(time)
    waits = []  # start, end, run that was there last, whether it was over, whether it ended before the end was noted
    for span in spans:
        stretch, is_late = ending(span)
        start = max(span[0], stretch[0])
        end = max(start, min(span[1], stretch[1]))
        before = [
            place
            for place, one in enumerate(runs)
            if start <= one[2][0] < end or start <= one[2][-1] < end or any(start <= time < end for time in one[2])
        ]
        tells = before and not awake and runs[before[-1]][1][1] - runs[before[-1]][1][0] >= period
        last = before[-1] if tells else None
        over = last is not None and not is_late and (stretch[1] - end <= MS or runs[last][2][-1] <= end + period / 2)
        waits.append((start, end, last, over, is_late, before))
    reached = {last for _, _, last, over, _, _ in waits if over}
    passed = {place for _, _, last, over, _, before in waits if over for place in before if place != last} - reached
    waits = [
        (start, end, last, over or (last in reached and not is_late)) for start, end, last, over, is_late, _ in waits
    ]

    def samples_in(number, places):
        return sum(len(runs[place][2]) for place in places if runs[place][0] == number)

    found = []
    for start, end, last, over in waits:
        since = start
        if last is not None:
            number, stretch, times = runs[last]
            verdicts = [one[3] for one in waits if one[2] is not None and runs[one[2]][0] == number]
            if not over and sum(verdicts) < len(verdicts) / 2:
                since = end
            elif samples_in(number, passed) <= 0.2 * (samples_in(number, passed) + samples_in(number, reached)):
                if last and runs[last - 1][1] == stretch:
                    gap = times[0] - runs[last - 1][2][-1]
                    since = max(start, runs[last - 1][2][-1] + gap // 2)
            else:
                at = max(time for time in times if time < end)
                following = runs[last + 1][2][0] if last + 1 < len(runs) else at + round(period)
                since = at + (following - at) // 2 if at == times[-1] else end
        found.append((min(since, end), end))
    return found


@pytest.mark.parametrize("seed", range(100))
def test_against_the_slow_twin(seed):
    pick = random.Random(seed)
    window = (0, pick.choice((50, 200, 400)) * MS)
    step = pick.choice((50_000, MS, 5 * MS))

    def moment():
        return pick.randrange(1, window[1] // step) * step

    spans = sorted(tuple(sorted((moment(), moment() + step))) for _ in range(pick.randrange(1, 12)))
    spans = [(low, min(high, window[1])) for low, high in spans if low < min(high, window[1])] or [(0, window[1])]
    active = [moment() for _ in range(pick.choice((0, 3, 30, 200)))]
    awake = [moment() for _ in range(pick.choice((0, 0, 5, 50)))]
    elsewhere = [moment() for _ in range(pick.choice((0, 0, 4)))]
    busy = [(active[0], active[0] + step)] if active and pick.random() < 0.5 else []
    times = sorted({moment() for _ in range(pick.choice((0, 2, 20, 80)))})
    samples = [(time, pick.choice((0, 0, 0, 1, 2))) for time in times]
    arrays = ThreadSamples(
        np.array(times, np.int64), np.array([one for _, one in samples], np.int32), np.zeros(len(times), np.int8)
    )
    sides = [np.array([one[side] for one in busy], np.int64) for side in (0, 1)]
    found = find_waits(
        tuple(np.array(side, np.int64) for side in zip(*spans, strict=True)),
        np.array(active, np.int64),
        (sides[0], sides[1]),
        Witness(arrays, RATE_HZ, np.array(awake, np.int64), np.array(elsewhere, np.int64)),
        window,
    )
    wanted = slow_waits(spans, [*active, *elsewhere], awake, busy, samples, RATE_HZ, window)
    assert list(zip(found[0].tolist(), found[1].tolist(), strict=True)) == wanted
    assert all(low <= begin <= end <= high for (low, high), (begin, end) in zip(spans, wanted, strict=True))
