"""The picture of ways between hosts, and the series of them."""

from __future__ import annotations

import msgspec

from eroica.model.communication import Communication, DelayMatrix, Place
from eroica.model.verdict import Coverage, IterationTimes, Verdict
from eroica.views.material import Material
from eroica.views.metrics import MOST_WAYS, Scrape, exposition
from eroica.views.pictures import delays
from eroica.wire.messages import JobStatus


def matrix(count: int = 3, hot: tuple[int, int] = (0, 1)) -> DelayMatrix:
    hosts = tuple(f"node{number}" for number in range(count))

    def rows(value: float, high: float, empty: float | None) -> tuple[tuple[float | None, ...], ...]:
        return tuple(
            tuple(empty if i == j else high if (i, j) == hot else value for j in range(count)) for i in range(count)
        )

    return DelayMatrix(
        hosts=hosts,
        delay_s=rows(0.001, 0.05, None),
        bytes_per_s=rows(1e6, 1e6, 0.0),  # type: ignore[arg-type]
        busy=rows(0.1, 0.6, 0.0),  # type: ignore[arg-type]
        held=rows(0.0, 0.0, 0.0),  # type: ignore[arg-type]
        usual_s=rows(0.001, 0.0015, None),
    )


def material(told: DelayMatrix | None, *places: Place) -> Material:
    communication = Communication(kind="communication-slow", place=places[0], further=places[1:], matrix=told)
    verdict = Verdict(
        eroica_version="0", job="j", verdict="slow", summary="s", window=None, iteration=IterationTimes(),
        coverage=Coverage(workers_expected=1, workers_reported=1), communication=communication,
    )  # fmt: skip
    return Material(verdict=verdict)


def test_hover_names_both_ends_and_what_was_usual() -> None:
    picture = delays.draw(material(matrix(), Place(kind="connection", hosts=("node0", "node1"))))
    assert picture is not None
    body = str(picture.body)
    assert "a byte from node0 to node1 waits 50.0 ms, usually 1.5 ms" in body
    assert body.count("delay-named") == 1 and "delay-6 delay-named" in body
    assert picture.facts is not None and picture.facts.rows[0][:3] == ("node0", "node1", "50.0 ms")


def test_a_direction_of_a_host_is_marked_as_row_or_column() -> None:
    for kind, count in (("sending", 2), ("receiving", 2), ("link", 4)):
        picture = delays.draw(material(matrix(), Place(kind=kind, hosts=("node1",))))  # type: ignore[arg-type]
        assert picture is not None and str(picture.body).count("delay-named") == count


def test_without_ways_there_is_no_picture() -> None:
    assert delays.draw(material(None, Place(kind="worker", workers=(1,)))) is None
    bare = Material(verdict=msgspec.structs.replace(material(None, Place(kind="worker")).verdict, communication=None))
    assert delays.draw(bare) is None


def test_series_are_bounded_and_the_longest_are_among_them() -> None:
    status = JobStatus(job="j", phase="watching", message="")
    text = exposition(Scrape(status=status, delays=matrix(40, (7, 9))))[0].decode()
    lines = [line for line in text.splitlines() if line.startswith("eroica_way_delay_seconds{")]
    assert len(lines) == MOST_WAYS
    assert any('from="node7"' in line and 'to="node9"' in line and line.endswith(" 0.05") for line in lines)
    assert 'eroica_ways{run="j"} 1560.0' in text
