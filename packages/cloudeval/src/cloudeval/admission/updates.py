"""Fields that must not change when an object is applied again."""

from __future__ import annotations

import copy
from typing import Any

from cloudeval.values import Faults

Object = dict[str, Any]


def check_update(old: Object, new: Object) -> Faults:
    """Return the faults of replacing one object by another of the same kind and name."""
    found = Faults()
    before, after = old.get("spec") or {}, new.get("spec") or {}
    match new["kind"]:
        case "Pod":
            if _pod(before) != _pod(after):
                found.add(
                    "spec",
                    "a pod's spec must not change except for images, activeDeadlineSeconds and added tolerations; delete the pod first",
                )
        case "Deployment" | "DaemonSet" | "ReplicaSet":
            _same(before, after, "selector", found)
        case "StatefulSet":
            for key in {*before, *after} - {
                "replicas",
                "ordinals",
                "template",
                "updateStrategy",
                "persistentVolumeClaimRetentionPolicy",
                "minReadySeconds",
                "revisionHistoryLimit",
            }:
                _same(before, after, key, found)
        case "Job":
            for key in ("selector", "completions", "completionMode", "backoffLimitPerIndex", "podFailurePolicy"):
                _same(before, after, key, found)
            if before.get("template") != after.get("template"):
                found.add("spec.template", "must not change")
        case "Service":
            if before.get("clusterIP") and after.get("clusterIP") and before.get("type") != "ExternalName":
                _same(before, after, "clusterIP", found)
        case "ConfigMap" | "Secret":
            _data(old, new, found)
        case "RoleBinding" | "ClusterRoleBinding":
            if old.get("roleRef") != new.get("roleRef"):
                found.add("roleRef", "must not change; delete the binding first")
        case "PersistentVolumeClaim":
            if _fixed_claim(before) != _fixed_claim(after):
                found.add("spec", "a claim's spec must not change except for resources.requests")
        case "PriorityClass":
            if old.get("value") != new.get("value"):
                found.add("value", "must not change")
    return found


def _fixed_claim(spec: Object) -> Object:
    return {**spec, "resources": None, "volumeName": None, "volumeMode": None}


def _same(before: Object, after: Object, key: str, found: Faults) -> None:
    if before.get(key) != after.get(key):
        found.add(f"spec.{key}", "must not change; delete the object first")


def _pod(spec: Object) -> Object:
    spec = copy.deepcopy(spec)
    for key in ("activeDeadlineSeconds", "tolerations", "nodeName", "terminationGracePeriodSeconds"):
        spec.pop(key, None)
    for container in [*(spec.get("containers") or []), *(spec.get("initContainers") or [])]:
        container.pop("image", None)
        container.pop("imagePullPolicy", None)
    return spec


def _data(old: Object, new: Object, found: Faults) -> None:
    if old["kind"] == "Secret" and (old.get("type") or "Opaque") != (new.get("type") or "Opaque"):
        found.add("type", "must not change")
    if old.get("immutable"):
        for key in ("data", "binaryData"):
            if (old.get(key) or {}) != (new.get(key) or {}):
                found.add(key, "must not change: the object is immutable")
        if not new.get("immutable"):
            found.add("immutable", "must not be unset")
