# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    ref = f"sts/{v.name}"
    t._behaved()
    t.step()
    t.equal(t.names(t.pods(ref)), [f"{v.name}-{n + 1}" for n in range(v.count)], "the pods right after the start")
    t.ready(ref)
    t.equal(t.http(f"{v.name}-1", 8080).text, "web 2.0", "the page")
