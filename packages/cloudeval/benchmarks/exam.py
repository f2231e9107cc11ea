"""Asks the real control plane the exam's questions and keeps its answers in results/exam.json, which the tests read."""

import copy
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml

from cloudeval.admission import admit_text
from cloudeval.controllers import step
from cloudeval.store import Store
from controlplane import running

HERE = Path(__file__).parent
CONTAINER = {"name": "main", "image": "busybox:1.36"}
TEMPLATE = {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [CONTAINER]}}
RUN_ONCE = {"spec": {"restartPolicy": "Never", "containers": [CONTAINER]}}
RBAC = "rbac.authorization.k8s.io"


def _of(version: str, kind: str, **fields: Any) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": "exam"}, **fields}


BASES = {
    "pod": _of("v1", "Pod", spec={"containers": [CONTAINER]}),
    "deployment": _of("apps/v1", "Deployment", spec={"selector": {"matchLabels": {"app": "a"}}, "template": TEMPLATE}),
    "daemonset": _of("apps/v1", "DaemonSet", spec={"selector": {"matchLabels": {"app": "a"}}, "template": TEMPLATE}),
    "statefulset": _of(
        "apps/v1",
        "StatefulSet",
        spec={"serviceName": "s", "selector": {"matchLabels": {"app": "a"}}, "template": TEMPLATE},
    ),
    "job": _of("batch/v1", "Job", spec={"template": RUN_ONCE}),
    "cronjob": _of(
        "batch/v1", "CronJob", spec={"schedule": "0 0 * * *", "jobTemplate": {"spec": {"template": RUN_ONCE}}}
    ),
    "service": _of("v1", "Service", spec={"selector": {"app": "a"}, "ports": [{"port": 80}]}),
    "configmap": _of("v1", "ConfigMap", data={"a": "b"}),
    "secret": _of("v1", "Secret", data={}),
    "role": _of(f"{RBAC}/v1", "Role", rules=[{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]),
    "binding": _of(f"{RBAC}/v1", "RoleBinding", roleRef={"apiGroup": RBAC, "kind": "Role", "name": "r"}, subjects=[]),
    "netpol": _of("networking.k8s.io/v1", "NetworkPolicy", spec={"podSelector": {}}),
    "claim": _of(
        "v1",
        "PersistentVolumeClaim",
        spec={"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    ),
    "priority": _of("scheduling.k8s.io/v1", "PriorityClass", value=5),
    "quota": _of("v1", "ResourceQuota", spec={"hard": {"pods": "4"}}),
}


def facts() -> list[tuple[str, str]]:
    """Return (fact, manifest). The value is put into the text unparsed, so that the readers' own YAML rules are asked, too."""
    found = []
    for line in (HERE / "exam_facts.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            base, path, value = line.split(" ", 2)
            found.append((line, _manifest(copy.deepcopy(BASES[base]), path.split("."), value)))
    return found


def _manifest(target: dict[str, Any], path: list[str], value: str) -> str:
    holder: Any = target
    for key in path[:-1]:
        holder = holder[int(key)] if key.isdigit() else holder.setdefault(key, {})
    if value == "-":
        holder.pop(path[-1], None)
        return str(yaml.safe_dump(target))
    holder[path[-1]] = "PLACEHOLDER"
    return str(yaml.safe_dump(target)).replace("PLACEHOLDER", value)


class Kubectl:
    """kubectl against the real control plane."""

    def __init__(self, config: Path) -> None:
        self.config = config

    def run(self, *arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["kubectl", "--kubeconfig", str(self.config), *arguments],
            input=text,
            capture_output=True,
            text=True,
            check=False,
        )

    def get(self, *arguments: str) -> dict[str, Any]:
        done = self.run("get", *arguments, "-o", "json")
        return json.loads(done.stdout) if done.returncode == 0 else {}


def for_1_20(text: str) -> str:
    """Return the manifest with the API versions that Kubernetes 1.20 serves."""
    return text.replace("apiVersion: batch/v1\nkind: CronJob", "apiVersion: batch/v1beta1\nkind: CronJob")


def ask_admission(kubectl: Kubectl) -> list[dict[str, Any]]:
    answers = []
    for fact, manifest in facts():
        done = kubectl.run("apply", "--dry-run=server", "-f", "-", text=for_1_20(manifest))
        answers.append({"fact": fact, "admitted": done.returncode == 0, "message": done.stderr.strip()[:200]})
    return answers


def our_admission(manifest: str) -> list[str]:
    return [str(fault) for fault in admit_text(manifest, Store())]


# ---- controllers: the exam plays the kubelet and sets the status of pods


class Real:
    """The scenarios' driver of the real control plane."""

    def __init__(self, kubectl: Kubectl) -> None:
        self.kubectl = kubectl

    def apply(self, text: str) -> None:
        done = self.kubectl.run("apply", "-f", "-", text=for_1_20(text))
        assert done.returncode == 0, done.stderr

    def untaint(self, node: str) -> None:
        """Remove the taint that the server gives a node which no kubelet has reported as ready."""
        kept = [
            taint
            for taint in self.kubectl.get("node", node)["spec"].get("taints") or []
            if "not-ready" not in taint["key"]
        ]
        self.kubectl.run("patch", "node", node, "--type=merge", "-p", json.dumps({"spec": {"taints": kept}}))

    def settle(self) -> None:
        before = ""
        for _ in range(20):
            time.sleep(0.5)
            now = json.dumps(
                [self.names(), [o.get("status") for o in self.kubectl.get("deploy,rs,sts,ds,jobs").get("items", [])]],
                sort_keys=True,
            )
            if now == before:
                return
            before = now

    def pods(self) -> list[dict[str, Any]]:
        return [
            pod for pod in self.kubectl.get("pods").get("items", []) if not pod["metadata"].get("deletionTimestamp")
        ]

    def names(self) -> list[str]:
        return sorted(pod["metadata"]["name"] for pod in self.pods())

    def mark(self, pod: dict[str, Any], phase: str, code: int = 0) -> None:
        ready = "True" if phase == "Running" else "False"
        state = {"terminated": {"exitCode": code}} if phase in ("Succeeded", "Failed") else {"running": {}}
        status = {
            "phase": phase,
            "conditions": [{"type": "Ready", "status": ready}],
            "podIP": "10.9.9.9",
            "podIPs": [{"ip": "10.9.9.9"}],
            "containerStatuses": [
                {
                    "name": "main",
                    "image": "b",
                    "imageID": "",
                    "ready": ready == "True",
                    "restartCount": 0,
                    "state": state,
                }
            ],
        }
        path = f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}/status"
        done = self.kubectl.run("replace", "--raw", path, "-f", "-", text=json.dumps({**pod, "status": status}))
        assert done.returncode == 0, done.stderr

    def get(self, kind: str, name: str) -> dict[str, Any]:
        return self.kubectl.get(kind, name)

    def count(self, kind: str) -> int:
        return len(self.kubectl.get(kind).get("items", []))

    def endpoints(self, name: str) -> int:
        subsets = self.kubectl.get("endpoints", name).get("subsets") or []
        return sum(len(subset.get("addresses") or []) for subset in subsets)

    def delete(self, kind: str, name: str) -> None:
        self.kubectl.run("delete", kind, name, "--wait=false", "--grace-period=0", "--force")

    def clear(self) -> None:
        for kind in ("deploy", "sts", "ds", "jobs", "cronjobs", "svc", "rs", "pods", "pvc", "nodes"):
            self.kubectl.run("delete", kind, "--all", "--grace-period=0", "--force", "--wait=false")
        for _ in range(40):
            if not self.names() and not self.count("rs"):
                return
            time.sleep(0.25)


class Ours:
    """The scenarios' driver of the package's controllers."""

    KINDS = {
        "deploy": "Deployment",
        "rs": "ReplicaSet",
        "sts": "StatefulSet",
        "ds": "DaemonSet",
        "job": "Job",
        "svc": "Service",
        "pvc": "PersistentVolumeClaim",
        "pods": "Pod",
        "pod": "Pod",
    }

    def __init__(self) -> None:
        self.store, self.time = Store(), 0.0

    def apply(self, text: str) -> None:
        faults = admit_text(text, self.store)
        assert not faults, faults

    def untaint(self, node: str) -> None:
        """Nodes are ready here."""

    def settle(self) -> None:
        for _ in range(30):
            self.time += 1
            step(self.store, self.time, scheduling=False)
            for pod in self.store.list("Pod"):
                if pod["metadata"].get("deletionTimestamp"):
                    self.store.remove(pod)

    def pods(self) -> list[dict[str, Any]]:
        return self.store.list("Pod")

    def names(self) -> list[str]:
        return sorted(pod["metadata"]["name"] for pod in self.pods())

    def mark(self, pod: dict[str, Any], phase: str, code: int = 0) -> None:
        state = {"terminated": {"exitCode": code}} if phase in ("Succeeded", "Failed") else {"running": {}}
        pod["status"] = {
            "phase": phase,
            "conditions": [{"type": "Ready", "status": str(phase == "Running")}],
            "podIP": "10.9.9.9",
            "finishedAt": self.time,
            "readySince": self.time,
            "containerStatuses": [{"name": "main", "restartCount": 0, "state": state}],
        }

    def get(self, kind: str, name: str) -> dict[str, Any]:
        return self.store.get(self.KINDS[kind], name) or {}

    def count(self, kind: str) -> int:
        return len(self.store.list(self.KINDS[kind]))

    def endpoints(self, name: str) -> int:
        return len(self.get("svc", name).get("endpoints") or [])

    def delete(self, kind: str, name: str) -> None:
        self.store.delete(self.get(kind, name), self.time)

    def clear(self) -> None:
        self.store = Store()


def _apply(driver: Any, base: str, name: str, **spec: Any) -> None:
    value = copy.deepcopy(BASES[base])
    value["metadata"]["name"] = name
    value["spec"].update(spec)
    driver.apply(yaml.safe_dump(value))


def _image(image: str) -> dict[str, Any]:
    return {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{"name": "main", "image": image}]}}


def _images(driver: Any) -> list[str]:
    return sorted(pod["spec"]["containers"][0]["image"] for pod in driver.pods())


def _mark_all(driver: Any, phase: str = "Running") -> None:
    for pod in driver.pods():
        if (pod.get("status") or {}).get("phase", "Pending") == "Pending":
            driver.mark(pod, phase)
    driver.settle()


def scenarios(d: Any) -> dict[str, Any]:
    """Play every scenario and return the facts."""
    found: dict[str, Any] = {}
    for play in (
        _deployment,
        _recreate,
        _surge,
        _paused,
        _replaced,
        _stateful,
        _parallel,
        _partition,
        _daemon,
        _job,
        _job_fails,
        _job_parallel,
        _job_queue,
        _service,
    ):
        d.clear()
        play(d, found)
    d.clear()
    return found


def _deployment(d: Any, f: dict[str, Any]) -> None:
    _apply(d, "deployment", "web", replicas=3)
    d.settle()
    f["deployment: pods"] = len(d.pods())
    f["deployment: replica sets"] = d.count("rs")
    f["deployment: ready before pods are"] = d.get("deploy", "web")["status"].get("readyReplicas", 0)
    f["deployment: pods carry the template hash"] = all(
        "pod-template-hash" in pod["metadata"]["labels"] for pod in d.pods()
    )
    f["deployment: pod names begin with the set's"] = all(
        name.startswith(pod["metadata"]["ownerReferences"][0]["name"] + "-")
        for pod in d.pods()
        for name in [pod["metadata"]["name"]]
    )
    _mark_all(d)
    f["deployment: available"] = d.get("deploy", "web")["status"].get("availableReplicas", 0)
    d.delete("pod", d.names()[0])
    d.settle()
    f["deployment: pods after one is lost"] = len(d.pods())
    _apply(d, "deployment", "web", replicas=1)
    d.settle()
    f["deployment: pods after scaling down"] = len(d.pods())


def _recreate(d: Any, f: dict[str, Any]) -> None:
    _apply(d, "deployment", "web", replicas=2, strategy={"type": "Recreate"}, template=_image("busybox:1"))
    d.settle()
    _mark_all(d)
    _apply(d, "deployment", "web", replicas=2, strategy={"type": "Recreate"}, template=_image("busybox:2"))
    d.settle()
    f["recreate: images"] = _images(d)
    f["recreate: replica sets"] = d.count("rs")


def _surge(d: Any, f: dict[str, Any]) -> None:
    for surge, unavailable, name in ((1, 0, "surge 1"), (0, 1, "unavailable 1"), ("25%", "25%", "quarter")):
        d.clear()
        strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}
        _apply(d, "deployment", "web", replicas=4, strategy=strategy, template=_image("busybox:1"))
        d.settle()
        _mark_all(d)
        _apply(d, "deployment", "web", replicas=4, strategy=strategy, template=_image("busybox:2"))
        d.settle()
        f[f"rolling, {name}: images while new pods are not ready"] = _images(d)
        for _ in range(6):
            _mark_all(d)
        f[f"rolling, {name}: images at the end"] = _images(d)


