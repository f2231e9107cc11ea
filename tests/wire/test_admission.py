"""The admission of clients without a token is one module, which c4p's tests try; three packages have it."""

from __future__ import annotations

from pathlib import Path

import eroica.wire.admission

ROOT = Path(__file__).parents[2]
PACKAGES = ROOT / "packages"


def test_eroica_c4p_and_trainmover_have_the_same_module() -> None:
    ours = Path(eroica.wire.admission.__file__).read_text()
    for package in ("c4p", "trainmover"):
        assert (PACKAGES / package / "src" / package / "admission.py").read_text() == ours, package
