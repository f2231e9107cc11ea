# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    t.finished(f"job/{v.name}")
    t.equal(t.logs(t.pods(f"job/{v.name}")[0], "run"), f"depth {v.depth}", "the log")
    t.equal(t.get(f"cm/{v.name}-settings")["data"], {"depth": str(v.depth)}, "the ConfigMap")
    t.expect(
        t.get(f"job/{v.name}")["spec"]["template"]["spec"]["containers"][0]["env"][0].get("valueFrom"),
        "DEPTH must come from the ConfigMap",
    )
