"""The check API of Kubernetes problems: a simulated cluster whose pods are real containers."""

from __future__ import annotations

import http.client
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

from cloudeval.admission import admit_text
from cloudeval.controllers import jobs, step
from cloudeval.errors import ProblemError
from cloudeval.runners import cgroups
from cloudeval.runners.expectations import Checks
from cloudeval.runners.kubelet import Kubelet, Run
from cloudeval.runners.network import NODE_ADDRESS, Network
from cloudeval.schema import Fault
from cloudeval.semantics import access, mesh, network, training
from cloudeval.store import Store, condition, is_ready

Object = dict[str, Any]


@dataclass(frozen=True)
class Response:
    """An HTTP answer; status 0 means that no connection came about."""

    status: int
    text: str
    headers: dict[str, str]


def request(
    host: str,
    port: int,
    path: str = "/",
    *,
    method: str = "GET",
    headers: dict[str, str] | None = None,
    body: str | None = None,
    timeout_s: float = 2,
) -> Response:
    """Send one HTTP request. A connection that fails gives status 0."""
    connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    try:
        connection.request(method, path, body=body, headers=headers or {})
        answer = connection.getresponse()
        found: dict[str, str] = {}
        for key, value in answer.getheaders():
            found[key.lower()] = f"{found[key.lower()]},{value}" if key.lower() in found else value
        return Response(answer.status, answer.read().decode(errors="replace").strip(), found)
    except (OSError, http.client.HTTPException) as error:
        return Response(0, f"no answer: {error}", {})
    finally:
        connection.close()


