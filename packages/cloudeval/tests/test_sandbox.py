import os
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from cloudeval import problems
from cloudeval.judging import judge
from cloudeval.runners import sandbox
from cloudeval.runners.cluster import Cluster
from cloudeval.workers import run_all

pytestmark = pytest.mark.root


def run(work, timeout_s=30.0):
    return sandbox.run(work, f"{os.getpid()}-{id(work)}", timeout_s)


def pod(command, extra="", spec="restartPolicy: Never"):
    return f"apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec:\n  {spec}\n  containers:\n  - name: c\n    image: busybox:1.36\n    command: {command}\n    {extra}\n"


def logs_of(text):
    def work(name):
        cluster = Cluster(name)
        cluster.apply(text)
        cluster.eventually(
            lambda: cluster.find("p")["status"].get("phase") in ("Succeeded", "Failed"), "it does not end"
        )
        return cluster.logs("p")

    ended = run(work)
    assert ended.error is None, ended.error
    return ended.value


def test_variables_expand_in_order():
    env = "env: [{name: A, value: x}, {name: B, value: $(A)y}]"
    assert logs_of(pod("[echo, $(B)]", env)) == "xy"
    assert logs_of(pod("[echo, $(B)]", "env: [{name: B, value: $(A)y}, {name: A, value: x}]")) == "$(A)y"
    assert logs_of(pod("[echo, $$(B), $(C)]", env)) == "$(B) $(C)"


def test_a_mode_in_octal_is_the_file_s_mode():
    text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: m}\ndata: {k: v}\n---\n" + pod(
        "[stat, -L, -c, '%a', /m/k]",
        "volumeMounts: [{name: v, mountPath: /m}]",
        "restartPolicy: Never\n  volumes: [{name: v, configMap: {name: m, items: [{key: k, path: k, mode: 0640}]}}]",
    )
    assert logs_of(text) == "640"


def test_the_sandbox_has_no_way_out_and_sees_no_host():
    assert logs_of(pod("[sh, -c, 'timeout 1 wget -qO- http://10.0.2.2 > /dev/null 2>&1 || echo closed']")) == "closed"
    assert "work" not in logs_of(
        pod(
            "[ls, /h]",
            "volumeMounts: [{name: h, mountPath: /h}]",
            "restartPolicy: Never\n  volumes: [{name: h, hostPath: {path: /}}]",
        )
    )


def test_a_test_that_hangs_is_ended_and_is_the_runner_s_failure():
    import time

    ended = run(lambda name: time.sleep(60), 0.5)
    assert "did not end" in ended.error


def test_a_crash_of_the_runner_is_not_a_wrong_answer(monkeypatch):
    variant = problems.draw(problems.load_one(problems.built_in() / "pod-args"))
    monkeypatch.setattr("cloudeval.runners.containers._runc", lambda: ["false"])
    verdict = judge(variant, variant.answer, attempts=2)
    assert (verdict.outcome, verdict.how, verdict.attempts) == ("unjudged", "runner", 2)


def test_privileged_answers_are_reported_and_not_run():
    variant = problems.draw(problems.load_one(problems.built_in() / "pod-args"))
    verdict = judge(
        variant, variant.answer.replace("image: echo:1.0", "image: echo:1.0\n    securityContext: {privileged: true}")
    )
    assert (verdict.outcome, verdict.how) == ("unjudged", "hostile")


@pytest.mark.parametrize("policy", ["Never", "OnFailure"])
def test_a_job_without_retries_fails_once(policy):
    def work(name):
        cluster = Cluster(name)
        cluster.apply(
            f"apiVersion: batch/v1\nkind: Job\nmetadata: {{name: j}}\nspec: {{backoffLimit: 0, template: {{spec: {{restartPolicy: {policy}, containers: [{{name: c, image: busybox, command: ['false']}}]}}}}}}"
        )
        cluster.finished("job/j", "Failed", 6)
        before = len(cluster.store.list("Pod"))
        cluster.sleep(0.5)
        return before, len(cluster.store.list("Pod"))

    ended = run(work)
    assert ended.error is None, ended.error
    if policy == "Never":
        assert ended.value == (1, 1)


def test_envoy_cannot_touch_the_host(tmp_path):
    canary = tmp_path / "canary"
    text = problems.draw(problems.load_one(problems.built_in() / "envoy-lua")).answer.replace(
        "function envoy_on_request(handle)",
        f"os.execute('touch {canary}')\n                  function envoy_on_request(handle)",
    )
    judge(problems.draw(problems.load_one(problems.built_in() / "envoy-lua")), text)
    assert not canary.exists()


def test_results_are_the_same_on_two_workers_in_any_order():
    variants = [problems.draw(problem) for problem in problems.load(only="job-basic,pod-args,envoy-direct,istio-split")]
    tests = [(variant, text) for variant in variants for text in (variant.answer, "kind: x")]
    one, two = run_all(tests, 1), run_all(tests[::-1], 2)[::-1]
    assert [(verdict.outcome, verdict.how) for verdict in one] == [(verdict.outcome, verdict.how) for verdict in two]


def test_a_worker_that_dies_is_replaced_and_its_test_repeated_once():
    variant = problems.draw(problems.load(only="pod-args")[0])
    fatal = msgspec.structs.replace(
        variant, runner="semantics", check="import os\ndef check(t, v): os.kill(os.getpid(), 9)"
    )
    died, right = run_all([(fatal, variant.answer), (variant, variant.answer)])
    assert (died.outcome, died.how, died.attempts) == ("unjudged", "runner", 2)
    assert right.passed


def test_tests_may_be_run_from_any_thread():
    variant = problems.draw(problems.load(only="pod-args")[0])
    with ThreadPoolExecutor() as pool:
        assert [verdict.passed for verdict in pool.submit(run_all, [(variant, variant.answer)]).result()] == [True]


@pytest.mark.thorough
def test_ray_gives_the_same_results():
    pytest.importorskip("ray", reason="Ray is not installed")
    variants = [problems.draw(problem) for problem in problems.load(only="job-basic,istio-split")]
    tests = [(variant, variant.answer) for variant in variants]
    local, spread = run_all(tests, 1), run_all(tests, 2, ray_address="local")
    assert [(verdict.outcome, verdict.how) for verdict in local] == [
        (verdict.outcome, verdict.how) for verdict in spread
    ]
