"""The check API of Kubernetes problems: a simulated cluster whose pods are real containers."""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, cast

from cloudeval.admission import admit_text
from cloudeval.admission.schedules import fires
from cloudeval.controllers import jobs, step
from cloudeval.errors import ProblemError
from cloudeval.runners import cgroups
from cloudeval.runners.containers import Container
from cloudeval.runners.expectations import Checks, Response, request
from cloudeval.runners.kubelet import Kubelet, Run
from cloudeval.runners.network import NODE_ADDRESS, Network
from cloudeval.schema import Fault, kinds
from cloudeval.semantics import access, mesh, network, training
from cloudeval.store import Store, condition, is_ready, make, phase
from cloudeval.values import Object, dig

_SHORT_NAMES = (
    "svc Service deploy Deployment ds DaemonSet sts StatefulSet cm ConfigMap ns Namespace sa ServiceAccount po Pod "
    "pvc PersistentVolumeClaim rs ReplicaSet cj CronJob vs VirtualService dr DestinationRule"
)
_ISTIO = "VirtualService DestinationRule Gateway ServiceEntry PeerAuthentication AuthorizationPolicy Sidecar"


def split_reference(reference: str) -> tuple[str, str]:
    """Return kind and name of `kind/name`, in any case and with kubectl's short names; `name` alone is a pod."""
    kind, slash, name = reference.partition("/")
    if not slash:
        return "Pod", kind
    return _known_kinds().get(kind.lower(), kind), name


@functools.cache
def _known_kinds() -> dict[str, str]:
    words = _SHORT_NAMES.split()
    known = {kind.lower(): kind for kind in [*(kind for _, kind in kinds()), *_ISTIO.split()]}
    return known | dict(zip(words[::2], words[1::2], strict=True))


