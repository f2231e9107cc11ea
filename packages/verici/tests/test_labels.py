"""Readers of what CI services export, tried on JSON and tables in their documented shapes."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from verici.errors import BadInput
from verici.labels import READERS, load, match, reduce_runs, save, step_kind
from verici.model import Label


def read(service: str, rows: object, **jobs: object) -> dict[str, tuple[str, str]]:
    text = rows if isinstance(rows, str) else json.dumps(rows)
    runs = READERS[service](text, {name: json.dumps(value) for name, value in jobs.items()})
    return {label.commit: (label.result, label.kind) for label in reduce_runs(runs, service)}


def run(
    conclusion: str, number: int = 1, attempt: int = 1, workflow: str = "CI", commit: str = "a"
) -> dict[str, object]:
    return {"databaseId": number, "headSha": commit, "conclusion": conclusion, "event": "push", "attempt": attempt,
            "workflowName": workflow, "createdAt": "2026-01-01T00:00:00Z"}  # fmt: skip


def jobs(*steps: tuple[str, str]) -> dict[str, object]:
    return {
        "jobs": [{"name": "build", "conclusion": "failure", "steps": [{"name": n, "conclusion": c} for n, c in steps]}]
    }


@pytest.mark.parametrize("order", [0, 1])
def test_a_repeated_github_run_replaces_the_first_attempt(order: int) -> None:
    rows = [run("failure", attempt=1), run("success", attempt=2)]
    assert read("github", rows[::-1] if order else rows) == {"a": ("pass", "ok")}


def test_cancelled_gives_no_label_and_one_failed_workflow_fails_the_commit() -> None:
    assert read("github", [run("cancelled")]) == {}
    rows = [run("success", 1), run("failure", 2, workflow="Docs")]
    for order in itertools.permutations(rows):
        assert read("github", list(order)) == {"a": ("fail", "unknown")}
    assert read("github", [run("success", 1), run("cancelled", 2, attempt=2)]) == {"a": ("pass", "ok")}


def test_github_steps_say_whether_tests_failed() -> None:
    assert read("github", [run("failure", 7)]) == {"a": ("fail", "unknown")}
    assert read("github", [run("failure", 7)], **{"7": jobs(("Set up job", "success"), ("Run pytest", "failure"))}) == {
        "a": ("pass", "test")
    }
    assert read(
        "github", [run("failure", 7)], **{"7": jobs(("Install test dependencies", "failure"), ("Run tests", "skipped"))}
    ) == {"a": ("fail", "config")}
    assert read("github", [run("failure", 7)], **{"7": jobs()}) == {"a": ("fail", "unknown")}
    assert read("github", [run("startup_failure")]) == {"a": ("fail", "config")}


def test_gitlab() -> None:
    rows = [{"id": 1, "sha": "a", "status": "failed", "created_at": "1"},
            {"id": 2, "sha": "b", "status": "success"},
            {"id": 3, "sha": "c", "status": "failed", "yaml_errors": "bad"},
            {"id": 4, "sha": "d", "status": "canceled"}]  # fmt: skip
    bad = {"stage": "test", "name": "rspec", "status": "failed"}
    lint = {"stage": "lint", "name": "x", "status": "failed", "allow_failure": True}
    found = read("gitlab", rows, **{"1": [bad, lint]})
    assert found == {"a": ("pass", "test"), "b": ("pass", "ok"), "c": ("fail", "config")}


def test_jenkins_unstable_means_that_tests_failed() -> None:
    def build(number: int, result: str, commit: str) -> dict[str, object]:
        return {
            "number": number,
            "result": result,
            "timestamp": 1000,
            "actions": [{}, {"lastBuiltRevision": {"SHA1": commit}}],
        }

    rows = {
        "builds": [
            build(1, "FAILURE", "a"),
            build(2, "SUCCESS", "a"),
            build(3, "UNSTABLE", "b"),
            build(4, "FAILURE", "c"),
        ]
    }
    stages = {"4": {"stages": [{"name": "Install", "status": "FAILED"}]}}
    assert read("jenkins", rows, **stages) == {"a": ("pass", "ok"), "b": ("pass", "test"), "c": ("fail", "config")}


def test_buildkite() -> None:
    rows = [{"number": 1, "commit": "a", "state": "failed", "pipeline": {"slug": "p"},
             "jobs": [{"type": "script", "name": "bundle install", "state": "failed"},
                      {"type": "waiter", "state": "passed"}]},
            {"number": 2, "commit": "b", "state": "passed", "jobs": []},
            {"number": 3, "commit": "c", "state": "canceled"}]  # fmt: skip
    assert read("buildkite", rows) == {"a": ("fail", "config"), "b": ("pass", "ok")}


def test_both_travis_tables() -> None:
    torrent = "tr_build_id,git_trigger_commit,tr_status,git_branch,gh_is_pr\n1,a,errored,main,F\n"
    torrent += "2,b,failed,main,F\n3,c,canceled,main,F\n"
    assert read("travis", torrent) == {"a": ("fail", "config"), "b": ("pass", "test")}
    other = (
        "build_id,commit,pull_req,branch,status,duration,started_at,jobs,event_type\n1,a,,main,passed,3,2016,1,push\n"
    )
    assert read("travis", other) == {"a": ("pass", "ok")}


def test_plain_tables_say_which_line_is_wrong() -> None:
    assert read("csv", "commit,result\na,pass\nb,fail\n") == {"a": ("pass", "ok"), "b": ("fail", "unknown")}
    assert read("csv", "commit,result,kind\na,fail,test\n") == {"a": ("pass", "test")}
    with pytest.raises(BadInput, match="line 3"):
        read("csv", "commit,result\na,pass\nb,maybe\n")


@pytest.mark.parametrize("service", ["github", "gitlab", "jenkins", "buildkite"])
def test_other_json_is_refused_with_a_sentence(service: str) -> None:
    for text in ("{", "[1]", '"x"'):
        with pytest.raises(BadInput):
            read(service, text)


def test_names_of_steps() -> None:
    assert step_kind(["Run rspec"]) == step_kind(["unit tests", "e2e"]) == "test"
    assert step_kind(["Set up Python 3.13"]) == step_kind(["bundle install", "Run tests"]) == "config"
    assert step_kind([]) == "unknown"


def test_labels_survive_saving_and_match_short_ids(tmp_path: Path) -> None:
    labels = [Label("abcdef1", "fail", "config", "x", "1", 'a "quoted", text'), Label("b" * 40, "pass")]
    save(tmp_path / "labels.csv", labels)
    loaded = load(tmp_path / "labels.csv")
    assert list(loaded.values()) == labels
    found, unmatched = match(loaded, ["abcdef1" + "0" * 33])
    assert found == {"abcdef1" + "0" * 33: labels[0]}
    assert unmatched == 1


def test_unknown_kinds_teach_unless_they_are_left_out_and_limits_never_do() -> None:
    ids = ["a" * 40, "b" * 40]
    labels = {ids[0]: Label(ids[0], "fail", "unknown"), ids[1]: Label(ids[1], "fail", "limit")}
    assert match(labels, ids)[0] == {ids[0]: labels[ids[0]]}
    assert match(labels, ids, known_kinds=True)[0] == {}
