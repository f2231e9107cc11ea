"""What the live page is told, without a browser."""

from __future__ import annotations

import pytest

from eroica.model.verdict import Coverage, Finding, FindingFunction, IterationTimes, Verdict
from eroica.views.live_page import verdict_now


@pytest.mark.parametrize(
    ("scope", "whom"), [("all", "all workers"), ("rotating", "changing workers"), ("some", "workers 0, 1")]
)
def test_a_verdict_in_short_blames_nobody_whom_the_verdict_does_not(scope: str, whom: str) -> None:
    cause = Finding(
        order=1,
        role="cause",
        cause="cpu-contention",
        function=FindingFunction(name="aten::mm", kind="compute"),
        scope=scope,  # type: ignore[arg-type]
        workers=(0, 1),
        confidence=0.6,
        gain=0.2,
    )
    verdict = Verdict(
        eroica_version="0.1.0",
        job="job",
        verdict="slow",
        summary="One worker after another waits.",
        window=None,
        iteration=IterationTimes(),
        coverage=Coverage(workers_expected=2, workers_reported=2),
        findings=(cause,),
    )
    assert verdict_now(1, verdict, "")["workers"] == whom
