# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    t.ready("both")
    t.eventually(lambda: t.endpoints(f"svc/{v.name}") == ["both"], "the Service does not lead to the pod")
    t.equal([t.http(f"svc/{v.name}", p).text for p in (80, 81)], ["web 1.0", "web 2.0"], "the pages on ports 80 and 81")
    t.equal([t.service_port(f"svc/{v.name}", n)["port"] for n in ("site", "admin")], [80, 81], "the named ports")
