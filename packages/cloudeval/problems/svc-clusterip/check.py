# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    t.ready("one"), t.ready("two")
    t.eventually(lambda: t.endpoints(f"svc/{v.name}") == ["one"], "the Service does not lead to pod one alone")
    t.equal(t.out("client", f"wget -qO- http://{v.name}:{v.port}"), "web 1.0", "the page from another pod")
    t.equal(t.service_port(f"svc/{v.name}", v.port)["targetPort"], "http", "targetPort")
    t.equal(t.get(f"svc/{v.name}")["spec"]["type"], "ClusterIP", "the type")
