# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    t.equal(t.get(f"cm/{v.name}-env")["data"], {"NCCL_DEBUG": v.level}, "the ConfigMap")
    pods = t.training(f"pytorchjob/{v.name}")
    t.equal([p.role for p in pods], ["Master", "Worker", "Worker"], "the pods")
    for p in pods:
        c = p.spec["containers"][0]
        t.equal(
            [e.get("configMapRef", {}).get("name") for e in c.get("envFrom") or []],
            [f"{v.name}-env"],
            f"the variables of {p.name}",
        )
        mount = {m["mountPath"]: m for m in c.get("volumeMounts") or []}.get("/data") or {}
        volume = {x["name"]: x for x in p.spec.get("volumes") or []}.get(mount.get("name")) or {}
        claim = volume.get("persistentVolumeClaim") or {}
        t.equal(
            (claim.get("claimName"), bool(mount.get("readOnly") or claim.get("readOnly"))),
            ("data", True),
            f"the mount of {p.name}",
        )
        t.equal(
            (c["image"], p.spec["restartPolicy"]), ("train:1.0", "OnFailure"), f"image and restart policy of {p.name}"
        )