class Cluster(Checks):
    """A simulated cluster in a sandbox. References to objects are written `kind/name`, or `name` for pods.

    Args:
        sandbox: Name of the sandbox that this process runs in; empty to read objects only.
        nodes: Nodes as `{name, labels, taints, cpu, memory}`; one without taints by default.
        seed: Seed of generated names.
    """

    def __init__(self, sandbox: str = "", nodes: list[Object] | None = None, seed: int = 0) -> None:
        super().__init__()
        self.store = Store(seed)
        self.sandbox = sandbox
        for number, node in enumerate(nodes or [{}], 1):
            self._add_node(node, f"node-{number}")
        self.network = Network(self.store)
        self.kubelet = Kubelet(self.store, self.network, sandbox)

    def _add_node(self, node: Object, default_name: str) -> None:
        name = node.get("name", default_name)
        labels = {
            "kubernetes.io/hostname": name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64",
            **node.get("labels", {}),
        }
        allocatable = {
            "cpu": str(node.get("cpu", 4)),
            "memory": node.get("memory", "8Gi"),
            "ephemeral-storage": "20Gi",
            "pods": "110",
            **node.get("resources", {}),
        }
        self.store.create(
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": name, "labels": labels},
                "spec": {"taints": node.get("taints", [])},
                "status": {"allocatable": allocatable},
            }
        )

    # ---- changes

    def admit(self, text: str) -> list[Fault]:
        """Admit manifests and return the faults."""
        return admit_text(text, self.store)

    def apply(self, text: str) -> None:
        """Apply manifests that the problem brings; a fault is the problem's."""
        if faults := self.admit(text):
            raise ProblemError(f"a manifest of the problem is refused: {faults[0]}")

    def refused(self, text: str) -> str:
        """Return why manifests are refused, empty if they are accepted."""
        faults = self.admit(text)
        return "; ".join(map(str, faults))

    def update(self, reference: str, change: Callable[[Object], None]) -> None:
        """Change an object in place and let controllers see it."""
        change(self.get(reference))

    def set_image(self, reference: str, image: str) -> None:
        """Give the first container of a workload another image, which starts a rollout."""
        self.get(reference)["spec"]["template"]["spec"]["containers"][0]["image"] = image
        self.step()

    def scale(self, reference: str, replicas: int) -> None:
        """Set the replicas of a workload."""
        self.get(reference)["spec"]["replicas"] = replicas
        self.step()

    def delete(self, reference: str, grace_s: float | None = None) -> None:
        """Delete an object as `kubectl delete` does."""
        value = self.get(reference)
        if grace_s is not None:
            value["metadata"]["grace"] = grace_s
        self.store.delete(value, self.kubelet.now())

    def step(self) -> None:
        """Run controllers and the kubelet for one round."""
        step(self.store, self.kubelet.now())
        if self.sandbox:
            self.kubelet.tick()
            self.network.update()
        time.sleep(0.01)

    # ---- objects

    def get(self, reference: str, namespace: str = "default") -> Object:
        """Return an object, or fail because the answer does not have it."""
        found = self.find(reference, namespace)
        if found is None:
            self.how = "semantics"
            self.fail(f"there is no {reference}" + (f" in {namespace}" if namespace != "default" else ""))
        return found

    def find(self, reference: str, namespace: str = "default") -> Object | None:
        """Return an object, or None."""
        kind, name = self._reference(reference)
        return self.store.get(kind, name, namespace)

    exists = find

    @staticmethod
    def _reference(reference: str) -> tuple[str, str]:
        kind, slash, name = reference.partition("/")
        if not slash:
            return "Pod", kind
        return _KINDS.get(kind.lower(), kind), name

    def pods(self, owner: str = "", *, labels: Object | None = None, namespace: str = "default") -> list[Object]:
        """Return pods that are not being deleted: those of a workload, or those with labels."""
        found = [
            pod
            for pod in self.store.list("Pod", namespace, labels=labels)
            if not pod["metadata"].get("deletionTimestamp")
        ]
        if not owner:
            return found
        holder = self.find(owner, namespace)
        owners = [holder, *(self.store.owned("ReplicaSet", holder) + self.store.owned("Job", holder))] if holder else []
        uids = {item["metadata"]["uid"] for item in owners if item}
        return [pod for pod in found if any(ref["uid"] in uids for ref in pod["metadata"].get("ownerReferences") or [])]

    def names(self, pods: list[Object]) -> list[str]:
        """Return sorted names."""
        return sorted(pod["metadata"]["name"] for pod in pods)

    # ---- behaviour

    def _pod(self, pod: str | Object) -> Object:
        if isinstance(pod, dict):
            return pod
        if "/" in pod and not pod.lower().startswith(("pod/", "po/")):
            found = self.eventually(
                lambda: sorted(self.pods(pod), key=lambda item: not is_ready(item)), f"{pod} has no pod"
            )
            return cast("Object", found[0])
        return self.get(pod)

    def _run(self, pod: str | Object, container: str | None = None) -> Run:
        value = self._pod(pod)
        self._behaved()
        name = value["metadata"]["name"]
        runtime = self.eventually(
            lambda: self.kubelet.runtime(value),
            f"the pod {name} was not placed on a node: {self.why(value)}; it did not start",
        )
        for run in runtime.runs:
            if container == run.definition["name"] or (container is None and not run.init):
                found: Run = run
                return found
        self.fail(f"the pod {name} has no container {container}")

    def why(self, pod: str | Object) -> str:
        """Return why a pod is not ready, in a few words."""
        value = pod if isinstance(pod, dict) else self.get(pod)
        status = value.get("status") or {}
        for item in (status.get("initContainerStatuses") or []) + (status.get("containerStatuses") or []):
            for state in (item["state"], item.get("lastState") or {}):
                if detail := state.get("waiting") or state.get("terminated"):
                    if detail.get("exitCode") != 0 and detail.get("reason") != "PodInitializing":
                        return f"{item['name']}: {detail.get('message') or detail['reason']}" + (
                            f" (exit {detail['exitCode']})" if "exitCode" in detail else ""
                        )
        for item in status.get("conditions") or []:
            if item["status"] == "False" and item.get("message"):
                return str(item["message"])
        return f"phase {status.get('phase', 'Pending')}"

    def ready(self, reference: str, timeout_s: float | None = None) -> Any:
        """Wait until a pod is ready, or a workload has all its pods ready; return the pod, or the pods."""
        kind, _ = self._reference(reference)
        self.get(reference)
        self._behaved()

        def done() -> Any:
            value = self.get(reference)
            self.how = "behaviour"
            if kind == "Pod":
                return value if is_ready(value) else None
            spec, status = value["spec"], value.get("status") or {}
            if kind == "DaemonSet":
                wanted = status.get("desiredNumberScheduled", -1)
                return (
                    self.pods(reference)
                    if status.get("numberReady") == wanted == status.get("updatedNumberScheduled")
                    else None
                )
            enough = status.get("readyReplicas", 0) == spec["replicas"] == status.get("replicas")
            return (
                (self.pods(reference) or [True])
                if enough and status.get("updatedReplicas", spec["replicas"]) == spec["replicas"]
                else None
            )

        try:
            return self.eventually(done, f"{reference} is not ready", timeout_s)
        except Exception as error:
            pods = [self.get(reference)] if kind == "Pod" else self.pods(reference)
            waiting = next(
                (self.why(pod) for pod in pods if not is_ready(pod)),
                "too few pods" + "".join(f"; {event}" for event in self.store.events[-1:]),
            )
            error.args = (f"{error.args[0]}: {waiting}",)
            raise

    def never_ready(self, reference: str, seconds: float = 1.5) -> None:
        """Fail if a pod becomes ready within the time."""
        self._behaved()
        self.always(lambda: not is_ready(self.get(reference)), f"{reference} became ready", seconds)

    def finished(self, reference: str, outcome: str = "Succeeded", timeout_s: float | None = None) -> Object:
        """Wait until a pod (Succeeded, Failed) or Job (Complete, Failed) has ended as expected."""
        kind, _ = self._reference(reference)
        if kind == "Job" and outcome == "Succeeded":
            outcome = "Complete"
        self.get(reference)
        self._behaved()

        def ended() -> str | None:
            value = self.get(reference)
            self.how = "behaviour"
            if kind == "Job":
                return next((name for name in ("Complete", "Failed") if condition(value, name) == "True"), None)
            phase = value["status"].get("phase")
            return phase if phase in ("Succeeded", "Failed") else None

        got = self.eventually(ended, f"{reference} does not end", timeout_s)
        if got != outcome:
            self.fail(
                f"{reference} ended as {got}, expected {outcome}: {self.why(reference) if kind == 'Pod' else [self.why(pod) for pod in self.pods(reference)][:1]}"
            )
        return self.get(reference)

    def logs(self, pod: str | Object, container: str | None = None) -> str:
        """Return what a container has printed."""
        run = self._run(pod, container)
        self.step()
        return run.container.logs().strip() if run.container else ""

    def logged(
        self, pod: str | Object, pattern: str, container: str | None = None, timeout_s: float | None = None
    ) -> re.Match[str]:
        """Wait until a container has printed something that the regular expression finds."""
        self._run(pod, container)

        def found() -> re.Match[str] | None:
            return re.search(pattern, self.logs(pod, container), re.MULTILINE)

        try:
            match: re.Match[str] = self.eventually(found, "", timeout_s)
        except Exception as error:
            text = self.logs(pod, container)[-200:]
            error.args = (
                f'the log of {container or pod if isinstance(pod, str) else container or "the pod"} lacks "{pattern}"; it says "{text}"'
                + (f" ({self.why(self._pod(pod))})" if not text else ""),
            )
            raise
        return match

    def exec(
        self, pod: str | Object, command: str | list[str], container: str | None = None, timeout_s: float = 5
    ) -> tuple[int, str]:
        """Run a command (a text is given to sh) in a running container; return exit code and output."""
        run = self._run(pod, container)
        self.eventually(
            lambda: run.running, f"the container {run.definition['name']} does not run: {self.why(self._pod(pod))}"
        )
        assert run.container is not None
        code, text = run.container.execute(["sh", "-c", command] if isinstance(command, str) else command, timeout_s)
        return code, text.strip()

    def out(self, pod: str | Object, command: str, container: str | None = None) -> str:
        """Run a command in a container and return its output; fail if it fails."""
        code, text = self.exec(pod, command, container)
        if code:
            self.fail(f"`{command}` fails in the container: {text[-160:]}")
        return text

    def env(self, pod: str | Object, container: str | None = None) -> dict[str, str]:
        """Return the variables of a running container's first process."""
        text = self.out(pod, "tr '\\0' '\\1' < /proc/1/environ", container)
        return dict(entry.partition("=")[::2] for entry in text.split("\1") if entry)

    def limits(self, pod: str | Object, container: str | None = None) -> dict[str, float | None]:
        """Return the limits that hold for a container, read from its control group: memory (bytes), cpu (cores), shares."""
        run = self._run(pod, container)
        self.eventually(lambda: run.running, "the container does not run")
        assert run.container is not None
        return cgroups.read(self.sandbox, run.container.spec.name)

    def restarts(self, pod: str | Object, container: str | None = None) -> int:
        """Return how often a container was restarted."""
        return self._run(pod, container).restarts

    def state(self, pod: str | Object, container: str | None = None) -> Object:
        """Return a container's state: waiting, running or terminated with its details."""
        run = self._run(pod, container)
        self.step()
        return run.state

    def address(self, target: str | Object) -> str:
        """Return the address of a pod or Service."""
        if isinstance(target, str) and target.lower().startswith(("service/", "svc/")):
            value = self.get(target)
            return str(self.eventually(lambda: value["spec"].get("clusterIP"), f"{target} has no address"))
        pod = self._pod(target)
        return str(
            self.eventually(lambda: (pod.get("status") or {}).get("podIP"), f"the pod has no address: {self.why(pod)}")
        )

    def http(
        self,
        target: str | Object,
        port: int,
        path: str = "/",
        *,
        status: int | None = 200,
        timeout_s: float | None = None,
        **options: Any,
    ) -> Response:
        """Send a request to a pod, Service or `node`; retry until the status is the expected one (None: any answer)."""
        self._behaved()
        host = NODE_ADDRESS if target == "node" else self.address(target)
        self._behaved()
        answers: list[Response] = []

        def tried() -> Response | None:
            answers.append(request(host, port, path, **options))
            return answers[-1] if answers[-1].status and status in (None, answers[-1].status) else None

        try:
            response: Response = self.eventually(tried, "", timeout_s)
        except Exception as error:
            got = answers[-1]
            error.args = (
                f"port {port} of {target if isinstance(target, str) else 'the pod'} answers {got.status or got.text}, expected {status or 'an answer'}",
            )
            raise
        return response

    def closed(self, target: str | Object, port: int) -> None:
        """Fail if a connection to the port comes about."""
        self._behaved()
        for _ in range(3):
            self.step()
        host = NODE_ADDRESS if target == "node" else self.address(target)
        if request(host, port).status:
            self.fail(f"port {port} of {target} answers and must not")

    def endpoints(self, service: str) -> list[str]:
        """Return the names of the pods that a Service leads to."""
        self._behaved()
        self.step()
        return sorted(entry["pod"] for entry in self.get(service).get("endpoints") or [])

    def service_port(self, service: str, port: int | str) -> Object:
        """Return a Service's port by number or name."""
        for item in self.get(service)["spec"].get("ports") or []:
            if port in (item["port"], item.get("name")):
                found: Object = item
                return found
        self.fail(f"{service} has no port {port}")

    def node_of(self, pod: str | Object) -> str:
        """Return the node that a pod was placed on, waiting for it."""
        value = self._pod(pod)
        self._behaved()
        return str(self.eventually(lambda: value["spec"].get("nodeName"), f"the pod is not placed: {self.why(value)}"))

    def unplaced(self, pod: str | Object, seconds: float = 0.3) -> None:
        """Fail if a pod is placed on a node."""
        value = self._pod(pod)
        self._behaved()
        self.always(
            lambda: not value["spec"].get("nodeName"),
            f"the pod {value['metadata']['name']} was placed and must not be",
            seconds,
        )

    # ---- time of CronJobs

    def fire(self, cron_job: str, when: str = "2030-01-01 00:00") -> str | None:
        """Let a CronJob fire. Return the reference of its Job, or None where suspend or concurrencyPolicy forbid it."""
        self._behaved()
        made = jobs.fire(self.store, self.get(cron_job), datetime.fromisoformat(when), self.kubelet.now())
        self.step()
        return f"job/{made['metadata']['name']}" if made else None

    def times(self, cron_job: str, start: str, count: int = 1) -> list[str]:
        """Return the next times at which a CronJob fires, as `2030-01-31 12:00`."""
        self.how = "semantics"
        return [
            f"{moment:%Y-%m-%d %H:%M}"
            for moment in jobs.next_times(self.get(cron_job), datetime.fromisoformat(start), count)
        ]

    # ---- meaning of what does not run here

    def may(self, subject: str, verb: str, resource: str, **where: str) -> bool:
        """Return True if RBAC allows it; see `cloudeval.semantics.access.may`."""
        self.how = "semantics"
        return access.may(self.store, subject, verb, resource, **where)

    def connects(self, source: Object | str, target: Object | str, port: int, protocol: str = "TCP") -> bool:
        """Return True if NetworkPolicies let the source connect; see `cloudeval.semantics.network.connects`."""
        self.how = "semantics"
        return network.connects(self.store, source, target, port, protocol)

    def route(self, host: str = "", path: str = "/", **options: Any) -> Object:
        """Return the route of a VirtualService that a request takes; empty if none does."""
        self.how = "semantics"
        return mesh.find_route(self.store, mesh.Request(host=host, path=path, **options)) or {}

    def shares(self, host: str = "", path: str = "/", **options: Any) -> dict[tuple[str, str], float]:
        """Return the share of each (host, subset labels) that a request's route sends to."""
        return mesh.destinations(self.store, self.route(host, path, **options))

    def authorized(self, labels: Object, namespace: str = "default", **options: Any) -> bool:
        """Return True if Istio's AuthorizationPolicies admit a request to a workload."""
        self.how = "semantics"
        return mesh.is_authorized(self.store, namespace, labels, mesh.Request(**options))

    def mtls(self, labels: Object, namespace: str = "default", port: int = 0) -> str:
        """Return the mTLS mode that holds for a workload."""
        self.how = "semantics"
        return mesh.mtls_mode(self.store, namespace, labels, port)

    def traffic(self, host: str) -> Object:
        """Return the traffic policy that a DestinationRule sets for a host."""
        self.how = "semantics"
        return mesh.traffic_policy(self.store, host)

    def training(self, reference: str) -> list[training.TrainingPod]:
        """Return the pods that an operator would make of a PyTorchJob or JobSet."""
        self.how = "semantics"
        self.get(reference)
        return training.training_pods(self.store, *self._reference(reference))

    def quota(self, queue: str, flavor: str, resource: str, namespace: str = "default") -> float:
        """Return a local queue's nominal quota; -1 where there is none."""
        self.how = "semantics"
        return training.quota(self.store, queue, flavor, resource, namespace)

    def queued(self, reference: str, namespace: str = "default") -> str:
        """Return the flavor on which Kueue would start a job, or why it would not."""
        self.how = "semantics"
        return training.admits_workload(self.store, *self._reference(reference), namespace)

    @staticmethod
    def pod(labels: Object | None = None, namespace: str = "default", ports: dict[str, int] | None = None) -> Object:
        """Return a pod to ask `connects` about."""
        containers = [
            {"name": "c", "ports": [{"name": name, "containerPort": number} for name, number in (ports or {}).items()]}
        ]
        return {
            "kind": "Pod",
            "metadata": {"name": "probe", "namespace": namespace, "labels": labels or {}},
            "spec": {"containers": containers},
        }


