# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    t.ready(f"deployment/{v.name}")
    t.eventually(lambda: len(t.endpoints(f"svc/{v.name}")) == 2, "the Service does not lead to both pods")
    t.equal(t.http(f"svc/{v.name}", 80).text, "web 1.0", "the page on port 80")
    port = t.service_port(f"svc/{v.name}", "web")
    t.equal((port["port"], port["targetPort"]), (80, "http"), "port and target")
