# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
from cloudeval.controllers.scheduling import schedule


def check(t, v):
    template = t.get("jobset/close")["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    t.equal(len(t.training("jobset/close")), v.count, "the number of pods")
    key = f"topology.test/{v.block}"
    for name, labels in {
        "x1": {"gpu": "h100", key: "x"},
        "y1": {"gpu": "h100", key: "y"},
        "y2": {"gpu": "h100", key: "y"},
        "z": {key: "y"},
    }.items():
        t._add_node({"name": name, "labels": labels, "cpu": 64}, name)
    labels = (template.get("metadata") or {}).get("labels") or {}
    first = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "first", "namespace": "default", "labels": {"app": "close"}},
        "spec": {"containers": [], "nodeName": "y1"},
    }
    t.store.create(first)
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "second", "namespace": "default", "labels": labels},
        "spec": template["spec"],
    }
    t.store.create(pod)
    schedule(t.store)
    t.expect(
        pod["spec"].get("nodeName") in ("y1", "y2"),
        f"the second pod goes to {pod['spec'].get('nodeName')}, expected the block of the first",
    )
    t.equal(
        (labels.get("app"), template["spec"]["restartPolicy"], template["spec"]["containers"][0]["name"]),
        ("close", "OnFailure", "main"),
        "label, restart policy and container",
    )
    pods = (template["spec"]["affinity"].get("podAffinity") or {}).get(
        "preferredDuringSchedulingIgnoredDuringExecution"
    ) or []
    t.equal([p["weight"] for p in pods], [100], "the weight")
    t.expect(
        not template["spec"]["affinity"]["podAffinity"].get("requiredDuringSchedulingIgnoredDuringExecution"),
        "the block must be a preference",
    )
