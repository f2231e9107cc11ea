"""The objects of one simulated cluster, with the admission plug-ins that look at other objects."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterable
from typing import Any

from cloudeval.schema import quantity
from cloudeval.values import matches

Object = dict[str, Any]
Objects = list[Object]
Key = tuple[str, str, str]

#: What a cluster has before anything is applied.
_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"


def key_of(value: Object) -> Key:
    """Return (kind, namespace, name) of an object; the namespace is empty for cluster-scoped kinds."""
    metadata = value["metadata"]
    return value["kind"], metadata.get("namespace", ""), metadata.get("name", "")


class Store:
    """Objects by kind, namespace and name, with uids, generations and events.

    Args:
        seed: Seed of generated names, so that a run can be repeated.
    """

    def __init__(self, seed: int = 0) -> None:
        self.objects: dict[Key, Object] = {}
        self.events: list[str] = []
        self._random = random.Random(seed)
        self._uid = 0
        for name in _NAMESPACES:
            self.create(
                {
                    "apiVersion": "v1",
                    "kind": "Namespace",
                    "metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name}},
                }
            )

    def get(self, kind: str, name: str, namespace: str | None = None) -> Object | None:
        """Return an object; without a namespace a cluster-scoped one, or the one in `default`."""
        return self.objects.get((kind, namespace or "default", name)) or self.objects.get((kind, "", name))

    def find(self, key: Key) -> Object | None:
        """Return the object with that key."""
        return self.objects.get(key)

    def list(
        self, kind: str, namespace: str | None = None, selector: Object | None = None, labels: Object | None = None
    ) -> Objects:
        """Return the objects of a kind, of one namespace or all, selected by a label selector or plain labels."""
        found = [value for key, value in self.objects.items() if key[0] == kind and namespace in (None, key[1])]
        if labels is not None:
            selector = {"matchLabels": labels}
        if selector is not None:
            found = [value for value in found if matches(selector, value["metadata"].get("labels"))]
        return found

    def owned(self, kind: str, owner: Object) -> Objects:
        """Return the objects of a kind that the owner controls."""
        uid = owner["metadata"]["uid"]
        return [
            value
            for value in self.list(kind, owner["metadata"].get("namespace"))
            if any(ref["uid"] == uid for ref in value["metadata"].get("ownerReferences") or [])
        ]

    def create(self, value: Object) -> str | None:
        """Add an object. Return why an admission plug-in refuses it, or None."""
        metadata = value["metadata"]
        if not metadata.get("name"):
            metadata["name"] = metadata["generateName"] + self.suffix()
        if value["kind"] == "Pod" and (refusal := self._refuse_pod(value)):
            self.events.append(f"pod {metadata['name']} was refused: {refusal}")
            return refusal
        self._uid += 1
        metadata["uid"] = f"{self._uid:08x}-0000-4000-8000-000000000000"
        metadata["generation"] = 1
        if value["kind"] == "Pod":
            value.setdefault("status", {"phase": "Pending"})
        if value["kind"] == "Namespace":
            metadata.setdefault("labels", {})["kubernetes.io/metadata.name"] = metadata["name"]
            self.objects[("ServiceAccount", metadata["name"], "default")] = {
                "apiVersion": "v1",
                "kind": "ServiceAccount",
                "metadata": {"name": "default", "namespace": metadata["name"], "uid": metadata["uid"] + "-sa"},
            }
        self.objects[key_of(value)] = value
        return None

    def replace(self, value: Object) -> None:
        """Replace an object as `kubectl apply` does: status, uid and owner stay, the generation counts spec changes."""
        old = self.objects[key_of(value)]
        metadata = value["metadata"]
        for key in ("uid", "ownerReferences", "generation"):
            if key in old["metadata"]:
                metadata[key] = old["metadata"][key]
        if old.get("spec") != value.get("spec"):
            metadata["generation"] = metadata.get("generation", 1) + 1
        if "status" in old:
            value["status"] = old["status"]
        for key in ("clusterIP", "nodeName"):  # the server's own choice stays
            if (old.get("spec") or {}).get(key) and not (value.get("spec") or {}).get(key):
                value["spec"][key] = old["spec"][key]
        self.objects[key_of(value)] = value

    def remove(self, value: Object) -> None:
        """Remove an object at once, with everything in it if it is a namespace."""
        self.objects.pop(key_of(value), None)
        if value["kind"] == "Namespace":
            for key in [key for key in self.objects if key[1] == value["metadata"]["name"]]:
                del self.objects[key]

    def delete(self, value: Object, now: float) -> None:
        """Delete an object: pods on a node end first, others go at once."""
        if value["kind"] == "Pod" and value["spec"].get("nodeName"):
            value["metadata"].setdefault("deletionTimestamp", now)
        else:
            self.remove(value)

    def suffix(self, length: int = 5) -> str:
        """Return letters and digits for a generated name."""
        return "".join(self._random.choice(_SUFFIX) for _ in range(length))

    def _refuse_pod(self, pod: Object) -> str | None:
        namespace, spec = pod["metadata"].get("namespace", "default"), pod["spec"]
        account = spec.get("serviceAccountName") or spec.get("serviceAccount") or "default"
        if not self.get("ServiceAccount", account, namespace):
            return f'the service account "{namespace}/{account}" does not exist'
        spec["serviceAccountName"] = account
        name = spec.get("priorityClassName")
        if name:
            priority = self.get("PriorityClass", name)
            if priority is None and name not in ("system-node-critical", "system-cluster-critical"):
                return f'no PriorityClass is named "{name}"'
            spec["priority"] = priority["value"] if priority else 2_000_000_000
        for limit_range in self.list("LimitRange", namespace):
            if refusal := _limit_range(limit_range, spec):
                return refusal
        return self._over_quota(namespace, spec)

    def _over_quota(self, namespace: str, spec: Object) -> str | None:
        pods = [
            pod["spec"]
            for pod in self.list("Pod", namespace)
            if (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")
        ]
        for quota in self.list("ResourceQuota", namespace):
            for name, hard in (quota["spec"].get("hard") or {}).items():
                if name in ("pods", "count/pods"):
                    used, wanted = float(len(pods)), 1.0
                elif name.removeprefix("requests.") in ("cpu", "memory") or name.startswith("limits."):
                    part = "limits" if name.startswith("limits.") else "requests"
                    resource = name.rpartition(".")[2]
                    amounts = [_sum(item, part, resource) for item in [*pods, spec]]
                    if amounts[-1] is None:
                        return f"{quota['metadata']['name']} demands {part}.{resource} of every container"
                    used, wanted = sum(amount or 0 for amount in amounts[:-1]), amounts[-1]
                else:
                    continue
                if used + wanted > quantity(hard):
                    return f"exceeded quota {quota['metadata']['name']}: {name}={hard}"
        return None


def _sum(spec: Object, part: str, resource: str) -> float | None:
    amounts = [((container.get("resources") or {}).get(part) or {}).get(resource) for container in spec["containers"]]
    return None if None in amounts else sum(quantity(amount) for amount in amounts if amount is not None)


def _limit_range(limit_range: Object, spec: Object) -> str | None:
    for limit in limit_range["spec"].get("limits") or []:
        if limit["type"] != "Container":
            continue
        for container in [*spec["containers"], *(spec.get("initContainers") or [])]:
            resources = container.setdefault("resources", {})
            limits, requests = resources.setdefault("limits", {}), resources.setdefault("requests", {})
            for name, amount in (limit.get("default") or {}).items():
                limits.setdefault(name, amount)
            for name, amount in (limit.get("defaultRequest") or limit.get("default") or {}).items():
                requests.setdefault(name, amount)
            for name, most in (limit.get("max") or {}).items():
                if name not in limits or quantity(limits[name]) > quantity(most):
                    return f"maximum {name} usage per container is {most}"
            for name, least in (limit.get("min") or {}).items():
                if name not in requests or quantity(requests[name]) < quantity(least):
                    return f"minimum {name} usage per container is {least}"
    return None


def owner_reference(owner: Object) -> Object:
    """Return the reference by which a controller owns an object."""
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def pod_from_template(
    template: Object, owner: Object, name: str, labels: Object | None = None, generate: bool = False
) -> Object:
    """Return a pod made from a template for its owner."""
    metadata = copy.deepcopy(template.get("metadata") or {})
    metadata["namespace"] = owner["metadata"].get("namespace", "default")
    metadata["generateName" if generate else "name"] = name
    metadata["labels"] = {**(metadata.get("labels") or {}), **(labels or {})}
    metadata["ownerReferences"] = [owner_reference(owner)]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": copy.deepcopy(template["spec"]),
        "status": {"phase": "Pending"},
    }


def is_ready(pod: Object) -> bool:
    """Return True if the pod has the condition Ready and is not being deleted."""
    return condition(pod, "Ready") == "True"


def condition(value: Object, kind: str) -> str | None:
    """Return the status of a condition, or None."""
    for item in (value.get("status") or {}).get("conditions") or []:
        if item["type"] == kind:
            return str(item["status"])
    return None


def is_active(pod: Object) -> bool:
    """Return True unless the pod has finished or is being deleted."""
    return (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed") and not pod["metadata"].get(
        "deletionTimestamp"
    )


def ordinal(names: Iterable[Object]) -> Objects:
    """Return pods by the number at the end of their names."""
    return sorted(names, key=lambda pod: int(pod["metadata"]["name"].rpartition("-")[2]))
