"""Write a check's report as text, JSON, SARIF 2.1, GitHub annotations or JUnit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape
from typing import Any
from urllib.parse import quote

import msgspec

from verici.check import PREDICTED_FAILURE, TOO_LITTLE, Report
from verici.explain import constraint_words, short
from verici.model import Finding, Place

_PAGE = "https://arxiv.org/abs/1805.04473"
_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def as_text(report: Report) -> str:
    """Return the findings for people; nothing for a commit that passes."""
    lines = [f"verici: {note}" for note in report.notes]
    if report.status == TOO_LITTLE:
        lines.append("verici: not enough history to predict; import labels and run `verici learn`")
    for finding in report.findings:
        where = "".join(f"{_shown(place.path)}:{place.line}: " for place in finding.places[:1])
        lines.append(f"{where}predicted failure{_strength(finding)}: {_shown(finding.says)}")
        lines += [f"    {_shown(place.path)}:{place.line}: {_shown(place.text)}" for place in finding.places]
        lines.append(f"    {finding.evidence}")
    if report.known or report.ignored:
        lines.append(f"verici: {len(report.known)} in the baseline, {len(report.ignored)} ignored")
    if report.findings:
        lines.append(f"verici: {short(report.commit)} is predicted to fail")
    return "\n".join(lines)


def _strength(finding: Finding) -> str:
    """Return the reasons not to trust a finding much."""
    words = ["few builds"] * finding.constraint.weak + ["unlike past hits"] * (finding.trusted is False)
    return f" (weak: {', '.join(words)})" if words else ""


def _shown(text: str) -> str:
    """Return the text with control characters made visible: they could rule the reader's terminal."""
    return "".join(letter if letter.isprintable() else f"\\x{ord(letter):02x}" for letter in text)


def as_json(report: Report) -> str:
    """Return the report for programs."""
    found = [
        {
            "fingerprint": one.fingerprint, "constraint": constraint_words(one.constraint), "message": one.message,
            "places": one.places, "failed": one.constraint.failed, "fixed": one.constraint.fixed,
            "weak": one.constraint.weak, "trusted": one.trusted,
        }
        for one in report.findings
    ]  # fmt: skip
    known, ignored = ([one.fingerprint for one in some] for some in (report.known, report.ignored))
    status = {PREDICTED_FAILURE: "fail", TOO_LITTLE: "unknown"}.get(report.status, "pass")
    body = {"commit": report.commit, "prediction": status, "findings": found, "known": known, "ignored": ignored}
    return _json({**body, "notes": report.notes})


def _json(body: Mapping[str, Any]) -> str:
    return msgspec.json.format(msgspec.json.encode(body), indent=2).decode()


def as_sarif(report: Report) -> str:
    """Return SARIF 2.1.0; paths are relative to the root of the repository, whatever the current folder is."""
    rules, results = [], []
    for number, one in enumerate(report.findings):
        name, level = f"verici/{one.fingerprint}", "warning" if one.constraint.weak else "error"
        rules.append({
            "id": name, "helpUri": _PAGE, "defaultConfiguration": {"level": level},
            "shortDescription": {"text": f"{constraint_words(one.constraint)} has failed before"},
            "fullDescription": {"text": one.message},
        })  # fmt: skip
        locations = [_location(place) for place in one.places]
        results.append({
            "ruleId": name, "ruleIndex": number, "level": level, "locations": locations[:1],
            "relatedLocations": locations[1:], "message": {"text": f"Predicted failure: {one.message}"},
            "partialFingerprints": {"constraint/v1": one.fingerprint},
        })  # fmt: skip
    driver = {"name": "verici", "informationUri": _PAGE, "version": "0.1.0", "rules": rules}
    run = {"tool": {"driver": driver}, "results": results, "columnKind": "utf16CodeUnits"}
    return _json({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]})


def _location(place: Place) -> dict[str, Any]:
    file = {"uri": quote(place.path, safe="/"), "uriBaseId": "%SRCROOT%"}
    return {"physicalLocation": {"artifactLocation": file, "region": {"startLine": max(place.line, 1)}}}


def as_github(report: Report) -> str:
    """Return one workflow command a finding, escaped as GitHub documents it."""
    lines = []
    for finding in report.findings:
        place = finding.places[0] if finding.places else None
        level = "warning" if finding.constraint.weak else "error"
        where = f" file={_property(place.path)},line={place.line},title=verici" if place else " title=verici"
        lines.append(f"::{level}{where}::{_message('Predicted failure: ' + finding.message)}")
    if report.status == TOO_LITTLE:
        lines.append("::notice title=verici::not enough history to predict")
    return "\n".join(lines)


def _message(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _message(text).replace(":", "%3A").replace(",", "%2C")


def as_junit(report: Report) -> str:
    """Return one test case a broken constraint, or one that passes."""
    cases = []
    for one in report.findings:
        where = escape(_shown(one.places[0].path if one.places else ""))
        text, name = escape(_shown(one.message)), escape(_shown(constraint_words(one.constraint)))
        failure = f'<failure message="predicted failure">{text}</failure>'
        cases.append(f'<testcase classname="{where}" name="{name}">{failure}</testcase>')
    if not cases:
        skipped = "<skipped/>" if report.status == TOO_LITTLE else ""
        cases.append(f'<testcase classname="verici" name="learned constraints">{skipped}</testcase>')
    suite = f'<testsuite name="verici" tests="{len(cases)}" failures="{len(report.findings)}">'
    return "\n".join(['<?xml version="1.0" encoding="UTF-8"?>', suite, *cases, "</testsuite>"])


FORMATS: dict[str, Callable[[Report], str]] = {
    "text": as_text, "json": as_json, "sarif": as_sarif, "github": as_github, "junit": as_junit,
}  # fmt: skip
