"""Training kinds: the pods, variables and queues that an operator would make of them. By reading, not by running."""

from collections.abc import Iterator
from dataclasses import dataclass

from cloudeval.schema import quantity
from cloudeval.store import Store
from cloudeval.values import Object, dig


@dataclass(frozen=True)
class TrainingPod:
    """A pod that an operator would create: its name, the variables that it gets, and its spec."""

    name: str
    role: str
    env: dict[str, str]
    spec: Object

    def request(self, resource: str) -> float:
        """Return what its containers ask for of a resource."""
        parts = [container.get("resources") or {} for container in self.spec["containers"]]
        asked = [dig(part, "requests", {}).get(resource) or dig(part, "limits", {}).get(resource, 0) for part in parts]
        return sum(map(quantity, asked))


def training_pods(store: Store, kind: str, name: str) -> list[TrainingPod]:
    """Return the pods of a PyTorchJob or JobSet; none while it is suspended or does not exist."""
    owner = store.get(kind, name)
    if owner is None or owner["spec"].get("suspend") or dig(owner, "spec.runPolicy.suspend"):
        return []
    return list((_pytorch_pods if kind == "PyTorchJob" else _job_set_pods)(owner["spec"], name))


def _pytorch_pods(spec: Object, name: str) -> Iterator[TrainingPod]:
    replicas, per_node = spec["pytorchReplicaSpecs"], spec.get("nprocPerNode")
    sizes = {role: replicas[role].get("replicas", 1) for role in ("Master", "Worker") if role in replicas}
    total, processes = sum(sizes.values()), int(per_node or 1) if str(per_node).isdigit() else 1
    ports = [port for item in dig(replicas, "Master.template.spec.containers", []) for port in item.get("ports") or []]
    named = [port["containerPort"] for port in ports if port.get("name") == "pytorchjob-port"]
    for rank, (role, index) in enumerate((role, index) for role, size in sizes.items() for index in range(size)):
        if elastic := spec.get("elasticPolicy"):
            env = {
                "PET_NNODES": f"{elastic.get('minReplicas', total)}:{elastic.get('maxReplicas', total)}",
                "PET_RDZV_ENDPOINT": f"{name}-worker-0:{elastic.get('rdzvPort', 23456)}",
                "PET_RDZV_BACKEND": elastic.get("rdzvBackend", "c10d"),
                "PET_MAX_RESTARTS": str(elastic.get("maxRestarts", "")),
                "PET_NPROC_PER_NODE": str(elastic.get("nProcPerNode", per_node or "")),
            }
        else:
            env = {
                "MASTER_ADDR": f"{name}-master-0",
                "MASTER_PORT": str(named[0] if named else 23456),
                "WORLD_SIZE": str(total * processes),
                "RANK": str(rank),
                "PET_NNODES": str(total),
                "PET_NODE_RANK": str(rank),
                "PET_NPROC_PER_NODE": str(per_node or "auto"),
            }
        policy = replicas[role].get("restartPolicy", "OnFailure")
        pod_spec = {**replicas[role]["template"]["spec"], "restartPolicy": policy}
        yield TrainingPod(f"{name}-{role.lower()}-{index}", role, env, pod_spec)


def _job_set_pods(spec: Object, name: str) -> Iterator[TrainingPod]:
    subdomain, named = dig(spec, "network.subdomain", name), dig(spec, "network.enableDNSHostnames", True)
    for job in spec["replicatedJobs"]:
        inner = job["template"]["spec"]
        at_once = inner.get("parallelism", 1)
        for replica in range(job.get("replicas", 1)):
            for index in range(min(at_once, inner.get("completions") or at_once)):
                pod = f"{name}-{job['name']}-{replica}-{index}"
                indexed = inner.get("completionMode") == "Indexed"
                env = {"JOB_COMPLETION_INDEX": str(index) if indexed else ""}
                env["HOST"] = f"{pod}.{subdomain}" if named else ""
                yield TrainingPod(pod, job["name"], env, inner["template"]["spec"])


def _flavors(store: Store, local: Object | None) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield the flavors that exist of a local queue's cluster queue, each with its quota by resource."""
    cluster = store.get("ClusterQueue", local["spec"]["clusterQueue"]) if local else None
    for group in dig(cluster, "spec.resourceGroups", []):
        for item in group["flavors"]:
            if store.get("ResourceFlavor", item["name"]):
                yield item["name"], {entry["name"]: quantity(entry["nominalQuota"]) for entry in item["resources"]}


def quota(store: Store, local_queue: str, flavor: str, resource: str, namespace: str = "default") -> float:
    """Return the nominal quota that a local queue's cluster queue has of a flavor's resource; -1 where there is none."""
    flavors = dict(_flavors(store, store.get("LocalQueue", local_queue, namespace)))
    return flavors.get(flavor, {}).get(resource, -1)


def admits_workload(store: Store, kind: str, name: str, namespace: str = "default") -> str:
    """Return the flavor on which Kueue would start a job at once, or why it would not: `held: …`."""
    owner = store.get(kind, name, namespace)
    if owner is None:
        return "held: no such job"
    queue = dig(owner, "metadata.labels", {}).get("kueue.x-k8s.io/queue-name")
    if queue is None:
        return "not managed: no queue label"
    local = store.get("LocalQueue", queue, namespace)
    cluster = store.get("ClusterQueue", local["spec"]["clusterQueue"]) if local else None
    if cluster is None:
        return "held: no such queue"
    if cluster["spec"].get("namespaceSelector") is None:
        return "held: the cluster queue selects no namespace"
    if cluster["spec"].get("stopPolicy") in ("Hold", "HoldAndDrain"):
        return "held: the cluster queue is stopped"
    wanted = _wanted(store, owner)
    for flavor, quotas in _flavors(store, local):
        if all(amount <= quotas.get(resource, 0) for resource, amount in wanted.items()):
            return flavor
    return "held: too little quota"


def _wanted(store: Store, owner: Object) -> dict[str, float]:
    if owner["kind"] == "Job":
        pods = [TrainingPod("", "", {}, owner["spec"]["template"]["spec"])] * owner["spec"].get("parallelism", 1)
    else:
        pods = training_pods(store, owner["kind"], owner["metadata"]["name"])
    asked = [container.get("resources") or {} for pod in pods for container in pod.spec["containers"]]
    names = {name for part in asked for key in ("requests", "limits") for name in part.get(key) or {}}
    return {name: sum(pod.request(name) for pod in pods) for name in names}
