"""A pytest plugin: the fixture `cloudeval_check` tests a manifest against a problem, and explains a failure.

def test_web(cloudeval_check):
    cloudeval_check("deploy/web.yaml", "tests/problems/web")
"""

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
        verdict = judge(problems.draw(problems.find(str(against)), seed), Path(file).read_text())
        if verdict.how == "skipped":
            pytest.skip(verdict.reason)
        outcome = "could not be judged" if verdict.outcome == UNJUDGED else f"is wrong by {verdict.how}"
        if not verdict.passed:
            pytest.fail(f"{file} {outcome}: {verdict.reason}", pytrace=False)
        return verdict

    return check
