"""A matrix is read as cell, row and column."""

from itertools import permutations

import pytest

from eroica_c4d.matrix import build_matrix, read_places
from eroica_c4d.records import Place
from eroica_c4d.stretch import CellReading, Stretch

HOSTS = ("a", "b", "c", "d")
ALL = frozenset(permutations(HOSTS, 2))
RING = frozenset({("a", "b"), ("b", "c"), ("c", "d"), ("d", "a")})


def test_one_hot_cell_is_a_connection() -> None:
    assert read_places({("b", "c"): 0.1}, ALL) == (Place(kind="connection", hosts=("b", "c")),)


@pytest.mark.parametrize(("kind", "end"), [("sending", 0), ("receiving", 1)])
def test_a_hot_row_is_a_hosts_sending_and_a_hot_column_its_receiving(kind: str, end: int) -> None:
    hot = {cell: 0.1 + 0.01 * number for number, cell in enumerate(sorted(ALL)) if cell[end] == "c"}
    assert read_places(hot, ALL) == (Place(kind=kind, hosts=("c",)),)  # type: ignore[arg-type]


def test_late_acknowledgements_do_not_make_a_slow_direction_a_slow_link() -> None:
    hot = {cell: 0.1 if cell[0] == "c" else 0.03 for cell in ALL if "c" in cell}
    assert read_places(hot, ALL) == (Place(kind="sending", hosts=("c",)),)


@pytest.mark.parametrize(("prompt", "kind"), [(True, "receiving"), (False, "link")])
def test_who_sends_all_at_once_only_waits_for_acknowledgements(prompt: bool, kind: str) -> None:
    hot = {("b", "c"): 0.058, ("c", "d"): 0.04}  # a ring: what c receives is slow, and so are acknowledgements for c
    places = read_places(hot, RING, RING if prompt else RING - {("c", "d")})
    assert places == (Place(kind=kind, hosts=("c",)),)  # type: ignore[arg-type]


def test_in_a_ring_the_place_says_what_else_it_may_be() -> None:
    (place,) = read_places({("b", "c"): 0.1}, RING)
    assert (place.kind, place.hosts) == ("connection", ("b", "c"))
    assert len(place.instead) == 2 and "b sends" in place.instead[0] and "c receives" in place.instead[1]


def test_two_troubles_are_two_places() -> None:
    hot = {("a", "b"): 0.2, **{cell: 0.1 for cell in ALL if cell[1] == "d"}}
    assert [place.kind for place in read_places(hot, ALL)] == ["connection", "receiving"]


def test_the_record_has_a_row_for_each_sender_and_empty_cells_without_traffic() -> None:
    reading = CellReading(delay_s=0.01, bytes_per_s=1e6, busy=0.2, held=0.0)
    stretch = Stretch(seconds=5, iteration_s=0.1, cells={("a", "b"): reading})
    matrix = build_matrix(stretch, {("b", "a"): reading})
    assert matrix is not None
    assert matrix.hosts == ("a", "b")
    assert matrix.delay_s == ((None, 0.01), (None, None))
    assert matrix.usual_s == ((None, None), (0.01, None))
    assert build_matrix(Stretch(seconds=5, iteration_s=0.1), {}) is None


def test_the_way_back_of_a_slow_connection_is_no_second_place() -> None:
    (place,) = read_places({("b", "c"): 0.1, ("c", "b"): 0.04}, ALL)
    assert (place.hosts, place.instead) == (("b", "c"), ())
    (place,) = read_places({("b", "c"): 0.1, ("c", "b"): 0.09}, ALL)
    assert place.hosts == ("b", "c") and "way back" in place.instead[0]


@pytest.mark.parametrize(("hot", "kind"), [((0.1, 0.03), "receiving"), ((0.03, 0.1), "sending")])
def test_in_a_ring_the_other_direction_of_a_host_tells_that_it_is_the_host(hot: tuple[float, float], kind: str) -> None:
    (place,) = read_places({("b", "c"): hot[0], ("c", "d"): hot[1]}, RING)
    assert (place.kind, place.hosts, place.instead) == (kind, ("c",), ())


def test_a_link_is_hot_as_a_whole_though_small_messages_wait_less_long() -> None:
    """Its ring of gradients and its messages of a pipeline, all twenty times as long as usual; other ways are quiet."""
    slow = {("b", "c"): 0.73, ("c", "d"): 0.73, ("a", "c"): 0.05, ("c", "a"): 0.05}
    used = frozenset({*slow, ("a", "b"), ("b", "a"), ("d", "a"), ("e", "b"), ("d", "e")})
    assert len(read_places(slow, used)) > 1
    (place,) = read_places(slow, used, factors=dict.fromkeys(slow, 20.0))
    assert (place.kind, place.hosts) == ("link", ("c",))
