# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    t.equal(t.node_of("trainer"), f"gpu-{v.zone}", "the node")
    t.ready("trainer")
    t.contains(t.out("trainer", f"grep {v.host} /etc/hosts"), "10.1.2.3", "the hosts entry")
    tolerations = t.get("trainer")["spec"]["tolerations"]
    t.expect(
        all(x.get("key") == "gpu" and x.get("effect") == "NoSchedule" for x in tolerations),
        "only that taint is to be tolerated",
    )
