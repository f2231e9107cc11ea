"""A pytest plugin: the fixture `cloudeval_check` tests a manifest against a problem, and explains a failure.

def test_web(cloudeval_check):
    cloudeval_check("deploy/web.yaml", "tests/problems/web")
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cloudeval.records import UNJUDGED, Verdict


@pytest.fixture
def cloudeval_check() -> Callable[..., Verdict]:
    """Return a function that fails the test if a file is wrong, and skips it if the machine cannot judge."""
    from cloudeval import problems
    from cloudeval.judging import judge

    def check(file: str | Path, against: str | Path, seed: int = 0) -> Verdict:
        folder = Path(against)
        problem = problems.load_one(folder if folder.is_dir() else problems.built_in() / str(against))
        verdict = judge(problems.draw(problem, seed), Path(file).read_text())
        if verdict.outcome == UNJUDGED:
            if verdict.how == "skipped":
                pytest.skip(verdict.reason)
            pytest.fail(f"{file} could not be judged: {verdict.reason}", pytrace=False)
        if not verdict.passed:
            pytest.fail(f"{file} is wrong by {verdict.how}: {verdict.reason}", pytrace=False)
        return verdict

    return check
