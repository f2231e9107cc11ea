"""The manifests as an API server would take them: built by kustomize, checked against Kubernetes' own schemas.

PodMonitor and TrainJob are kinds of operators: they are read by the models that are published for these.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from eroica.settings import Settings

validator = pytest.importorskip("kubernetes_validate", reason="pip install -e '.[dev]'")
yaml = pytest.importorskip("yaml", reason="pip install -e '.[dev]'")

DEPLOY = Path(__file__).parents[2] / "deploy" / "kubernetes"
#: Sidecars are on by default since the first of these.
VERSIONS = ("1.29", "1.33", "1.36")
OPERATORS = ("monitoring.coreos.com/v1", "trainer.kubeflow.org/v1alpha1")
#: Variables that are no settings: docs/start.md.
VARIABLES = {
    "EROICA_COLLECTOR",
    "EROICA_TOKEN",
    "EROICA_JOB",
    "EROICA_RUN_DIR",
    "EROICA_RUNTIME_DIR",
    "EROICA_SCRATCH_DIR",
}
#: SIGTERM to verdict: docs/start.md.
VERDICT_S = 30


def why_no_kustomize() -> str:
    """What is missing here, "" if nothing."""
    if shutil.which("kubectl") is None:
        return "no kubectl to build a kustomization with"
    told = subprocess.run(["kubectl", "version", "--client", "-o", "json"], capture_output=True, text=True, check=False)
    version = json.loads(told.stdout)["clientVersion"]
    old = (int(version["major"]), int(re.sub(r"\D", "", version["minor"]))) < (1, 21)
    return f"kubectl {version['gitVersion']} has the kustomize of 2019" if old else ""


pytestmark = pytest.mark.skipif(bool(why_no_kustomize()), reason=why_no_kustomize())


def built(name: str) -> list[dict[str, Any]]:
    """The objects of a kustomization."""
    made = subprocess.run(["kubectl", "kustomize", DEPLOY / name], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    return list(yaml.safe_load_all(made.stdout))


def of_kind(objects: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    return next(one for one in objects if one["kind"] == kind)


def pod_of(name: str) -> dict[str, Any]:
    pod: dict[str, Any] = of_kind(built(name), "Job")["spec"]["template"]["spec"]
    return pod


def containers(objects: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for one in objects:
        pod = one["spec"].get("template", {}).get("spec", {})
        yield from (*pod.get("initContainers", []), *pod.get("containers", []))
        if one["kind"] == "TrainJob":
            yield one["spec"]["trainer"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["prefix", "sidecar"])
def test_manifests_are_valid_for_kubernetes(name: str, version: str) -> None:
    objects = [one for one in built(name) if one["apiVersion"] not in OPERATORS]
    assert {one["kind"] for one in objects} == {"Service", "Job"}
    for one in objects:
        validator.validate(one, version, strict=True)


@pytest.mark.parametrize("name", ["prefix", "sidecar", "trainjob"])
def test_variables_in_the_manifests_are_known_to_eroica(name: str) -> None:
    known = VARIABLES | {f"EROICA_{one.name.upper()}" for one in fields(Settings)}
    given = {variable["name"] for one in containers(built(name)) for variable in one.get("env", [])}
    assert given and given <= known


@pytest.mark.parametrize("name", ["prefix", "sidecar"])
def test_the_pod_gets_time_for_the_verdict_and_its_metrics_are_found(name: str) -> None:
    objects = built(name)
    pod = pod_of(name)
    assert pod["terminationGracePeriodSeconds"] >= VERDICT_S
    monitor = of_kind(objects, "PodMonitor")["spec"]
    (endpoint,) = monitor["podMetricsEndpoints"]
    labels = of_kind(objects, "Job")["spec"]["template"]["metadata"]["labels"]
    wanted = dict(monitor["selector"]["matchLabels"])
    assert wanted.pop("batch.kubernetes.io/job-completion-index") == "0"  # Kubernetes sets it on pods of indexed jobs
    assert wanted.items() <= labels.items()
    with_port = [one for one in containers(objects) if endpoint["port"] in {port["name"] for port in one["ports"]}]
    assert len(with_port) == 1
    listen = {variable["name"]: variable.get("value", "") for variable in with_port[0]["env"]}["EROICA_METRICS_LISTEN"]
    port = next(port for port in with_port[0]["ports"] if port["name"] == endpoint["port"])
    assert listen.rpartition(":")[2] == str(port["containerPort"])
    secret = endpoint["authorization"]["credentials"]
    token = next(variable for variable in with_port[0]["env"] if variable["name"] == "EROICA_METRICS_TOKEN")
    assert token["valueFrom"]["secretKeyRef"] == secret


def test_a_sidecar_shares_processes_and_what_both_exchange() -> None:
    pod = pod_of("sidecar")
    assert pod["shareProcessNamespace"] is True
    (sidecar,), (train,) = pod["initContainers"], pod["containers"]
    assert sidecar["restartPolicy"] == "Always" and "eroica" not in train["command"]
    same = ("EROICA_RUNTIME_DIR", "EROICA_SCRATCH_DIR")
    ours, theirs = ({one["name"]: one.get("value") for one in each["env"]} for each in (sidecar, train))
    assert [ours[name] for name in same] == [theirs[name] for name in same]
    assert theirs["EROICA_JOB"] in sidecar["command"] and theirs["EROICA_RUN_DIR"] in sidecar["command"]
    for each in (sidecar, train):
        assert {"/eroica", "/reports"} <= {mount["mountPath"] for mount in each["volumeMounts"]}


def read_trainjob(job: dict[str, Any]) -> dict[str, Any]:
    """What Kubeflow Trainer's model makes of it; it drops fields that it does not know."""
    models = pytest.importorskip("kubeflow_trainer_api.models", reason="pip install -e '.[dev]'")
    read: dict[str, Any] = models.TrainerV1alpha1TrainJob.from_dict(job).to_dict()
    return read


def read_podmonitor(monitor: dict[str, Any]) -> dict[str, Any]:
    """What the model made from the Prometheus operator's schema makes of it; it drops fields that it does not know."""
    models = pytest.importorskip("cloudcoil.models.prometheus_operator.v1", reason="pip install -e '.[dev]'")
    read = models.PodMonitor.model_validate(monitor)
    kept: dict[str, Any] = read.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return kept


OF_OPERATORS = [
    ("prefix", "PodMonitor", read_podmonitor),
    ("sidecar", "PodMonitor", read_podmonitor),
    ("trainjob", "TrainJob", read_trainjob),
]


@pytest.mark.parametrize(("name", "kind", "read"), OF_OPERATORS)
def test_what_operators_take_is_what_their_published_models_know(
    name: str, kind: str, read: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    given = of_kind(built(name), kind)
    assert read(given) == given


def test_a_trainjob_has_the_prefix_in_its_command() -> None:
    (job,) = built("trainjob")
    assert job["apiVersion"] == "trainer.kubeflow.org/v1alpha1" and job["kind"] == "TrainJob"
    assert job["spec"]["runtimeRef"]["name"] and job["spec"]["trainer"]["command"][:2] == ["eroica", "run"]
