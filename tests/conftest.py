"""What all tests share: one Chromium, and a look at every verdict that is made in this process.

`make test` gives whole files to two processes: a file's tests may share a job.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import eroica.pipeline
from eroica.diagnosis import CATALOG, WindowContext
from eroica.localize import Suspects
from eroica.model.verdict import Finding, Verdict
from eroica.settings import Settings
from support.fixtures import browser, chromium, mark_thorough

__all__ = ["browser", "chromium"]

#: Tests fork, and no child of theirs talks gRPC. With its handlers, a fork beside a thread that does may end in
#: a child that never gets to its work.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"


@pytest.fixture(scope="session", autouse=True)
def _every_finding_is_explained() -> Iterator[None]:
    """Whatever a test asks, no verdict may lack evidence in numbers, a next step, a page, or what a symptom is of."""
    diagnose = eroica.pipeline.diagnose

    def explained(suspects: Suspects, context: WindowContext, settings: Settings) -> Verdict:
        verdict = diagnose(suspects, context, settings)
        of_causes = {order for finding in verdict.findings if finding.role == "cause" for order in finding.explains}
        for finding in verdict.findings:
            check_explained(finding, of_causes)
        return verdict

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(eroica.pipeline, "diagnose", explained)
        yield


@pytest.fixture(autouse=True)
def _nobody_lowers_the_runners_priority() -> Iterator[None]:
    """What a program of ours does to itself, a test of it must not do to all tests after it."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    yield
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


def check_explained(finding: Finding, of_causes: set[int]) -> None:
    """Fail where a finding owes its reader something.

    Args:
        finding: Any of a verdict.
        of_causes: Orders of the symptoms that its causes explain.
    """
    assert finding.cause in CATALOG, finding
    assert finding.next_step.strip().endswith("."), finding.next_step
    assert any(re.search(r"\d", sentence) for sentence in finding.evidence), finding
    assert all(sentence.endswith(".") for sentence in finding.evidence), finding.evidence
    assert 0 < finding.confidence <= 0.99, finding
    if finding.role == "symptom":
        assert finding.order in of_causes, finding
        assert finding.gain is None, finding
        assert "waits for" in finding.evidence[0], finding.evidence
    else:
        assert finding.gain is not None, finding
        assert 0 <= finding.gain < 1, finding
        assert finding.duration is not None, finding


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what takes long: thorough.txt names what --junitxml measured at 3 s, further cases of a test at 2 s."""
    mark_thorough(items, Path(__file__).with_name("thorough.txt"))
