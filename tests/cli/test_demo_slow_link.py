"""The demo of a slow link: what is right, and a real job on namespaces as hosts."""

from __future__ import annotations

from pathlib import Path

import pytest

from eroica.cli.slow_link import LinkVerdicts, judge_link, rehearse_link
from eroica.model.communication import Communication, Place
from eroica.model.verdict import Coverage, Finding, FindingFunction, IterationTimes, Verdict
from eroica.testing.hosts import available


def verdict(host: str = "node1", place: Place | None = None, cause: str = "slow-link") -> Verdict:
    finding = Finding(
        order=1, role="cause", cause=cause, function=FindingFunction(name="all_reduce", kind="collective"),
        workers=(), scope="some", hosts=(host,), confidence=0.9,
    )  # fmt: skip
    told = None if place is None else Communication(kind="communication-slow", place=place)
    return Verdict(
        eroica_version="0", job="j", verdict="slow", summary="It is slow.", window=None, iteration=IterationTimes(),
        coverage=Coverage(workers_expected=3, workers_reported=3), findings=(finding,), communication=told,
    )  # fmt: skip


LINK = Place(kind="link", hosts=("node1",))


def test_both_name_the_host_and_communication_comes_first() -> None:
    told = judge_link(LinkVerdicts(verdict(place=LINK), verdict(), after_s=9.0, window_s=21.0))
    assert told.right
    assert "communication named link node1 9 s after" in told.words and "window after 21 s" in told.words


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (LinkVerdicts(None, verdict(), None, 20.0), "said nothing"),
        (LinkVerdicts(verdict(place=Place(kind="link", hosts=("node2",))), verdict(), 9.0, 20.0), "communication said"),
        (LinkVerdicts(verdict(place=LINK), verdict("node2"), 9.0, 20.0), "verdict"),
        (LinkVerdicts(verdict(place=LINK), verdict(cause="compute-slow"), 9.0, 20.0), "verdict"),
        (LinkVerdicts(verdict(place=LINK), None, 9.0, 20.0), "verdict"),
        (LinkVerdicts(verdict(place=LINK), verdict(), 20.0, 12.0), "first"),
    ],
)
def test_anything_else_is_wrong_and_says_why(told: LinkVerdicts, why: str) -> None:
    judgement = judge_link(told)
    assert not judgement.right and why in judgement.words


@pytest.mark.root
@pytest.mark.jobs
@pytest.mark.long
@pytest.mark.timeout(240)
@pytest.mark.skipif(not available()[0], reason=f"no hosts here: {available()[1]}")
def test_communication_names_the_link_of_a_real_job_before_the_window_does(tmp_path: Path) -> None:
    lines: list[str] = []
    told, judgement = rehearse_link(tmp_path, 3, lines.append)
    assert judgement.right, f"{judgement.words}\n" + "\n".join(lines)
    assert told.communication is not None and told.communication.found_by == "communication"
