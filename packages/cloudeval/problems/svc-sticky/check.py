# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    t.ready(f"deployment/{v.name}")
    t.eventually(lambda: len(t.endpoints(f"svc/{v.name}")) == 3, "the Service does not lead to three pods")
    t.equal(len({t.http(f"svc/{v.name}", 80).text for _ in range(9)}), 1, "the number of pods that one client reaches")
    t.equal(t.get(f"svc/{v.name}")["spec"]["sessionAffinityConfig"]["clientIP"]["timeoutSeconds"], 600, "the timeout")
