import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from eroica.summarize.utilization import critical_duration

values = st.lists(st.sampled_from([0.0, 0.0, 0.0, 0.25, 0.5, 1.0]), max_size=14)


def longest_gap(part):
    longest = run = 0
    for value in part:
        run = run + 1 if value == 0 else 0
        longest = max(longest, run)
    return longest


def slow_twin(utilization):
    """Algorithm 1 by trying every interval: the shortest longest gap, without zeros at the ends, as long as it can."""
    total = sum(utilization)
    if total == 0:
        return None
    best = None
    for first in range(len(utilization)):
        for last in range(first + 1, len(utilization) + 1):
            part = utilization[first:last]
            if part[0] == 0 or part[-1] == 0 or sum(part) < 0.8 * total * (1 - 1e-12):
                continue
            key = (longest_gap(part), -(last - first))
            if best is None or key < best[0]:
                best = (key, (first, last))
    return best[1]


@given(values)
def test_the_interval_is_that_of_the_slow_twin(utilization):
    assert critical_duration(np.array(utilization)) == slow_twin(utilization)


def test_waiting_before_the_others_arrive_is_left_out():
    early = [0.1] + [0.0] * 50 + [0.9] * 20
    assert critical_duration(np.array(early)) == (51, 71)


def test_short_gaps_stay_inside():
    assert critical_duration(np.array([0.5, 0.0, 0.5, 0.0, 0.5])) == (0, 5)
