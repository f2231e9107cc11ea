"""Defaults that the server sets on admitted objects, as far as controllers, runners and checks read them."""

import base64
from collections.abc import Callable
from typing import Any

from cloudeval.admission.rules import CLUSTER_SCOPED
from cloudeval.schema import Object, Part

_RBAC = "rbac.authorization.k8s.io"
_TCP = {"protocol": "TCP"}
_CRON_JOB = {
    "concurrencyPolicy": "Allow",
    "suspend": False,
    "successfulJobsHistoryLimit": 3,
    "failedJobsHistoryLimit": 1,
}
#: Values of missing fields by type. A probe's 0 counts as missing, too.
_VALUES: dict[str, Object] = {
    "PodSpec": {"restartPolicy": "Always", "terminationGracePeriodSeconds": 30, "dnsPolicy": "ClusterFirst"},
    "Container": {"terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"},
    "ContainerPort": _TCP,
    "ServicePort": _TCP,
    "NetworkPolicyPort": _TCP,
    "Probe": {"periodSeconds": 10, "timeoutSeconds": 1, "successThreshold": 1, "failureThreshold": 3},
    "DeploymentSpec": {"replicas": 1, "revisionHistoryLimit": 10, "progressDeadlineSeconds": 600},
    "ReplicaSetSpec": {"replicas": 1},
    "StatefulSetSpec": {"replicas": 1, "podManagementPolicy": "OrderedReady", "revisionHistoryLimit": 10},
    "JobSpec": {"parallelism": 1, "completionMode": "NonIndexed", "suspend": False},
    "CronJobSpec": _CRON_JOB,
    "ServiceSpec": {"type": "ClusterIP", "sessionAffinity": "None"},
    "Secret": {"type": "Opaque"},
    "PersistentVolumeClaimSpec": {"volumeMode": "Filesystem"},
    "RoleRef": {"apiGroup": _RBAC},
}


def set_defaults(value: Object, parts: list[Part]) -> None:
    """Set defaults in place, in an object and its parts."""
    metadata = value.setdefault("metadata", {})
    if value["kind"] not in CLUSTER_SCOPED:
        metadata.setdefault("namespace", "default")
    for part in parts:
        if special := _SPECIAL.get(part.type):
            special(part.value)
        for key, default in _VALUES.get(part.type, {}).items():
            if part.value.get(key) is None or (part.type == "Probe" and part.value[key] == 0):
                part.value[key] = default
    for subject in value.get("subjects") or [] if "RoleBinding" in value["kind"] else []:
        if subject["kind"] != "ServiceAccount":
            subject.setdefault("apiGroup", _RBAC)
        elif value["kind"] == "RoleBinding":
            subject.setdefault("namespace", metadata["namespace"])


def _rolling(key: str, **values: Any) -> Callable[[Object], None]:
    def special(spec: Object) -> None:
        strategy = spec.setdefault(key, {})
        if strategy.setdefault("type", "RollingUpdate") == "RollingUpdate":
            strategy["rollingUpdate"] = values | (strategy.get("rollingUpdate") or {})

    return special


def _container(container: Object) -> None:
    tag = container["image"].rpartition("/")[2].partition(":")[2]
    always = tag in ("", "latest") and "@" not in container["image"]
    container.setdefault("imagePullPolicy", "Always" if always else "IfNotPresent")


def _resources(resources: Object) -> None:
    if resources.get("limits"):
        resources["requests"] = resources["limits"] | (resources.get("requests") or {})


def _volume(volume: Object) -> None:
    if len(volume) == 1:  # the server takes a volume without a source for an emptyDir
        volume["emptyDir"] = {}


def _job(spec: Object) -> None:
    if spec.get("completions") is None and spec.get("parallelism") is None:
        spec["completions"] = 1
    spec.setdefault("backoffLimit", 6)


def _port(port: Object) -> None:
    if port.get("targetPort") in (None, 0, ""):
        port["targetPort"] = port["port"]


def _secret(value: Object) -> None:
    for key, text in (value.pop("stringData", None) or {}).items():
        value.setdefault("data", {})[key] = base64.b64encode(text.encode()).decode()


def _network_policy(value: Object) -> None:
    spec = value.setdefault("spec", {})
    spec.setdefault("podSelector", {})
    if not spec.get("policyTypes"):
        spec["policyTypes"] = ["Ingress", *(["Egress"] if spec.get("egress") else [])]


_SPECIAL: dict[str, Callable[[Object], None]] = {
    "DeploymentSpec": _rolling("strategy", maxUnavailable="25%", maxSurge="25%"),
    "StatefulSetSpec": _rolling("updateStrategy", partition=0),
    "DaemonSetSpec": _rolling("updateStrategy", maxUnavailable=1, maxSurge=0),
    "Container": _container,
    "ResourceRequirements": _resources,
    "Volume": _volume,
    "JobSpec": _job,
    "ServicePort": _port,
    "Secret": _secret,
    "NetworkPolicy": _network_policy,
}
