import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest

from cloudeval import campaign, problems
from cloudeval.errors import UsageError
from cloudeval.records import Verdict
from cloudeval.report import annotation, leaderboard, verdict_junit
from cloudeval.runners import cgroups

VARIANT = problems.draw(problems.load_one(problems.built_in() / "istio-split"))


def cloudeval(*arguments, **options):
    program = [sys.executable, "-m", "cloudeval.cli", *map(str, arguments)]
    return subprocess.run(program, capture_output=True, text=True, check=False, timeout=100, **options)


def test_check_has_three_statuses(tmp_path):
    right, wrong = tmp_path / "right.yaml", tmp_path / "wrong.yaml"
    right.write_text(VARIANT.answer)
    wrong.write_text(VARIANT.answer.replace("weight: 80", "weight: 70"))
    done = cloudeval("check", right, "--against", "istio-split", "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["metrics"]["kv_wildcard"] == 1.0
    done = cloudeval(
        "check", wrong, "--against", problems.built_in() / "istio-split", "--github", "--junit", tmp_path / "j.xml"
    )
    assert done.returncode == 1
    assert "::error file=" in done.stdout
    assert ElementTree.parse(tmp_path / "j.xml").getroot()[0].get("failures") == "1"
    assert cloudeval("check", right, "--against", "nothing").returncode == 2


def test_without_root_a_pod_cannot_be_judged_and_says_why(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("needs root to become somebody else")
    file = Path("/var/tmp/cloudeval-right.yaml")
    file.write_text(problems.draw(problems.load_one(problems.built_in() / "pod-args")).answer)
    code = "import os; os.setuid(65534); from cloudeval import problems; from cloudeval.judging import judge\n"
    code += f"v = judge(problems.draw(P), open('{file}').read()); print(v.outcome, v.how, v.reason)"
    code = (
        "from cloudeval import problems, schema; import cloudeval.judging; schema.definitions(); P = problems.load_one(problems.built_in() / 'pod-args')\n"
        + code
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    file.unlink()
    assert "unjudged skipped sandboxes need root" in done.stdout, done.stderr


def test_run_resumes_and_reports(tmp_path):
    out = tmp_path / "r.jsonl"
    done = cloudeval("run", "--own", "references", "--only", "istio", "--styles", "full", "--out", out)
    assert done.returncode == 0, done.stderr
    whole = out.read_text().splitlines()
    assert len(whole) == 10
    out.write_text("\n".join(whole[:6]) + "\n" + whole[6][:50])
    assert cloudeval("run", "--own", "references", "--only", "istio", "--styles", "full", "--out", out).returncode == 0
    assert len(campaign.read_results(out)) == 10
    assert len(out.read_text().splitlines()) == 10
    cloudeval("run", "--own", "mutants", "--samples", "2", "--only", "istio", "--styles", "full", "--out", out)
    done = cloudeval("score", out, "--json", "--report", tmp_path / "l.html", "--report", tmp_path / "j.xml")
    summary = {item["source"]: item for item in json.loads(done.stdout)}
    assert (summary["references"]["unit_test"], summary["mutants"]["unit_test"]) == (1.0, 0.0)
    page = (tmp_path / "l.html").read_text()
    assert "references" in page
    assert not any(question in page for question in VARIANT.questions.values())
    assert json.loads(cloudeval("compare", out).stdout)["answers"] == 10
    assert "wrong by" in cloudeval("show", out, "--outcome", "wrong").stdout


def test_results_do_not_go_into_a_git_tree():
    with pytest.raises(UsageError, match="git"):
        campaign.ResultsFile(Path(__file__).parent / "results.jsonl")


def test_pages_and_annotations_escape_what_answers_say():
    verdict = Verdict("wrong", "behaviour", "50% <script>\n::error::x")
    assert "\n" not in annotation("a,b.yaml", verdict)
    assert ElementTree.fromstring(verdict_junit("x", verdict)) is not None
    variant = campaign.plans([problems.load_one(problems.built_in() / "istio-split")], "<b>s</b>", ["full"])[0]
    from cloudeval.match import Reference

    result = campaign.make_result(
        dataclasses.replace(variant, text="x"), "<script>", "unchanged", Reference.parse(VARIANT.reference), verdict
    )
    assert "<script>" not in leaderboard([result])


@pytest.mark.root
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_after_an_interrupt_or_a_kill(tmp_path, number):
    answers = tmp_path / "answers"
    answers.mkdir()
    stubborn = "apiVersion: v1\nkind: Pod\nmetadata: {name: a, labels: {tier: x}}\nspec: {containers: [{name: c, image: busybox, command: [sh, -c, \"trap '' TERM; while :; do sleep 0.12345; done\"]}]}"
    (answers / "pod-web.yaml").write_text(
        stubborn.replace(
            "name: a,", f"name: {problems.draw(problems.load_one(problems.built_in() / 'pod-web')).variables['name']},"
        )
    )
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "cloudeval.cli",
            "run",
            "--answers",
            str(answers),
            "--only",
            "pod-web",
            "--out",
            str(tmp_path / "r.jsonl"),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    for _ in range(300):
        if _running():
            break
        time.sleep(0.1)
    assert _running()
    process.send_signal(number)
    process.wait(20)
    for _ in range(100):
        if not _running():
            break
        time.sleep(0.1)
    assert not _running()
    cgroups.sweep()
    assert not list(Path("/run/cloudeval").glob("*"))


def _running():
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"0.12345" in path.read_bytes():
                found.append(path)
        except OSError:
            continue
    return found
