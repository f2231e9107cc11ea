"""The objects of one simulated cluster, with the admission plug-ins that look at other objects."""

import copy
import random
from typing import Any

from cloudeval.schema import quantity
from cloudeval.values import Object, dig, matches

Objects = list[Object]
Key = tuple[str, str, str]

#: Namespaces of a cluster to which nothing has been applied.
_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
#: Letters and digits of generated names, as Kubernetes uses them.
ALPHABET = "bcdfghjklmnpqrstvwxz2456789"


def make(version: str, kind: str, name: str, namespace: str = "", **fields: Any) -> Object:
    """Return an object with its metadata; `labels`, `annotations` and `ownerReferences` among the fields go there."""
    metadata: Object = {"name": name} | ({"namespace": namespace} if namespace else {})
    for key in ("labels", "annotations", "ownerReferences"):
        if key in fields:
            metadata[key] = fields.pop(key)
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **fields}


def key_of(value: Object) -> Key:
    """Return (kind, namespace, name) of an object; the namespace is empty for cluster-scoped kinds."""
    metadata = value["metadata"]
    return value["kind"], metadata.get("namespace", ""), metadata.get("name", "")


def containers_of(spec: Object) -> Objects:
    """Return the containers of a pod spec, init containers last."""
    return [*(spec.get("containers") or []), *(spec.get("initContainers") or [])]


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
            self.create(make("v1", "Namespace", name))

    def get(self, kind: str, name: str, namespace: str | None = None) -> Object | None:
        """Return an object; without a namespace a cluster-scoped one, or the one in `default`."""
        return self.objects.get((kind, namespace or "default", name)) or self.objects.get((kind, "", name))

    def list(
        self, kind: str, namespace: str | None = None, selector: Object | None = None, labels: Object | None = None
    ) -> Objects:
        """Return the objects of a kind, of one namespace or all, selected by a label selector or plain labels."""
        found = [value for key, value in self.objects.items() if key[0] == kind and namespace in (None, key[1])]
        selector = selector if labels is None else {"matchLabels": labels}
        return [value for value in found if selector is None or matches(selector, value["metadata"].get("labels"))]

    def owned(self, kind: str, owner: Object, *, active: bool = False) -> Objects:
        """Return the objects of a kind that the owner controls; with `active` only pods that have not ended."""
        uid, namespace = owner["metadata"]["uid"], owner["metadata"].get("namespace")
        return [
            value
            for value in self.list(kind, namespace)
            if any(ref["uid"] == uid for ref in value["metadata"].get("ownerReferences") or [])
            and (not active or is_active(value))
        ]

    def create(self, value: Object) -> str | None:
        """Add an object. Return why an admission plug-in refuses it, or None."""
        metadata, kind = value["metadata"], value["kind"]
        if not metadata.get("name"):
            metadata["name"] = metadata["generateName"] + "".join(self._random.choices(ALPHABET, k=5))
        if kind == "Pod" and (refusal := self._refuse_pod(value)):
            self.events.append(f"pod {metadata['name']} was refused: {refusal}")
            return refusal
        self._uid += 1
        metadata |= {"uid": f"{self._uid:08x}-0000-4000-8000-000000000000", "generation": 1}
        if kind == "Pod":
            value.setdefault("status", {"phase": "Pending"})
        if kind == "Namespace":
            metadata.setdefault("labels", {})["kubernetes.io/metadata.name"] = metadata["name"]
            account = make("v1", "ServiceAccount", "default", metadata["name"])
            account["metadata"]["uid"] = metadata["uid"] + "-sa"
            self.objects[key_of(account)] = account
        self.objects[key_of(value)] = value
        return None

    def replace(self, value: Object) -> None:
        """Replace an object as `kubectl apply` does: status, uid and owner stay, the generation counts spec changes."""
        old, metadata = self.objects[key_of(value)], value["metadata"]
        kept = ("uid", "ownerReferences", "generation")
        metadata |= {key: item for key, item in old["metadata"].items() if key in kept}
        if old.get("spec") != value.get("spec"):
            metadata["generation"] = metadata.get("generation", 1) + 1
        if "status" in old:
            value["status"] = old["status"]
        for key in ("clusterIP", "nodeName"):  # the server's own choice stays
            if dig(old, f"spec.{key}") and not dig(value, f"spec.{key}"):
                value["spec"][key] = old["spec"][key]
        self.objects[key_of(value)] = value

    def remove(self, value: Object) -> None:
        """Remove an object at once, with everything in it if it is a namespace."""
        self.objects.pop(key_of(value), None)
        if value["kind"] == "Namespace":
            self.objects = {key: item for key, item in self.objects.items() if key[1] != value["metadata"]["name"]}

    def delete(self, value: Object, now: float) -> None:
        """Delete an object: pods on a node end first, others go at once."""
        if value["kind"] == "Pod" and value["spec"].get("nodeName"):
            value["metadata"].setdefault("deletionTimestamp", now)
        else:
            self.remove(value)

    def _refuse_pod(self, pod: Object) -> str | None:
        namespace, spec = pod["metadata"].get("namespace", "default"), pod["spec"]
        account = spec.get("serviceAccountName") or spec.get("serviceAccount") or "default"
        if not self.get("ServiceAccount", account, namespace):
            return f'the service account "{namespace}/{account}" does not exist'
        spec["serviceAccountName"] = account
        if name := spec.get("priorityClassName"):
            priority = self.get("PriorityClass", name)
            if priority is None and name not in ("system-node-critical", "system-cluster-critical"):
                return f'no PriorityClass is named "{name}"'
            spec["priority"] = priority["value"] if priority else 2_000_000_000
        for limit in [limit for item in self.list("LimitRange", namespace) for limit in dig(item, "spec.limits", [])]:
            if limit["type"] == "Container" and (refusal := _limit(limit, spec)):
                return refusal
        return self._over_quota(namespace, spec)

    def _over_quota(self, namespace: str, spec: Object) -> str | None:
        pods = [pod["spec"] for pod in self.list("Pod", namespace) if phase(pod) not in ("Succeeded", "Failed")]
        for quota in self.list("ResourceQuota", namespace):
            for name, hard in dig(quota, "spec.hard", {}).items():
                if name in ("pods", "count/pods"):
                    used, wanted = float(len(pods)), 1.0
                elif name.removeprefix("requests.") in ("cpu", "memory") or name.startswith("limits."):
                    part, resource = "limits" if name.startswith("limits.") else "requests", name.rpartition(".")[2]
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
    amounts: list[Any] = [dig(item, f"resources.{part}", {}).get(resource) for item in spec["containers"]]
    return None if None in amounts else sum(map(quantity, amounts))


