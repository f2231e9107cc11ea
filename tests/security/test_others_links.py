"""A report is never written through another user's link, wherever on the way to it that lies."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from neighbors import EROICA, as_neighbor, environment

from eroica.wire.places import without_others_links
from support.fixtures import let_others_in

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user"),
]


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    let_others_in(tmp_path)
    place = tmp_path / "shared"
    place.mkdir()
    place.chmod(0o1777)
    (tmp_path / "mine").mkdir(mode=0o755)
    (tmp_path / "mine" / "index.html").write_text("mine")
    return place


def test_ones_own_links_and_roots_are_followed_and_others_are_not(shared: Path, tmp_path: Path) -> None:
    (shared / "own").symlink_to(tmp_path / "mine")
    assert without_others_links(shared / "own" / "deep") == tmp_path / "mine" / "deep"
    for name, goal in (("planted", "../mine"), ("nowhere", "../mine/made"), ("to-own", "own"), ("circle", "circle")):
        assert as_neighbor(lambda name=name, goal=goal: (shared / name).symlink_to(goal)) == ""
        with pytest.raises(OSError):
            without_others_links(shared / name / "below")


@pytest.mark.jobs
@pytest.mark.parametrize("out", ["planted", "planted/below", "nowhere", "./planted/../planted"])
def test_out_through_a_planted_link_writes_nothing_and_the_command_runs(out: str, shared: Path, tmp_path: Path) -> None:
    for name, goal in (("planted", "../mine"), ("nowhere", "../mine/made")):
        assert as_neighbor(lambda name=name, goal=goal: (shared / name).symlink_to(goal)) == ""
    clean = environment(tmp_path)
    del clean["EROICA_RUN_DIR"]
    done = subprocess.run(
        [EROICA, "run", "--out", out, "--", sys.executable, "-c", "print(5)"],
        env=clean, cwd=shared, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "5\n") and "unwatched" in done.stderr
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["index.html"]
    assert (tmp_path / "mine" / "index.html").read_text() == "mine"
