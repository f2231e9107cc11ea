# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    pods = t.training(f"jobset/{v.name}")
    roles = [p.role for p in pods]
    t.equal((roles.count("driver"), roles.count("workers")), (1, 2 * v.workers), "the pods of driver and workers")
    t.equal(
        sorted(p.env["JOB_COMPLETION_INDEX"] for p in pods if p.role == "workers"),
        ["0"] * v.workers + ["1"] * v.workers,
        "the indexes",
    )
    t.equal(
        {(p.spec["restartPolicy"], p.spec["containers"][0]["name"], p.spec["containers"][0]["image"]) for p in pods},
        {("Never", "main", "train:1.0")},
        "the containers",
    )
    spec = t.get(f"jobset/{v.name}")["spec"]
    t.equal((spec.get("successPolicy") or {}).get("targetReplicatedJobs"), ["driver"], "what success depends on")
    t.equal((spec.get("failurePolicy") or {}).get("maxRestarts"), 3, "maxRestarts")