def _limit(limit: Object, spec: Object) -> str | None:
    default = limit.get("default") or {}
    for container in containers_of(spec):
        resources = container.setdefault("resources", {})
        limits = resources["limits"] = default | (resources.get("limits") or {})
        requests = resources["requests"] = (limit.get("defaultRequest") or default) | (resources.get("requests") or {})
        for name, most in (limit.get("max") or {}).items():
            if name not in limits or quantity(limits[name]) > quantity(most):
                return f"maximum {name} usage per container is {most}"
        for name, least in (limit.get("min") or {}).items():
            if name not in requests or quantity(requests[name]) < quantity(least):
                return f"minimum {name} usage per container is {least}"
    return None


def owner_reference(owner: Object) -> Object:
    """Return the reference by which a controller owns an object."""
    reference = {"apiVersion": owner["apiVersion"], "kind": owner["kind"]}
    reference |= {key: owner["metadata"][key] for key in ("name", "uid")}
    return {**reference, "controller": True, "blockOwnerDeletion": True}


def pod_from_template(template: Object, owner: Object, labels: Object | None = None, name: str = "") -> Object:
    """Return a pod made from a template for its owner. Without a name it gets a generated one."""
    metadata = copy.deepcopy(template.get("metadata") or {})
    metadata["namespace"] = owner["metadata"].get("namespace", "default")
    metadata |= {"name": name} if name else {"generateName": f"{owner['metadata']['name']}-"}
    metadata["labels"] = {**(metadata.get("labels") or {}), **(labels or {})}
    metadata["ownerReferences"] = [owner_reference(owner)]
    spec = copy.deepcopy(template["spec"])
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}


def phase(pod: Object) -> str:
    """Return a pod's phase."""
    return str(dig(pod, "status.phase", "Pending"))


def is_ready(pod: Object) -> bool:
    """Return True if the pod has the condition Ready."""
    return condition(pod, "Ready") == "True"


def condition(value: Object, kind: str) -> str | None:
    """Return the status of a condition, or None."""
    return next((str(item["status"]) for item in dig(value, "status.conditions", []) if item["type"] == kind), None)


def is_active(pod: Object) -> bool:
    """Return True unless the pod has finished or is being deleted."""
    return phase(pod) not in ("Succeeded", "Failed") and not pod["metadata"].get("deletionTimestamp")
