"""Defaults that the server sets on admitted objects, as far as controllers, runners and checks read them."""

from __future__ import annotations

import base64
from typing import Any

from cloudeval.admission.objects import CLUSTER_SCOPED

Object = dict[str, Any]


def set_defaults(value: Object) -> None:
    """Set defaults in place."""
    metadata = value.setdefault("metadata", {})
    if value["kind"] not in CLUSTER_SCOPED:
        metadata.setdefault("namespace", "default")
    spec = value.get("spec") or {}
    match value["kind"]:
        case "Pod":
            pod_defaults(spec)
        case "Deployment":
            _set(spec, replicas=1, revisionHistoryLimit=10, progressDeadlineSeconds=600)
            strategy = spec.setdefault("strategy", {})
            if strategy.setdefault("type", "RollingUpdate") == "RollingUpdate":
                _set(strategy.setdefault("rollingUpdate", {}), maxUnavailable="25%", maxSurge="25%")
            pod_defaults(spec["template"]["spec"])
        case "ReplicaSet":
            _set(spec, replicas=1)
            pod_defaults(spec["template"]["spec"])
        case "StatefulSet":
            _set(spec, replicas=1, podManagementPolicy="OrderedReady", revisionHistoryLimit=10)
            strategy = spec.setdefault("updateStrategy", {})
            if strategy.setdefault("type", "RollingUpdate") == "RollingUpdate":
                _set(strategy.setdefault("rollingUpdate", {}), partition=0)
            pod_defaults(spec["template"]["spec"])
        case "DaemonSet":
            strategy = spec.setdefault("updateStrategy", {})
            if strategy.setdefault("type", "RollingUpdate") == "RollingUpdate":
                _set(strategy.setdefault("rollingUpdate", {}), maxUnavailable=1, maxSurge=0)
            pod_defaults(spec["template"]["spec"])
        case "Job":
            job_defaults(spec)
        case "CronJob":
            _set(spec, concurrencyPolicy="Allow", suspend=False, successfulJobsHistoryLimit=3, failedJobsHistoryLimit=1)
            job_defaults(spec["jobTemplate"]["spec"])
        case "Service":
            _service(spec)
        case "Secret":
            _secret(value)
        case "PersistentVolumeClaim":
            _set(spec, volumeMode="Filesystem")
        case "NetworkPolicy":
            _network_policy(value.setdefault("spec", {}))
        case "RoleBinding" | "ClusterRoleBinding":
            value["roleRef"].setdefault("apiGroup", "rbac.authorization.k8s.io")
            for subject in value.get("subjects") or []:
                if subject["kind"] == "ServiceAccount" and value["kind"] == "RoleBinding":
                    subject.setdefault("namespace", metadata["namespace"])
                elif subject["kind"] != "ServiceAccount":
                    subject.setdefault("apiGroup", "rbac.authorization.k8s.io")


def _set(target: Object, **defaults: Any) -> None:
    for key, value in defaults.items():
        if target.get(key) is None:
            target[key] = value


def pod_defaults(spec: Object) -> None:
    """Set the defaults of a pod spec in place."""
    _set(spec, restartPolicy="Always", terminationGracePeriodSeconds=30, dnsPolicy="ClusterFirst")
    for container in [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]:
        tag = container["image"].rpartition("/")[2].partition(":")[2]
        _set(
            container,
            imagePullPolicy="Always" if tag in ("", "latest") and "@" not in container["image"] else "IfNotPresent",
            terminationMessagePath="/dev/termination-log",
            terminationMessagePolicy="File",
        )
        for port in container.get("ports") or []:
            _set(port, protocol="TCP")
        for key in ("livenessProbe", "readinessProbe", "startupProbe"):
            if container.get(key) is not None:
                _set(container[key], periodSeconds=10, timeoutSeconds=1, successThreshold=1, failureThreshold=3)
                for number in ("periodSeconds", "timeoutSeconds", "successThreshold", "failureThreshold"):
                    container[key][number] = container[key][number] or {"failureThreshold": 3, "periodSeconds": 10}.get(
                        number, 1
                    )
        resources = container.get("resources") or {}
        if resources.get("limits"):
            requests = resources.setdefault("requests", {})
            for name, amount in resources["limits"].items():
                requests.setdefault(name, amount)
            container["resources"] = resources


def job_defaults(spec: Object) -> None:
    """Set the defaults of a Job's spec in place."""
    if spec.get("completions") is None and spec.get("parallelism") is None:
        spec["completions"] = 1
    _set(
        spec,
        parallelism=1,
        completionMode="NonIndexed",
        suspend=False,
        backoffLimit=2**31 - 1 if spec.get("backoffLimitPerIndex") is not None else 6,
    )
    pod_defaults(spec["template"]["spec"])


def _service(spec: Object) -> None:
    _set(spec, type="ClusterIP", sessionAffinity="None")
    for port in spec.get("ports") or []:
        _set(port, protocol="TCP")
        if port.get("targetPort") in (None, 0, ""):
            port["targetPort"] = port["port"]


def _secret(value: Object) -> None:
    _set(value, type="Opaque")
    plain = value.pop("stringData", None) or {}
    if plain:
        data = value.setdefault("data", {})
        for key, text in plain.items():
            data[key] = base64.b64encode(text.encode()).decode()


def _network_policy(spec: Object) -> None:
    _set(spec, podSelector={})
    if not spec.get("policyTypes"):
        spec["policyTypes"] = ["Ingress", *(["Egress"] if spec.get("egress") else [])]
    for direction in ("ingress", "egress"):
        for rule in spec.get(direction) or []:
            for port in (rule or {}).get("ports") or []:
                _set(port, protocol="TCP")
