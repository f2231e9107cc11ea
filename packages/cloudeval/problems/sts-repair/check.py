# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    pods = t.ready(f"sts/{v.name}", 6)
    t.equal(len(pods), 2, "the number of pods")
    t.equal(t.get(f"pvc/data-{v.name}-0")["spec"]["storageClassName"], "standard", "the storage class")
    t.equal(t.out(f"{v.name}-0", "cat /data/ok"), "ok", "/data/ok")
    t.out(f"{v.name}-1", "rm /data/ok")
    t.eventually(
        lambda: t.get(f"sts/{v.name}")["status"]["readyReplicas"] == 1, "the readiness probe was removed or weakened", 6
    )
