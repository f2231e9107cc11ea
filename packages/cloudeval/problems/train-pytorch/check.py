# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    pods = t.training(f"pytorchjob/{v.name}")
    t.equal(len(pods), v.workers + 1, "the number of pods")
    t.equal({p.env["WORLD_SIZE"] for p in pods}, {str(v.workers + 1)}, "WORLD_SIZE")
    t.equal({p.request("nvidia.com/gpu") for p in pods}, {v.gpus}, "the GPUs of each pod")
    t.equal(
        {(p.spec["containers"][0]["image"], p.spec["restartPolicy"]) for p in pods},
        {("train:1.0", "OnFailure")},
        "image and restart policy",
    )
    t.equal(
        t.get(f"pytorchjob/{v.name}")["spec"].get("runPolicy", {}).get("cleanPodPolicy"), "Running", "cleanPodPolicy"
    )
