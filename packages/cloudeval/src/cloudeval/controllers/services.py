"""Controllers of Service (addresses and endpoints) and PersistentVolumeClaim (binding)."""

from cloudeval.schema import quantity
from cloudeval.store import Store, is_active, is_ready
from cloudeval.values import Object, dig


def service(store: Store, owner: Object, _now: float) -> None:
    """Give the Service an address and node ports, and list the pods that its selector selects as endpoints."""
    spec = owner["spec"]
    others = [item["spec"] for item in store.list("Service")]
    if not spec.get("clusterIP") and spec["type"] != "ExternalName":
        taken = {item.get("clusterIP") for item in others}
        spec["clusterIP"] = next(address for n in range(10, 250) if (address := f"10.96.0.{n}") not in taken)
    used = {port.get("nodePort") for item in others for port in item.get("ports") or []}
    for port in spec["ports"] if spec["type"] in ("NodePort", "LoadBalancer") else []:
        if not port.get("nodePort"):
            port["nodePort"] = next(free for free in range(30000, 32768) if free not in used)
            used.add(port["nodePort"])
    if not spec.get("selector"):
        return
    owner["endpoints"], owner["notReadyEndpoints"] = [], []
    for pod in store.list("Pod", owner["metadata"]["namespace"], labels=spec["selector"]):
        if not dig(pod, "status.podIP") or not is_active(pod):
            continue
        named = pod["spec"].get("subdomain") == owner["metadata"]["name"]
        numbers = {port.get("name", ""): _target_port(pod, port) for port in spec.get("ports") or []}
        entry = {
            "ip": pod["status"]["podIP"],
            "pod": pod["metadata"]["name"],
            "hostname": pod["spec"].get("hostname", "") if named else "",
            "ports": {name: number for name, number in numbers.items() if number is not None},
        }
        ready = is_ready(pod) or spec.get("publishNotReadyAddresses")
        owner["endpoints" if ready else "notReadyEndpoints"].append(entry)


def _target_port(pod: Object, port: Object) -> int | None:
    """Return the number of the pod's port that a Service's port leads to; None where no container has that name."""
    target = port["targetPort"]
    if isinstance(target, int):
        return target
    for item in [item for container in pod["spec"]["containers"] for item in container.get("ports") or []]:
        if item.get("name") == target and item.get("protocol", "TCP") == port.get("protocol", "TCP"):
            return int(item["containerPort"])
    return None


def bind_claim(store: Store, claim: Object, _now: float) -> None:
    """Bind a claim: to a matching PersistentVolume, or to a new volume of the classes `standard` and default."""
    spec, status = claim["spec"], claim.setdefault("status", {"phase": "Pending"})
    if status["phase"] == "Bound":
        return
    class_name = spec.get("storageClassName")
    bound = {dig(item, "spec.volumeName") for item in store.list("PersistentVolumeClaim")}
    for volume in store.list("PersistentVolume"):
        offered, name = volume["spec"], volume["metadata"]["name"]
        if (
            spec.get("volumeName") in (None, name)
            and name not in bound
            and (offered.get("storageClassName") or "") == (class_name or "")
            and quantity(offered["capacity"]["storage"]) >= quantity(spec["resources"]["requests"]["storage"])
            and set(spec["accessModes"]) <= set(offered.get("accessModes") or [])
        ):
            spec["volumeName"], status["phase"] = name, "Bound"
            volume.setdefault("status", {})["phase"] = "Bound"
            return
    classes = {None, "standard", *(item["metadata"]["name"] for item in store.list("StorageClass"))}
    if not spec.get("volumeName") and class_name in classes:
        spec["volumeName"], status["phase"] = f"pvc-{claim['metadata']['uid']}", "Bound"
