"""The larger pictures: what they show of what is on record."""

from __future__ import annotations

import base64
import struct
import zlib

import msgspec
import numpy as np
import pytest
from drawn import hints, of_class, read, texts

from eroica.model.pattern import WorkerPattern
from eroica.model.verdict import WaitEdge, Waits
from eroica.model.worker import Worker
from eroica.pipeline import analyze
from eroica.views import flames, heatmap, waits
from eroica.views.material import Material
from eroica.views.page import PICTURES
from eroica.views.svg import Picture
from support.fleet import FleetPlan, synthesize, synthesize_window
from support.troubles import SlowLoader

LARGE = ("heatmap", "waits", "flames")


def fleet(workers: int = 6, slow: int = 4) -> list[WorkerPattern]:
    plan = FleetPlan(workers=workers, iterations=10, per_host=4)
    return synthesize(plan, [SlowLoader((slow,), 40.0)])


def material(patterns: list[WorkerPattern], **changes: object) -> Material:
    window = synthesize_window(patterns)
    verdict = msgspec.structs.replace(analyze("job", window, patterns), **changes)
    return Material(verdict=verdict, window=window, patterns=patterns)


@pytest.fixture(scope="module")
def slow() -> Material:
    """Worker 4 of 6 reads 40 ms longer in each iteration."""
    return material(fleet(), waits=_waits(6, 4))


def _waits(workers: int, on: int) -> Waits:
    edges = tuple(WaitEdge(waiter=rank, on=on, per_iteration_ms=30.0 + rank) for rank in range(workers) if rank != on)
    waited = {edge.waiter: edge.per_iteration_ms for edge in edges}
    total = sum(waited.values())
    return Waits(
        total_ms=total,
        withheld_ms=total / 10,
        waited_ms=waited,
        blamed_ms={on: 0.9 * total},
        edges=edges,
        workers=workers,
    )


def drawn(found: Picture | None) -> Picture:
    assert found is not None
    assert not found.missing
    read(found.body)
    return found


def cells(picture: Picture) -> np.ndarray:
    """Milliseconds [F, W] as the script reads them."""
    data = picture.data
    assert data is not None
    raw = np.frombuffer(base64.b64decode(str(data["cells"])), dtype="<u2").astype(float)
    raw[raw == heatmap.NO_VALUE] = np.nan
    grid = raw.reshape(-1, int(str(data["workers"]))) / (heatmap.NO_VALUE - 1)
    return grid * np.array(data["highest"])[:, None]  # type: ignore[no-any-return]


# --- heat map ---


def test_the_heat_map_holds_each_function_s_critical_time_on_each_worker(slow: Material) -> None:
    picture = drawn(heatmap.draw(slow))
    assert picture.data is not None
    names = picture.data["full"]
    row = next(at for at, name in enumerate(names) if "_read_block" in name)  # type: ignore[call-overload]
    own = next(one for one in slow.patterns[4].functions if one.key.name == "_read_block")
    assert cells(picture)[row, 4] == pytest.approx(own.critical_s / 10 * 1e3, rel=1e-3)
    assert np.isnan(np.delete(cells(picture)[row], 4)).all()


def test_functions_of_findings_come_first_and_culprits_are_marked(slow: Material) -> None:
    picture = drawn(heatmap.draw(slow))
    assert texts(picture.body, "cause")[0].startswith("(1) _read_block")
    assert texts(picture.body, "culprit-name") == ["worker 4"]
    assert len(of_class(picture.body, "culprit-sign")) == 1
    assert picture.data is not None
    assert picture.data["culprits"] == [4]


