"""Controllers of Service (addresses and endpoints) and PersistentVolumeClaim (binding)."""

from __future__ import annotations

from typing import Any

from cloudeval.schema import quantity
from cloudeval.store import Store, is_active, is_ready

Object = dict[str, Any]


def service(store: Store, owner: Object, _now: float) -> None:
    """Give the Service an address and node ports, and list the pods that its selector selects as endpoints."""
    spec = owner["spec"]
    taken = {item["spec"].get("clusterIP") for item in store.list("Service")}
    if not spec.get("clusterIP") and spec["type"] != "ExternalName":
        spec["clusterIP"] = next(address for n in range(10, 250) if (address := f"10.96.0.{n}") not in taken)
    if spec["type"] in ("NodePort", "LoadBalancer"):
        used = {port.get("nodePort") for item in store.list("Service") for port in item["spec"].get("ports") or []}
        for port in spec["ports"]:
            if not port.get("nodePort"):
                port["nodePort"] = next(free for free in range(30000, 32768) if free not in used)
                used.add(port["nodePort"])
    if not spec.get("selector"):
        return
    addresses: list[Object] = []
    waiting: list[Object] = []
    for pod in store.list("Pod", owner["metadata"]["namespace"], labels=spec["selector"]):
        pod_address = (pod.get("status") or {}).get("podIP")
        if not pod_address or not is_active(pod):
            continue
        entry = {
            "ip": pod_address,
            "pod": pod["metadata"]["name"],
            "hostname": pod["spec"].get("hostname", "")
            if pod["spec"].get("subdomain") == owner["metadata"]["name"]
            else "",
            "ports": {
                port.get("name", ""): number
                for port in spec.get("ports") or []
                if (number := target_port(pod, port)) is not None
            },
        }
        (addresses if is_ready(pod) or spec.get("publishNotReadyAddresses") else waiting).append(entry)
    owner["endpoints"] = addresses
    owner["notReadyEndpoints"] = waiting


def target_port(pod: Object, port: Object) -> int | None:
    """Return the number of the pod's port that a Service's port leads to; None where no container has that name."""
    target = port["targetPort"]
    if isinstance(target, int):
        return target
    for container in pod["spec"]["containers"]:
        for item in container.get("ports") or []:
            if item.get("name") == target and item.get("protocol", "TCP") == port.get("protocol", "TCP"):
                return int(item["containerPort"])
    return None


def bind_claim(store: Store, claim: Object, _now: float) -> None:
    """Bind a claim: to a matching PersistentVolume, or to a new volume of the classes `standard` and default."""
    status = claim.setdefault("status", {"phase": "Pending"})
    if status["phase"] == "Bound":
        return
    spec = claim["spec"]
    wanted = quantity(spec["resources"]["requests"]["storage"])
    class_name = spec.get("storageClassName")
    bound = {(item.get("spec") or {}).get("volumeName") for item in store.list("PersistentVolumeClaim")}
    for volume in store.list("PersistentVolume"):
        offered = volume["spec"]
        named = spec.get("volumeName")
        if (
            named in (None, volume["metadata"]["name"])
            and volume["metadata"]["name"] not in bound
            and (offered.get("storageClassName") or "") == (class_name or "")
            and quantity(offered["capacity"]["storage"]) >= wanted
            and set(spec["accessModes"]) <= set(offered.get("accessModes") or [])
        ):
            spec["volumeName"], status["phase"] = volume["metadata"]["name"], "Bound"
            volume.setdefault("status", {})["phase"] = "Bound"
            return
    classes = {"standard", *(item["metadata"]["name"] for item in store.list("StorageClass"))}
    if not spec.get("volumeName") and (class_name is None or class_name in classes):
        spec["volumeName"], status["phase"] = f"pvc-{claim['metadata']['uid']}", "Bound"
