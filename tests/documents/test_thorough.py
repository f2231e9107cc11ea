"""tests/thorough.txt names tests that there are."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_test_that_is_called_thorough_is_there() -> None:
    names = (ROOT / "tests" / "thorough.txt").read_text(encoding="utf-8").splitlines()
    places = [(file, test.partition("[")[0]) for file, _, test in (name.partition("::") for name in names)]
    gone = [
        f"{file}::{test}"
        for file, test in places
        if not (ROOT / file).exists()
        or not re.search(rf"^(async )?def {test}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert len(names) > 40 and not gone
