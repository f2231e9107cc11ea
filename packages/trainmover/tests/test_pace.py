"""How the jobs of the tests are slowed down."""

from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import pytest

from trainmover.demo import train


@pytest.mark.parametrize(
    ("in_shadow", "slept_s"), [(False, 0.5), (True, 0.0)], ids=["until it is 0", "not in the sandbox"]
)
def test_a_pace_that_is_written_counts_at_once_and_a_sandbox_keeps_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_shadow: bool, slept_s: float
) -> None:
    """It was 1.5 seconds when the iteration began; half a second later the test goes on."""
    pace, now = tmp_path / "pace", 0.0
    pace.write_text("1.5")

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        if now >= 0.5 - 1e-9:
            pace.write_text("0.0")

    monkeypatch.setattr(train, "time", SimpleNamespace(monotonic=lambda: now, sleep=sleep))
    train.rest(Namespace(pace_file=pace), SimpleNamespace(in_shadow=in_shadow))  # type: ignore[arg-type]
    assert now == pytest.approx(slept_s)
