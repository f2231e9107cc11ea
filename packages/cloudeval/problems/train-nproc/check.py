# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    pods = t.training("pytorchjob/dense")
    t.equal({p.env["WORLD_SIZE"] for p in pods}, {str((v.workers + 1) * v.nproc)}, "WORLD_SIZE")
    t.equal({p.env["PET_NPROC_PER_NODE"] for p in pods}, {str(v.nproc)}, "the processes per node")
    t.equal({p.spec["restartPolicy"] for p in pods}, {"Never"}, "the restart policy")
    policy = t.get("pytorchjob/dense")["spec"].get("runPolicy") or {}
    t.equal(
        (policy.get("backoffLimit"), policy.get("ttlSecondsAfterFinished")),
        (2, 600),
        "backoffLimit and ttlSecondsAfterFinished",
    )