def _paused(d: Any, f: dict[str, Any]) -> None:
    _apply(d, "deployment", "web", replicas=2, paused=True)
    d.settle()
    f["paused: pods"] = len(d.pods())
    _apply(d, "deployment", "web", replicas=2, paused=False)
    d.settle()
    f["paused: pods after resuming"] = len(d.pods())


def _replaced(d: Any, f: dict[str, Any]) -> None:
    _apply(d, "deployment", "web", replicas=1)
    d.settle()
    for pod in d.pods():
        d.mark(pod, "Failed", 1)
    d.settle()
    f["failed pod of a deployment: active pods"] = sum(
        (pod.get("status") or {}).get("phase") != "Failed" for pod in d.pods()
    )
    d.delete("deploy", "web")
    d.settle()
    f["deleted deployment: replica sets left"] = d.count("rs")


def _stateful(d: Any, f: dict[str, Any]) -> None:
    claims = [
        {
            "metadata": {"name": "data"},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
        }
    ]
    _apply(d, "statefulset", "db", replicas=3, volumeClaimTemplates=claims)
    d.settle()
    f["statefulset: pods before the first is ready"] = d.names()
    _mark_all(d)
    f["statefulset: pods after the first is ready"] = d.names()
    _mark_all(d)
    _mark_all(d)
    f["statefulset: pods"] = d.names()
    f["statefulset: claims"] = d.count("pvc")
    f["statefulset: claim of the first"] = bool(d.get("pvc", "data-db-0"))
    f["statefulset: host name of the second"] = next(
        pod["spec"].get("hostname") for pod in d.pods() if pod["metadata"]["name"] == "db-1"
    )
    _apply(d, "statefulset", "db", replicas=1, volumeClaimTemplates=claims)
    d.settle()
    f["statefulset: pods after scaling down"] = d.names()
    f["statefulset: claims after scaling down"] = d.count("pvc")


