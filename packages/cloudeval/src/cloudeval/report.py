"""Reports of results: a leaderboard page, JUnit XML, GitHub annotations, JSON. They name problems by id and quote no question."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from xml.etree import ElementTree

import jinja2
import msgspec

from cloudeval.analyse import Summary, summarize
from cloudeval.metrics import CLASSES, METRICS
from cloudeval.records import RIGHT, UNJUDGED, Result, Verdict


def leaderboard(results: list[Result], title: str = "cloudeval") -> str:
    """Return a page that opens offline: scores, classes, groups, how verdicts were reached, and examples of failures."""
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string((resources.files("cloudeval") / "leaderboard.html").read_text())
    summaries = summarize(results)
    groups = sorted({name for summary in summaries for name in summary.groups})
    return template.render(
        title=title,
        summaries=summaries,
        metrics=METRICS,
        classes=CLASSES,
        groups=groups,
        examples=_examples(results),
        coverage=_coverage(results),
    )


def _examples(results: list[Result], per_class: int = 2) -> list[Result]:
    """Return failures of each source and class, those that admission did not stop first."""
    chosen: list[Result] = []
    for source in sorted({result.source for result in results}):
        for number in CLASSES:
            members = [
                r for r in results if r.source == source and r.answer_class == number and r.verdict.outcome != RIGHT
            ]
            chosen += sorted(members, key=lambda r: (r.verdict.how != "behaviour", r.problem))[:per_class]
    return chosen


def _coverage(results: list[Result]) -> dict[str, int]:
    found: dict[str, int] = {}
    for result in results:
        found[result.verdict.how] = found.get(result.verdict.how, 0) + 1
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def junit(results: list[Result]) -> str:
    """Return JUnit XML: a suite per source, a case per answer. Unjudged answers are errors, not failures."""
    root = ElementTree.Element("testsuites")
    for summary in summarize(results):
        members = [result for result in results if result.source == summary.source]
        wrong = sum(result.verdict.outcome == "wrong" for result in members)
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=summary.source,
            tests=str(len(members)),
            failures=str(wrong),
            errors=str(summary.unjudged),
        )
        for result in members:
            case = ElementTree.SubElement(
                suite,
                "testcase",
                classname=f"{result.group}.{result.style}",
                time=f"{result.verdict.seconds:.3f}",
                name=f"{result.problem}[{result.style},{result.seed},{result.sample}]",
            )
            _case(case, result.verdict)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True)


def _case(case: ElementTree.Element, verdict: Verdict) -> None:
    if verdict.outcome != RIGHT:
        kind = "error" if verdict.outcome == UNJUDGED else "failure"
        ElementTree.SubElement(case, kind, type=verdict.how, message=_printable(verdict.reason)).text = "\n".join(
            map(_printable, verdict.faults)
        )


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() or letter in "\n\t" else "�" for letter in text)


def verdict_junit(name: str, verdict: Verdict) -> str:
    """Return JUnit XML of one checked file."""
    root = ElementTree.Element("testsuites")
    suite = ElementTree.SubElement(
        root,
        "testsuite",
        name="cloudeval check",
        tests="1",
        failures=str(int(verdict.outcome == "wrong")),
        errors=str(int(verdict.outcome == UNJUDGED)),
    )
    _case(
        ElementTree.SubElement(suite, "testcase", classname="check", name=name, time=f"{verdict.seconds:.3f}"), verdict
    )
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True)


def annotation(file: str, verdict: Verdict, line: int | None = None) -> str:
    """Return a GitHub workflow command that marks the file; empty for a right answer."""
    if verdict.outcome == RIGHT:
        return ""
    level = "error" if verdict.outcome == "wrong" else "warning"
    place = f"file={_escaped(file, True)}" + (f",line={line}" if line else "")
    return f"::{level} {place},title=cloudeval {verdict.how}::{_escaped(verdict.reason)}"


def _escaped(text: str, in_property: bool = False) -> str:
    for letter, code in (
        ("%", "%25"),
        ("\r", "%0D"),
        ("\n", "%0A"),
        *(((":", "%3A"), (",", "%2C")) if in_property else ()),
    ):
        text = text.replace(letter, code)
    return text


def to_json(summaries: list[Summary]) -> str:
    """Return summaries as JSON."""
    return json.dumps(
        [msgspec.to_builtins(summary) for summary in summaries], indent=2, ensure_ascii=False, default=str
    )


def table(summaries: list[Summary]) -> str:
    """Return summaries as a table for a terminal."""
    header = (
        f"{'source':24} {'answers':>7} {'unjudged':>8} "
        + " ".join(f"{name:>11}" for name in (*METRICS, "unit test"))
        + "  pass@k"
    )
    lines = [header]
    for item in summaries:
        numbers = " ".join(f"{value:11.3f}" for value in (*(item.metrics[name] for name in METRICS), item.unit_test))
        lines.append(
            f"{item.source[:24]:24} {item.results:7} {item.unjudged:8} {numbers}  "
            + " ".join(f"{k}:{value:.3f}" for k, value in item.pass_at.items())
        )
    return "\n".join(lines)


def write(path: Path, results: list[Result]) -> None:
    """Write a report; the suffix decides: .html, .xml (JUnit) or .json."""
    text = (
        leaderboard(results)
        if path.suffix == ".html"
        else junit(results)
        if path.suffix == ".xml"
        else to_json(summarize(results))
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
