# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    pods = t.ready(f"ds/{v.name}")
    t.equal(sorted(p["spec"]["nodeName"] for p in pods), ["a", "b", "c"], "the nodes")
    t.equal(sorted(t.env(p, "agent").get("NODE", "") for p in pods), ["a", "b", "c"], "the variable NODE")
    t.equal(t.http(pods[0], 8080).text, "web 1.0", "the page")
