"""Training kinds: the pods, variables and queues that an operator would make of them. By reading, not by running."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cloudeval.schema import quantity
from cloudeval.store import Store

Object = dict[str, Any]


@dataclass(frozen=True)
class TrainingPod:
    """A pod that an operator would create: its name, the variables that it gets, and its spec."""

    name: str
    role: str
    env: dict[str, str]
    spec: Object

    def request(self, resource: str) -> float:
        """Return what its containers ask for of a resource."""
        parts = [(container.get("resources") or {}) for container in self.spec["containers"]]
        return sum(
            quantity((part.get("requests") or {}).get(resource) or (part.get("limits") or {}).get(resource, 0))
            for part in parts
        )


def training_pods(store: Store, kind: str, name: str) -> list[TrainingPod]:
    """Return the pods of a PyTorchJob or JobSet; none while it is suspended or does not exist."""
    owner = store.get(kind, name)
    if owner is None:
        return []
    return list(_pytorch_pods(owner) if kind == "PyTorchJob" else _job_set_pods(owner))


def _pytorch_pods(owner: Object) -> list[TrainingPod]:
    spec, name = owner["spec"], owner["metadata"]["name"]
    if (spec.get("runPolicy") or {}).get("suspend"):
        return []
    replicas = spec["pytorchReplicaSpecs"]
    sizes = {role: replicas[role].get("replicas", 1) for role in ("Master", "Worker") if role in replicas}
    processes = int(spec["nprocPerNode"]) if str(spec.get("nprocPerNode", "")).isdigit() else 1
    elastic = spec.get("elasticPolicy")
    pods = []
    for role, size in sizes.items():
        for index in range(size):
            rank = index + (sizes.get("Master", 0) if role == "Worker" else 0)
            if elastic:
                env = {
                    "PET_NNODES": f"{elastic.get('minReplicas', sum(sizes.values()))}:{elastic.get('maxReplicas', sum(sizes.values()))}",
                    "PET_RDZV_ENDPOINT": f"{name}-worker-0:{elastic.get('rdzvPort', 23456)}",
                    "PET_RDZV_BACKEND": elastic.get("rdzvBackend", "c10d"),
                    "PET_MAX_RESTARTS": str(elastic.get("maxRestarts", "")),
                    "PET_NPROC_PER_NODE": str(elastic.get("nProcPerNode", spec.get("nprocPerNode", ""))),
                }
            else:
                env = {
                    "MASTER_ADDR": f"{name}-master-0",
                    "MASTER_PORT": _master_port(replicas),
                    "WORLD_SIZE": str(sum(sizes.values()) * processes),
                    "RANK": str(rank),
                    "PET_NNODES": str(sum(sizes.values())),
                    "PET_NODE_RANK": str(rank),
                    "PET_NPROC_PER_NODE": str(spec.get("nprocPerNode", "auto")),
                }
            template = replicas[role]["template"]["spec"]
            pods.append(
                TrainingPod(
                    f"{name}-{role.lower()}-{index}",
                    role,
                    env,
                    {**template, "restartPolicy": replicas[role].get("restartPolicy", "OnFailure")},
                )
            )
    return pods


def _master_port(replicas: Object) -> str:
    for container in (replicas.get("Master") or {}).get("template", {}).get("spec", {}).get("containers", []):
        for port in container.get("ports") or []:
            if port.get("name") == "pytorchjob-port":
                return str(port["containerPort"])
    return "23456"


def _job_set_pods(owner: Object) -> list[TrainingPod]:
    spec, name = owner["spec"], owner["metadata"]["name"]
    if spec.get("suspend"):
        return []
    pods = []
    for job in spec["replicatedJobs"]:
        inner = job["template"]["spec"]
        for replica in range(job.get("replicas", 1)):
            for index in range(
                min(inner.get("parallelism", 1), inner.get("completions") or inner.get("parallelism", 1))
            ):
                pod = f"{name}-{job['name']}-{replica}-{index}"
                subdomain = (spec.get("network") or {}).get("subdomain", name)
                named = (spec.get("network") or {}).get("enableDNSHostnames", True)
                env = {
                    "JOB_COMPLETION_INDEX": str(index) if inner.get("completionMode") == "Indexed" else "",
                    "HOST": f"{pod}.{subdomain}" if named else "",
                }
                pods.append(TrainingPod(pod, job["name"], env, inner["template"]["spec"]))
    return pods


def quota(store: Store, local_queue: str, flavor: str, resource: str, namespace: str = "default") -> float:
    """Return the nominal quota that a local queue's cluster queue has of a flavor's resource; -1 where there is none."""
    local = store.get("LocalQueue", local_queue, namespace)
    cluster = store.get("ClusterQueue", local["spec"]["clusterQueue"]) if local else None
    for group in (cluster or {}).get("spec", {}).get("resourceGroups") or []:
        for item in group["flavors"]:
            if item["name"] == flavor and store.get("ResourceFlavor", flavor):
                for entry in item["resources"]:
                    if entry["name"] == resource:
                        return quantity(entry["nominalQuota"])
    return -1


def admits_workload(store: Store, kind: str, name: str, namespace: str = "default") -> str:
    """Return the flavor on which Kueue would start a job at once, or why it would not: `held: …`."""
    owner = store.get(kind, name, namespace)
    if owner is None:
        return "held: no such job"
    queue = (owner["metadata"].get("labels") or {}).get("kueue.x-k8s.io/queue-name")
    local = store.get("LocalQueue", queue, namespace) if queue else None
    cluster = store.get("ClusterQueue", local["spec"]["clusterQueue"]) if local else None
    if queue is None:
        return "not managed: no queue label"
    if local is None or cluster is None:
        return "held: no such queue"
    if cluster["spec"].get("namespaceSelector") is None:
        return "held: the cluster queue selects no namespace"
    if cluster["spec"].get("stopPolicy") in ("Hold", "HoldAndDrain"):
        return "held: the cluster queue is stopped"
    wanted = _wanted(store, owner)
    for group in cluster["spec"].get("resourceGroups") or []:
        for item in group["flavors"]:
            quotas = {entry["name"]: quantity(entry["nominalQuota"]) for entry in item["resources"]}
            if store.get("ResourceFlavor", item["name"]) and all(
                amount <= quotas.get(resource, 0) for resource, amount in wanted.items()
            ):
                return str(item["name"])
    return "held: too little quota"


def _wanted(store: Store, owner: Object) -> dict[str, float]:
    if owner["kind"] == "Job":
        spec = owner["spec"]
        pods = [TrainingPod("", "", {}, spec["template"]["spec"])] * spec.get("parallelism", 1)
    else:
        pods = training_pods(store, owner["kind"], owner["metadata"]["name"])
    names = {
        name
        for pod in pods
        for c in pod.spec["containers"]
        for part in ("requests", "limits")
        for name in ((c.get("resources") or {}).get(part) or {})
    }
    return {name: sum(pod.request(name) for pod in pods) for name in names}