def _parallel(d: Any, f: dict[str, Any]) -> None:
    _apply(d, "statefulset", "db", replicas=3, podManagementPolicy="Parallel")
    d.settle()
    f["parallel statefulset: pods at once"] = d.names()


def _partition(d: Any, f: dict[str, Any]) -> None:
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"partition": 1}}
    _apply(
        d,
        "statefulset",
        "db",
        replicas=2,
        podManagementPolicy="Parallel",
        updateStrategy=strategy,
        template=_image("busybox:1"),
    )
    d.settle()
    _mark_all(d)
    _apply(
        d,
        "statefulset",
        "db",
        replicas=2,
        podManagementPolicy="Parallel",
        updateStrategy=strategy,
        template=_image("busybox:2"),
    )
    d.settle()
    _mark_all(d)
    f["partition 1: images"] = {pod["metadata"]["name"]: pod["spec"]["containers"][0]["image"] for pod in d.pods()}


def _daemon(d: Any, f: dict[str, Any]) -> None:
    for name, labels, taints in (
        ("n1", {}, []),
        ("n2", {"disk": "ssd"}, []),
        ("n3", {}, [{"key": "k", "value": "v", "effect": "NoSchedule"}]),
    ):
        d.apply(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Node",
                    "metadata": {"name": name, "labels": labels},
                    "spec": {"taints": taints},
                }
            )
        )
        d.untaint(name)
    _apply(d, "daemonset", "agent")
    d.settle()
    f["daemonset: pods with one tainted node of three"] = len(d.pods())
    f["daemonset: desired"] = d.get("ds", "agent")["status"]["desiredNumberScheduled"]
    d.delete("ds", "agent")
    d.settle()
    template = {
        "metadata": {"labels": {"app": "a"}},
        "spec": {"containers": [CONTAINER], "tolerations": [{"operator": "Exists"}]},
    }
    _apply(d, "daemonset", "all", template=template)
    d.settle()
    f["daemonset: desired when everything is tolerated"] = d.get("ds", "all")["status"]["desiredNumberScheduled"]
    template = {
        "metadata": {"labels": {"app": "a"}},
        "spec": {"containers": [CONTAINER], "nodeSelector": {"disk": "ssd"}},
    }
    _apply(d, "daemonset", "ssd", template=template, selector={"matchLabels": {"app": "a"}})
    d.settle()
    f["daemonset: desired by node selector"] = d.get("ds", "ssd")["status"]["desiredNumberScheduled"]


