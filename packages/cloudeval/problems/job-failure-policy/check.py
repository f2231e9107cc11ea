# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
import copy


def check(t, v):
    job = t.finished(f"job/{v.name}", "Failed", 4)
    t.equal(job["status"]["conditions"][0].get("reason"), "PodFailurePolicy", "the reason")
    t.equal(len(t.pods(f"job/{v.name}")), 1, "the number of pods")
    other = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "other", "namespace": "default"},
        "spec": copy.deepcopy(job["spec"]),
    }
    other["spec"]["template"]["spec"]["containers"][0]["command"] = ["false"]
    t.store.create(other)
    t.eventually(lambda: len(t.pods("job/other")) >= 2, "another exit code is not tried again", 3)
    t.equal(job["spec"]["backoffLimit"], 4, "backoffLimit")
