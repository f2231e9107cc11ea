# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    pods = t.ready(f"deployment/{v.name}")
    t.out(pods[0], "touch /sick")
    t.eventually(lambda: t.get(f"deployment/{v.name}")["status"]["readyReplicas"] == 1, "the pod stays ready", 6)
    t.equal(t.endpoints(f"svc/{v.name}"), t.names(pods), "the pods behind the Service")
    lines = t.out(pods[1], f"grep -w {v.name} /etc/hosts").splitlines()
    t.equal(
        sorted({line.split()[0] for line in lines if line.split()[1] == v.name}),
        sorted(t.address(p) for p in pods),
        "the addresses of the name",
    )
    t.expect(t.service_port(f"svc/{v.name}", 8080), "port 8080")