def test_the_image_without_a_script_shows_the_worker_farthest_from_the_median() -> None:
    """One worker of three thousand is slow, and one waits for nobody: both stay to be seen in 720 columns."""
    patterns = fleet(30, 7)
    many = [_on(patterns[7 if rank == 1501 else rank % 7], rank, 3000) for rank in range(3000)]
    verdict = analyze("job", synthesize_window(patterns), patterns)
    named = Material(verdict=verdict, patterns=many)
    picture = drawn(heatmap.draw(named))
    image = next(one for one in read(picture.body) if one.name == "image")
    levels_HW = _pixels(base64.b64decode(image.attributes["href"].split(",", 1)[1]))
    assert picture.data is not None
    row = next(at for at, name in enumerate(picture.data["full"]) if "_read_block" in name)  # type: ignore[call-overload]
    assert levels_HW.shape[1] == 720
    assert np.flatnonzero(levels_HW[row]).tolist() == [int(1501 * 720 / 3000)]


def _on(pattern: WorkerPattern, rank: int, world: int) -> WorkerPattern:
    worker = Worker(global_rank=rank, world_size=world, host=f"node-{rank // 8}")
    return msgspec.structs.replace(pattern, worker=worker)


def _pixels(png: bytes) -> np.ndarray:
    """Indexes of an image that `indexed_png` made."""
    at, parts = 8, {}
    while at < len(png):
        size, name = struct.unpack(">I4s", png[at : at + 8])
        body = png[at + 8 : at + 8 + size]
        assert struct.unpack(">I", png[at + 8 + size : at + 12 + size])[0] == zlib.crc32(name + body)
        parts[name] = body
        at += 12 + size
    width, height = struct.unpack(">II", parts[b"IHDR"][:8])
    rows = np.frombuffer(zlib.decompress(parts[b"IDAT"]), dtype=np.uint8).reshape(height, width + 1)
    return rows[:, 1:]


# --- waits ---


def test_the_matrix_says_who_waits_for_whom(slow: Material) -> None:
    picture = drawn(waits.draw(slow))
    told = hints(picture.body)
    assert "worker 2 waits 32.0 ms an iteration for worker 4" in told
    assert "worker 2 waits 32.0 ms an iteration in all" in told
    assert len(of_class(picture.body, "blamed-cell")) == 5
    assert "10 % of all waiting is laid at nobody" in picture.reads
    assert "◆ worker 4" in texts(picture.body, "culprit-text")


def test_of_many_workers_the_culprit_and_those_that_wait_longest_are_drawn(slow: Material) -> None:
    patterns = [_on(slow.patterns[rank % 6], rank, 400) for rank in range(400)]
    verdict = msgspec.structs.replace(slow.verdict, waits=_waits(400, 4))
    picture = drawn(waits.draw(Material(verdict=verdict, patterns=patterns)))
    names = texts(picture.body)
    assert "◆ worker 4" in names and "worker 399" in names and "worker 5" not in names
    assert "Drawn are 40 of 400 workers" in picture.reads


# --- flames ---


def test_frames_are_as_wide_as_their_time_and_tell_the_difference(slow: Material) -> None:
    picture = drawn(flames.draw(slow))
    assert picture.data is not None
    tree = picture.data["tree"]
    path = []
    while tree[3]:  # type: ignore[index]
        tree = tree[3][0]  # type: ignore[index]
        path.append(tree[0].split(" (")[0])  # type: ignore[index]
    own = next(one for one in slow.patterns[4].functions if one.key.name == "_read_block")
    assert path[-1] == "_read_block"
    assert tree[1] == pytest.approx(own.critical_s / 10 * 1e3, rel=1e-3)  # type: ignore[index]
    assert tree[2] == 0.0  # type: ignore[index]
    assert any(hint.startswith("_read_block (project/dataset.py:70)") and "▲" in hint for hint in hints(picture.body))


# --- all of them ---


@pytest.mark.parametrize("name", LARGE)
def test_each_tells_its_facts_as_text_and_how_to_read_it(name: str, slow: Material) -> None:
    picture = drawn(PICTURES[name][1](slow))
    assert picture.id == name
    assert picture.reads.endswith(".")
    assert picture.facts is not None
    assert picture.facts.rows
    assert {len(row) for row in picture.facts.rows} == {len(picture.facts.header)}
    assert not any("style" in one.attributes for one in read(picture.body)), "the page's policy refuses them"