def _reading(ask: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function about a store as a method of the check API, whose verdicts are then by semantics."""

    @functools.wraps(ask)
    def method(self: Cluster, *arguments: Any, **options: Any) -> Any:
        self.how = "semantics"
        return ask(self.store, *arguments, **options)

    return method


class Cluster(Checks):
    """A simulated cluster in a sandbox. References to objects are written `kind/name`, or `name` for pods.

    Args:
        sandbox: Name of the sandbox that this process runs in; empty to read objects only.
        nodes: Nodes as `{name, labels, taints, cpu, memory}`; one without taints by default.
        seed: Seed of generated names.
    """

    def __init__(self, sandbox: str = "", nodes: list[Object] | None = None, seed: int = 0) -> None:
        super().__init__()
        self.store, self.sandbox = Store(seed), sandbox
        for number, node in enumerate(nodes or [{}], 1):
            self._add_node(node, node.get("name", f"node-{number}"))
        self.network = Network(self.store)
        self.kubelet = Kubelet(self.store, self.network, sandbox)

    def _add_node(self, node: Object, name: str) -> None:
        labels = {"hostname": name, "os": "linux", "arch": "amd64"}
        labels = {f"kubernetes.io/{key}": value for key, value in labels.items()} | node.get("labels", {})
        allocatable = {"cpu": str(node.get("cpu", 4)), "memory": node.get("memory", "8Gi"), "ephemeral-storage": "20Gi"}
        status = {"allocatable": {**allocatable, "pods": "110", **node.get("resources", {})}}
        spec = {"taints": node.get("taints", [])}
        self.store.create(make("v1", "Node", name, labels=labels, spec=spec, status=status))

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
        return "; ".join(map(str, self.admit(text)))

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
        return self.store.get(*split_reference(reference), namespace)

    def pods(self, owner: str = "", *, labels: Object | None = None, namespace: str = "default") -> list[Object]:
        """Return pods that are not being deleted: those of a workload, or those with labels."""
        found = self.store.list("Pod", namespace, labels=labels)
        found = [pod for pod in found if not pod["metadata"].get("deletionTimestamp")]
        if not owner:
            return found
        holder = self.find(owner, namespace)
        holders = [holder, *self.store.owned("ReplicaSet", holder), *self.store.owned("Job", holder)] if holder else []
        uids = {item["metadata"]["uid"] for item in holders}
        return [pod for pod in found if any(ref["uid"] in uids for ref in pod["metadata"].get("ownerReferences") or [])]

    def names(self, pods: list[Object]) -> list[str]:
        """Return sorted names."""
        return sorted(pod["metadata"]["name"] for pod in pods)

    # ---- behaviour

    def _pod(self, pod: str | Object) -> Object:
        if isinstance(pod, dict):
            return pod
        if split_reference(pod)[0] == "Pod":
            return self.get(pod)
        ready_first = lambda: sorted(self.pods(pod), key=lambda item: not is_ready(item))  # noqa: E731
        return cast("Object", self.eventually(ready_first, f"{pod} has no pod")[0])

    def _run(self, pod: str | Object, container: str | None = None) -> Run:
        """Return a container's runs, waiting until its pod is placed."""
        value = self._pod(pod)
        self._behaved()
        name = value["metadata"]["name"]
        unplaced = lambda: f"the pod {name} was not placed on a node: {self.why(value)}; it did not start"  # noqa: E731
        runs = self.eventually(lambda: self.kubelet.runtime(value), unplaced).runs
        chosen = [run for run in runs if container == run.definition["name"] or (not container and not run.init)]
        if not chosen:
            self.fail(f"the pod {name} has no container {container}")
        return cast("Run", chosen[0])

    def _running(self, pod: str | Object, name: str | None) -> Container:
        """Return a container, waiting until it runs."""
        run = self._run(pod, name)
        stopped = lambda: f"the container {run.definition['name']} does not run: {self.why(self._pod(pod))}"  # noqa: E731
        self.eventually(lambda: run.running, stopped)
        return cast("Container", run.container)

    def why(self, pod: str | Object) -> str:
        """Return why a pod is not ready, in a few words."""
        status = (pod if isinstance(pod, dict) else self.get(pod)).get("status") or {}
        for item in (status.get("initContainerStatuses") or []) + (status.get("containerStatuses") or []):
            for state in (item["state"], item.get("lastState") or {}):
                detail = state.get("waiting") or state.get("terminated") or {"exitCode": 0}
                if detail.get("exitCode") != 0 and detail.get("reason") != "PodInitializing":
                    code = f" (exit {detail['exitCode']})" if "exitCode" in detail else ""
                    return f"{item['name']}: {detail.get('message') or detail['reason']}{code}"
        for item in status.get("conditions") or []:
            if item["status"] == "False" and item.get("message"):
                return str(item["message"])
        return f"phase {status.get('phase', 'Pending')}"

    def ready(self, reference: str, timeout_s: float | None = None) -> Any:
        """Wait until a pod is ready, or a workload has all its pods ready; return the pod, or the pods."""
        kind, _ = split_reference(reference)
        self.get(reference)

        def done() -> Any:
            value = self.get(reference)
            self._behaved()
            if kind == "Pod":
                return value if is_ready(value) else None
            wanted, status = value["spec"].get("replicas"), value.get("status") or {}
            if kind == "DaemonSet":
                wanted = status.get("desiredNumberScheduled", -1)
                counts = {status.get("numberReady"), status.get("updatedNumberScheduled")}
            else:
                counts = {status.get("readyReplicas", 0), status.get("updatedReplicas", wanted), status.get("replicas")}
            return counts == {wanted} and (self.pods(reference) or [True])

        def waiting() -> str:
            pods = [self.get(reference)] if kind == "Pod" else self.pods(reference)
            few = "too few pods" + "".join(f"; {event}" for event in self.store.events[-1:])
            return f"{reference} is not ready: " + next((self.why(pod) for pod in pods if not is_ready(pod)), few)

        return self.eventually(done, waiting, timeout_s)

    def finished(self, reference: str, outcome: str = "Succeeded", timeout_s: float | None = None) -> Object:
        """Wait until a pod (Succeeded, Failed) or Job (Complete, Failed) has ended as expected."""
        kind, _ = split_reference(reference)
        outcome = "Complete" if kind == "Job" and outcome == "Succeeded" else outcome

        def ended() -> str | None:
            value = self.get(reference)
            self._behaved()
            if kind == "Job":
                return next((name for name in ("Complete", "Failed") if condition(value, name) == "True"), None)
            return phase(value) if phase(value) in ("Succeeded", "Failed") else None

        if (got := self.eventually(ended, f"{reference} does not end", timeout_s)) != outcome:
            pods = [self.get(reference)] if kind == "Pod" else self.pods(reference)
            reasons = ", ".join(self.why(pod) for pod in pods[:1])
            self.fail(f"{reference} ended as {got}, expected {outcome}: {reasons}")
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

        def missing() -> str:
            text, name = self.logs(pod, container)[-200:], container or (pod if isinstance(pod, str) else "the pod")
            why = "" if text else f" ({self.why(self._pod(pod))})"
            return f'the log of {name} lacks "{pattern}"; it says "{text}"{why}'

        probe = lambda: re.search(pattern, self.logs(pod, container), re.MULTILINE)  # noqa: E731
        return cast("re.Match[str]", self.eventually(probe, missing, timeout_s))

    def exec(
        self, pod: str | Object, command: str | list[str], container: str | None = None, timeout_s: float = 5
    ) -> tuple[int, str]:
        """Run a command (a text is given to sh) in a running container; return exit code and output."""
        arguments = ["sh", "-c", command] if isinstance(command, str) else command
        code, text = self._running(pod, container).execute(arguments, timeout_s)
        return code, text.strip()

    def out(self, pod: str | Object, command: str, container: str | None = None) -> str:
        """Run a command in a container and return its output; fail if it fails."""
        code, text = self.exec(pod, command, container)
        self.expect(code == 0, f"`{command}` fails in the container: {text[-160:]}")
        return text

    def env(self, pod: str | Object, container: str | None = None) -> dict[str, str]:
        """Return the variables of a running container's first process."""
        text = Path(f"/proc/{self._running(pod, container).pid}/environ").read_text(errors="replace")
        return dict(entry.partition("=")[::2] for entry in text.split("\0") if entry)

    def limits(self, pod: str | Object, container: str | None = None) -> dict[str, float | None]:
        """Return the limits that hold for a container, read from its control group: memory (bytes), cpu (cores), shares."""
        return cgroups.read(self.sandbox, self._running(pod, container).spec.name)

    def restarts(self, pod: str | Object, container: str | None = None) -> int:
        """Return how often a container was restarted."""
        return self._run(pod, container).restarts

    def state(self, pod: str | Object, container: str | None = None) -> Object:
        """Return a container's state: waiting, running or terminated with its details."""
        run = self._run(pod, container)
        self.step()
        return run.state

    def address(self, target: str | Object) -> str:
        """Return the address of a pod, a Service or `node`."""
        if target == "node":
            return NODE_ADDRESS
        if isinstance(target, str) and split_reference(target)[0] == "Service":
            value = self.get(target)
            return str(self.eventually(lambda: value["spec"].get("clusterIP"), f"{target} has no address"))
        pod = self._pod(target)
        missing = lambda: f"the pod has no address: {self.why(pod)}"  # noqa: E731
        return str(self.eventually(lambda: dig(pod, "status.podIP"), missing))

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
        host = self.address(target)
        self._behaved()
        answers: list[Response] = []

        def tried() -> Response | None:
            answers.append(request(host, port, path, **options))
            return answers[-1] if answers[-1].status and status in (None, answers[-1].status) else None

        def unexpected() -> str:
            name, got = target if isinstance(target, str) else "the pod", answers[-1].status or answers[-1].text
            return f"port {port} of {name} answers {got}, expected {status or 'an answer'}"

        return cast("Response", self.eventually(tried, unexpected, timeout_s))

    def endpoints(self, service: str) -> list[str]:
        """Return the names of the pods that a Service leads to."""
        self._behaved()
        self.step()
        return sorted(entry["pod"] for entry in self.get(service).get("endpoints") or [])

    def service_port(self, service: str, port: int | str) -> Object:
        """Return a Service's port by number or name."""
        for item in self.get(service)["spec"].get("ports") or []:
            if port in (item["port"], item.get("name")):
                return cast("Object", item)
        self.fail(f"{service} has no port {port}")

    def node_of(self, pod: str | Object) -> str:
        """Return the node that a pod was placed on, waiting for it."""
        value = self._pod(pod)
        self._behaved()
        unplaced = lambda: f"the pod is not placed: {self.why(value)}"  # noqa: E731
        return str(self.eventually(lambda: value["spec"].get("nodeName"), unplaced))

    def unplaced(self, pod: str | Object, seconds: float = 0.3) -> None:
        """Fail if a pod is placed on a node."""
        value = self._pod(pod)
        self._behaved()
        reason = f"the pod {value['metadata']['name']} was placed and must not be"
        self.always(lambda: not value["spec"].get("nodeName"), reason, seconds)

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
        moments = fires(self.get(cron_job)["spec"]["schedule"], datetime.fromisoformat(start), count)
        return [f"{moment:%Y-%m-%d %H:%M}" for moment in moments]

    # ---- meaning of what does not run here

    may = _reading(access.may)
    connects = _reading(network.connects)
    route, shares = _reading(mesh.route), _reading(mesh.shares)
    authorized, mtls, traffic = _reading(mesh.authorized), _reading(mesh.mtls), _reading(mesh.traffic)
    quota = _reading(training.quota)

    def training(self, reference: str) -> list[training.TrainingPod]:
        """Return the pods that an operator would make of a PyTorchJob or JobSet."""
        self.get(reference)
        self.how = "semantics"
        return training.training_pods(self.store, *split_reference(reference))

    def queued(self, reference: str, namespace: str = "default") -> str:
        """Return the flavor on which Kueue would start a job, or why it would not."""
        self.how = "semantics"
        return training.admits_workload(self.store, *split_reference(reference), namespace)

    @staticmethod
    def pod(labels: Object | None = None, namespace: str = "default", ports: dict[str, int] | None = None) -> Object:
        """Return a pod to ask `connects` about."""
        named = [{"name": name, "containerPort": number} for name, number in (ports or {}).items()]
        spec = {"containers": [{"name": "c", "ports": named}]}
        return make("v1", "Pod", "probe", namespace, labels=labels or {}, spec=spec)
