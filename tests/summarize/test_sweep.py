import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from eroica.summarize.sweep import (
    Layer,
    first_come,
    inside,
    nest,
    paint,
    unite,
)

LENGTH = 40
intervals = st.lists(
    st.tuples(st.integers(0, LENGTH - 1), st.integers(1, LENGTH)).map(lambda pair: (pair[0], min(sum(pair), LENGTH))),
    max_size=14,
)


@st.composite
def nested_intervals(draw):
    """Properly nested intervals, as calls on one thread are, with equal ends among them."""
    found = []

    def fill(low, high, depth):
        while low < high and depth < 5 and draw(st.booleans()):
            start = draw(st.integers(low, high - 1))
            end = draw(st.integers(start + 1, high))
            found.append((start, end))
            fill(start, end, depth + 1)
            low = end

    fill(0, LENGTH, 0)
    return sorted(found, key=lambda pair: (pair[0], -pair[1]))


def arrays(pairs):
    table = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def painted_by(segments):
    """Owner of each moment, -1 where nobody; fails if two segments overlap or are out of order."""
    owner = [-1] * LENGTH
    last = 0
    for start, end, number in zip(*(part.tolist() for part in segments), strict=True):
        assert last <= start < end
        last = end
        for moment in range(start, end):
            owner[moment] = number
    return owner


@given(nested_intervals())
def test_the_innermost_interval_has_each_moment(pairs):
    def innermost(moment):
        around = [number for number, (start, end) in enumerate(pairs) if start <= moment < end]
        return around[-1] if around else -1

    assert painted_by(nest(*arrays(pairs)).leaves()) == [innermost(moment) for moment in range(LENGTH)]


@given(intervals)
@example([(0, 9), (1, 5), (4, 7), (5, 10), (6, 8), (6, 9), (8, 10), (9, 12)])
def test_intervals_that_cross_are_cut_where_the_outer_one_ends(pairs):
    pairs = sorted(set(pairs), key=lambda pair: (pair[0], -pair[1]))
    cut, stack = [], []
    for start, end in pairs:
        stack = [one for one in stack if one > start]
        cut.append((start, min([end, *stack])))
        stack.append(cut[-1][1])

    def innermost(moment):
        around = [number for number, (start, end) in enumerate(cut) if start <= moment < end]
        return around[-1] if around else -1

    assert painted_by(nest(*arrays(pairs)).leaves()) == [innermost(moment) for moment in range(LENGTH)]


@given(intervals)
def test_of_equals_the_first_to_start_has_the_moment(pairs):
    pairs = sorted(pairs)

    def owner(moment):
        return next((number for number, (start, end) in enumerate(pairs) if start <= moment < end), -1)

    assert painted_by(first_come(*arrays(pairs))) == [owner(moment) for moment in range(LENGTH)]


@given(intervals)
def test_a_union_covers_what_any_interval_covers_in_fewest_pieces(pairs):
    start, end = unite(*arrays(pairs))
    covered = {moment for low, high in pairs for moment in range(low, high)}
    assert {moment for low, high in zip(start, end, strict=True) for moment in range(low, high)} == covered
    assert np.all(start[1:] > end[:-1])
    assert inside(np.arange(LENGTH), start, end).tolist() == [moment in covered for moment in range(LENGTH)]


@given(st.lists(intervals, max_size=4), st.sets(st.integers(1, LENGTH - 1), max_size=5))
def test_painting_gives_each_moment_to_the_first_layer_that_has_it(layers, cuts):
    made, owners = [], []
    for level, pairs in enumerate(layers):
        start, end, number = first_come(*arrays(sorted(pairs)))
        made.append(Layer(start, end, (number + 100 * level).astype(np.int32), number.astype(np.int32)))
        owners.append(painted_by((start, end, number + 100 * level)))
    edges = np.array([0, *sorted(cuts), LENGTH])
    painted = paint(made, edges)
    expected = [next((owner[moment] for owner in owners if owner[moment] >= 0), -1) for moment in range(LENGTH)]
    assert painted_by((painted.start, painted.end, painted.function)) == expected
    assert int((painted.end - painted.start).sum()) == LENGTH
    assert set(edges[:-1].tolist()) <= set(painted.start.tolist())
