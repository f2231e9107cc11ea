"""Reports of results: a leaderboard page, JUnit XML, GitHub annotations, JSON. They name problems by id and quote no question."""

import json
from collections import Counter
from importlib import resources
from pathlib import Path
from xml.etree import ElementTree

import jinja2
import msgspec

from cloudeval.analyse import Summary, summarize
from cloudeval.metrics import CLASSES, METRICS
from cloudeval.records import RIGHT, UNJUDGED, WRONG, Result, Verdict


def leaderboard(results: list[Result], title: str = "cloudeval") -> str:
    """Return a page that opens offline: scores, classes, groups, how verdicts were reached, and examples of failures."""
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string((resources.files("cloudeval") / "leaderboard.html").read_text())
    return template.render(
        title=title,
        summaries=summarize(results),
        metrics=METRICS,
        classes=CLASSES,
        groups=sorted({result.group for result in results}),
        examples=_examples(results),
        coverage=dict(Counter(result.verdict.how for result in results).most_common()),
    )


def _examples(results: list[Result], per_class: int = 2) -> list[Result]:
    """Return failures of each source and class, those that admission did not stop first."""
    failed = [result for result in results if result.verdict.outcome != RIGHT]
    failed.sort(key=lambda r: (r.source, r.answer_class, r.verdict.how != "behaviour", r.problem))
    seen: Counter[tuple[str, int]] = Counter()
    chosen = []
    for result in failed:
        seen[result.source, result.answer_class] += 1
        if seen[result.source, result.answer_class] <= per_class:
            chosen.append(result)
    return chosen


def junit(results: list[Result]) -> str:
    """Return JUnit XML: a suite per source, a case per answer. Unjudged answers are errors, not failures."""
    suites: dict[str, list[tuple[str, str, Verdict]]] = {}
    for item in results:
        name = f"{item.problem}[{item.style},{item.seed},{item.sample}]"
        suites.setdefault(item.source, []).append((f"{item.group}.{item.style}", name, item.verdict))
    return _junit(suites)


def verdict_junit(name: str, verdict: Verdict) -> str:
    """Return JUnit XML of one checked file."""
    return _junit({"cloudeval check": [("check", name, verdict)]})


def _junit(suites: dict[str, list[tuple[str, str, Verdict]]]) -> str:
    root = ElementTree.Element("testsuites")
    for source, cases in suites.items():
        outcomes = Counter(verdict.outcome for _, _, verdict in cases)
        counts = {"tests": len(cases), "failures": outcomes[WRONG], "errors": outcomes[UNJUDGED]}
        numbers = {key: str(count) for key, count in counts.items()}
        suite = ElementTree.SubElement(root, "testsuite", numbers, name=source)
        for group, name, verdict in cases:
            case = ElementTree.SubElement(suite, "testcase", classname=group, name=name, time=f"{verdict.seconds:.3f}")
            if verdict.outcome != RIGHT:
                kind, reason = "error" if verdict.outcome == UNJUDGED else "failure", _printable(verdict.reason)
                failure = ElementTree.SubElement(case, kind, type=verdict.how, message=reason)
                failure.text = "\n".join(map(_printable, verdict.faults))
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True)


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() or letter in "\n\t" else "�" for letter in text)


def annotation(file: str, verdict: Verdict) -> str:
    """Return a GitHub workflow command that marks the file; empty for a right answer."""
    if verdict.outcome == RIGHT:
        return ""
    level = "error" if verdict.outcome == WRONG else "warning"
    place = _escaped(file, "%\r\n:,")
    return f"::{level} file={place},title=cloudeval {verdict.how}::{_escaped(verdict.reason)}"


def _escaped(text: str, letters: str = "%\r\n") -> str:
    return "".join(f"%{ord(letter):02X}" if letter in letters else letter for letter in text)


def to_json(summaries: list[Summary]) -> str:
    """Return summaries as JSON."""
    return json.dumps(list(map(msgspec.to_builtins, summaries)), indent=2, ensure_ascii=False, default=str)


def table(summaries: list[Summary]) -> str:
    """Return summaries as a table for a terminal."""
    names = " ".join(f"{name:>11}" for name in (*METRICS, "unit test"))
    lines = [f"{'source':24} {'answers':>7} {'unjudged':>8} {names}  pass@k"]
    for item in summaries:
        numbers = " ".join(f"{value:11.3f}" for value in (*(item.metrics[name] for name in METRICS), item.unit_test))
        passes = " ".join(f"{k}:{value:.3f}" for k, value in item.pass_at.items())
        lines.append(f"{item.source[:24]:24} {item.results:7} {item.unjudged:8} {numbers}  {passes}")
    return "\n".join(lines)


def write(path: Path, results: list[Result]) -> None:
    """Write a report; the suffix decides: .html, .xml (JUnit) or .json."""
    writers = {".html": leaderboard, ".xml": junit}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(writers[path.suffix](results) if path.suffix in writers else to_json(summarize(results)))
