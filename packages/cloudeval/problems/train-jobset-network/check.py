# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    pods = t.training("jobset/ring")
    t.equal([p.env["HOST"] for p in pods], [f"ring-node-0-{n}.{v.sub}" for n in range(v.size)], "the host names")
    t.equal([p.env["JOB_COMPLETION_INDEX"] for p in pods], [str(n) for n in range(v.size)], "the indexes")
    t.expect(
        t.get("jobset/ring")["spec"]["network"].get("publishNotReadyAddresses", True),
        "addresses are not published before pods are ready",
    )
    t.equal(pods[0].spec["containers"][0]["image"], "train:1.0", "the image")
