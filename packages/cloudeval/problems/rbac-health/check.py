# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    me = f"group:{v.group}"
    t.get("clusterrolebinding/health")
    asked = [
        ("get", "/healthz"),
        ("get", "/healthz/etcd"),
        ("get", "/metrics"),
        ("get", "/version"),
        ("post", "/metrics"),
        ("get", "/metrics/x"),
        ("get", "pods"),
    ]
    t.equal([t.may(me, *what) for what in asked], [True] * 3 + [False] * 4, f"what the group may do of {asked}")
    t.expect(not t.may("group:other", "get", "/metrics"), "other groups may read")
