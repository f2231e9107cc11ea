# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    ref = f"deployment/{v.name}"
    t.ready(ref)
    t.expect(t.get(ref)["status"]["availableReplicas"] < 2, "pods are available as soon as they are ready")
    t.eventually(lambda: t.get(ref)["status"]["availableReplicas"] == 2, "the pods do not become available")
    t.set_image(ref, "web:9.9")
    t.eventually(
        lambda: t.get(ref)["status"]["conditions"][1].get("reason") == "ProgressDeadlineExceeded",
        "a stuck rollout is not reported",
        6,
    )
    t.equal(t.get(ref)["spec"]["revisionHistoryLimit"], 2, "revisionHistoryLimit")
    t.equal(t.get(ref)["status"]["readyReplicas"], 2, "the ready pods during a stuck rollout")
