# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    t.ready("server")
    t.eventually(lambda: t.endpoints(f"svc/{v.name}") == ["server"], "the Service does not lead to the pod")
    t.equal(t.http("node", v.port).text, "web 2.0", "the page on the node's port")
    t.equal(t.http(f"svc/{v.name}", 80).text, "web 2.0", "the page on port 80")
    t.equal(t.get(f"svc/{v.name}")["spec"]["type"], "NodePort", "the type")