def _condition(d: Any, name: str) -> list[Any]:
    return [
        (item["type"], item.get("reason"))
        for item in (d.get("job", name).get("status") or {}).get("conditions") or []
        if item["status"] == "True"
    ]


def _job(d: Any, f: dict[str, Any]) -> None:
    _apply(d, "job", "once")
    d.settle()
    f["job: pods"] = len(d.pods())
    f["job: active"] = d.get("job", "once")["status"].get("active", 0)
    f["job: label job-name"] = [pod["metadata"]["labels"].get("job-name") for pod in d.pods()]
    _mark_all(d, "Succeeded")
    f["job: succeeded"] = d.get("job", "once")["status"].get("succeeded", 0)
    f["job: condition"] = [kind for kind, _ in _condition(d, "once")]
    f["job: pods stay"] = len(d.pods())


def _job_fails(d: Any, f: dict[str, Any]) -> None:
    _apply(d, "job", "bad", backoffLimit=0)
    d.settle()
    _mark_all(d, "Failed")
    f["job, backoffLimit 0: condition"] = _condition(d, "bad")
    f["job, backoffLimit 0: failed"] = d.get("job", "bad")["status"].get("failed", 0)
    f["job, backoffLimit 0: pods"] = len(d.pods())


def _job_parallel(d: Any, f: dict[str, Any]) -> None:
    _apply(d, "job", "many", completions=3, parallelism=2)
    d.settle()
    f["job 3 by 2: pods at the start"] = len(d.pods())
    _mark_all(d, "Succeeded")
    f["job 3 by 2: pods after two succeeded"] = len(d.pods())
    _mark_all(d, "Succeeded")
    f["job 3 by 2: condition"] = [kind for kind, _ in _condition(d, "many")]
    f["job 3 by 2: succeeded"] = d.get("job", "many")["status"].get("succeeded", 0)


