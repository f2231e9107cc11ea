# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    t.equal(t.queued("job/fit"), "cpu-pool", "what Kueue does with the job")
    spec = t.get("job/fit")["spec"]
    t.equal(
        (spec["suspend"], spec["completions"], spec["parallelism"]),
        (True, v.pods, v.pods),
        "suspend, completions and parallelism",
    )
    container = spec["template"]["spec"]["containers"][0]
    t.equal(
        (container["name"], container["image"], str(container["resources"]["requests"]["cpu"])),
        ("main", "train:1.0", "2"),
        "the container",
    )
