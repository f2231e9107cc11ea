# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    pods = t.training(f"pytorchjob/{v.name}")
    t.equal([p.role for p in pods], ["Worker"] * 4, "the pods")
    env = pods[0].env
    t.equal(
        (env["PET_NNODES"], env["PET_RDZV_BACKEND"], env["PET_RDZV_ENDPOINT"].split(":")[1]),
        (f"{v.low}:{v.high}", "c10d", "29500"),
        "nodes and rendezvous",
    )
    t.equal((env["PET_NPROC_PER_NODE"], env["PET_MAX_RESTARTS"]), ("2", "10"), "processes and restarts")
    t.equal(
        (pods[0].spec["restartPolicy"], pods[0].spec["containers"][0]["image"]),
        ("OnFailure", "train:1.0"),
        "restart policy and image",
    )