_KINDS = {
    name.lower(): name
    for name in (
        "Pod",
        "Deployment",
        "ReplicaSet",
        "DaemonSet",
        "StatefulSet",
        "Job",
        "CronJob",
        "Service",
        "ConfigMap",
        "Secret",
        "Namespace",
        "Node",
        "ServiceAccount",
        "Role",
        "RoleBinding",
        "ClusterRole",
        "ClusterRoleBinding",
        "NetworkPolicy",
        "PersistentVolumeClaim",
        "PersistentVolume",
        "ResourceQuota",
        "LimitRange",
        "PriorityClass",
        "Ingress",
        "PodDisruptionBudget",
        "HorizontalPodAutoscaler",
        "StorageClass",
        "VirtualService",
        "DestinationRule",
        "Gateway",
        "ServiceEntry",
        "PeerAuthentication",
        "AuthorizationPolicy",
        "Sidecar",
        "RequestAuthentication",
        "PyTorchJob",
        "JobSet",
        "ClusterQueue",
        "LocalQueue",
        "ResourceFlavor",
        "WorkloadPriorityClass",
    )
} | {
    "svc": "Service",
    "deploy": "Deployment",
    "ds": "DaemonSet",
    "sts": "StatefulSet",
    "cm": "ConfigMap",
    "ns": "Namespace",
    "sa": "ServiceAccount",
    "pvc": "PersistentVolumeClaim",
    "po": "Pod",
    "rs": "ReplicaSet",
    "cj": "CronJob",
    "vs": "VirtualService",
    "dr": "DestinationRule",
}
