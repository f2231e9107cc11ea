# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    t.ready(f"deployment/{v.name}")
    t.eventually(lambda: len(t.endpoints(f"svc/{v.name}")) == 2, "the Service does not lead to both pods")
    t.equal(t.http(f"svc/{v.name}", v.port).text, "web 2.0", "the page")
    t.equal(t.service_port(f"svc/{v.name}", v.port)["targetPort"], "http", "targetPort")
    t.equal(t.get(f"svc/{v.name}")["spec"]["type"], "ClusterIP", "the type")
