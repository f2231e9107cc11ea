"""Fields that must not change when an object is applied again."""

import copy
from collections.abc import Iterator

from cloudeval.schema import Fault, Object

#: By kind, the fields of the spec that are fixed.
_FIXED = {
    **dict.fromkeys(("Deployment", "DaemonSet", "ReplicaSet"), ("selector",)),
    "Job": ("selector", "completions", "completionMode", "backoffLimitPerIndex", "podFailurePolicy", "template"),
}
#: By kind, the fields of the spec that may change, where all others are fixed.
_FREE = {
    "StatefulSet": "replicas ordinals template updateStrategy persistentVolumeClaimRetentionPolicy minReadySeconds revisionHistoryLimit",
    "PersistentVolumeClaim": "resources volumeName volumeMode",
    "Pod": "activeDeadlineSeconds tolerations nodeName terminationGracePeriodSeconds",
}


def check_update(old: Object, new: Object) -> list[Fault]:
    """Return the faults of replacing one object by another of the same kind and name."""
    return [Fault(path, f"must not change{why}", "admission") for path, why in _changes(old, new)]


def _changes(old: Object, new: Object) -> Iterator[tuple[str, str]]:
    kind, before, after = new["kind"], old.get("spec") or {}, new.get("spec") or {}
    fixed = set(_FIXED.get(kind, ()))
    if kind == "Pod":
        before, after = _without_images(before), _without_images(after)
    if kind in _FREE:
        fixed = {*before, *after} - set(_FREE[kind].split())
    addressed = before.get("clusterIP") and after.get("clusterIP")
    if kind == "Service" and addressed and before.get("type") != "ExternalName":
        fixed = {"clusterIP"}
    for key in sorted(fixed):
        if before.get(key) != after.get(key):
            yield f"spec.{key}", "; delete the object first"
    if kind == "Secret" and (old.get("type") or "Opaque") != (new.get("type") or "Opaque"):
        yield "type", ""
    if kind in ("ConfigMap", "Secret") and old.get("immutable"):
        for key in ("data", "binaryData", "immutable"):
            if (old.get(key) or {}) != (new.get(key) or {}):
                yield key, ": the object is immutable"
    for key, owner in (("roleRef", "RoleBinding"), ("value", "PriorityClass")):
        if kind.endswith(owner) and old.get(key) != new.get(key):
            yield key, "; delete the object first"


def _without_images(spec: Object) -> Object:
    spec = copy.deepcopy(spec)
    for container in [*(spec.get("containers") or []), *(spec.get("initContainers") or [])]:
        container.pop("image", None)
        container.pop("imagePullPolicy", None)
    return spec