def _job_queue(d: Any, f: dict[str, Any]) -> None:
    _apply(d, "job", "queue", parallelism=2)
    d.settle()
    f["work queue: pods"] = len(d.pods())
    d.mark(d.pods()[0], "Succeeded")
    d.settle()
    f["work queue: pods after one succeeded"] = len(d.pods())
    f["work queue: condition while one runs"] = _condition(d, "queue")
    _mark_all(d, "Succeeded")
    f["work queue: condition"] = [kind for kind, _ in _condition(d, "queue")]


def _service(d: Any, f: dict[str, Any]) -> None:
    _apply(d, "deployment", "web", replicas=2)
    _apply(d, "service", "web")
    d.settle()
    f["service: endpoints before pods are ready"] = d.endpoints("web")
    d.mark(d.pods()[0], "Running")
    d.settle()
    f["service: endpoints after one pod is ready"] = d.endpoints("web")
    f["service: target port"] = d.get("svc", "web")["spec"]["ports"][0].get("targetPort")
    f["service: type"] = d.get("svc", "web")["spec"]["type"]


def main() -> None:
    with running(controllers=True) as config:
        kubectl = Kubectl(config)
        admission = ask_admission(kubectl)
        controllers = scenarios(Real(kubectl))
    (HERE / "results" / "exam.json").write_text(
        json.dumps({"server": "Kubernetes 1.20.2", "admission": admission, "controllers": controllers}, indent=1) + "\n"
    )
    report(admission, controllers)


def report(admission: list[dict[str, Any]], controllers: dict[str, Any]) -> None:
    manifests = dict(facts())
    wrong = [
        (item, ours)
        for item in admission
        for ours in [our_admission(manifests[item["fact"]])]
        if item["admitted"] != (not ours)
    ]
    print(f"admission: {len(admission) - len(wrong)}/{len(admission)} agree")
    for item, ours in wrong:
        print(
            f"  {item['fact']}: server {'admits' if item['admitted'] else 'refuses'} {item['message'][:110]}; ours {ours[:1]}"
        )
    ours = json.loads(json.dumps(scenarios(Ours())))
    different = {
        key: (value, ours.get(key))
        for key, value in controllers.items()
        if json.loads(json.dumps(value)) != ours.get(key)
    }
    print(f"controllers: {len(controllers) - len(different)}/{len(controllers)} agree")
    for key, (theirs, mine) in different.items():
        print(f"  {key}: server {theirs}, ours {mine}")


if __name__ == "__main__":
    if "--again" in sys.argv:
        kept = json.loads((HERE / "results" / "exam.json").read_text())
        report(kept["admission"], kept["controllers"])
    else:
        main()
