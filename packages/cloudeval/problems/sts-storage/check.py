# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    ref = f"sts/{v.name}"
    t.ready(ref)
    for n in (0, 1):
        t.equal(t.out(f"{v.name}-{n}", "cat /data/starts"), f"{v.name}-{n}", "the first start")
        claim = t.get(f"pvc/data-{v.name}-{n}")["spec"]
        t.equal(
            (claim["accessModes"], claim["resources"]["requests"]["storage"]), (["ReadWriteOnce"], v.size), "the claim"
        )
    uid = t.get(f"{v.name}-1")["metadata"]["uid"]
    t.delete(f"pod/{v.name}-1")
    t.eventually(
        lambda: (t.find(f"{v.name}-1") or {"metadata": {"uid": uid}})["metadata"]["uid"] != uid,
        "the lost pod is not made again",
        5,
    )
    t.ready(ref)
    t.equal(t.out(f"{v.name}-1", "cat /data/starts").split(), [f"{v.name}-1"] * 2, "the data after a new start")
