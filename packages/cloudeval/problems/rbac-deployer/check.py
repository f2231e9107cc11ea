# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    me = f"group:{v.group}"
    t.get("clusterrole/deployer"), t.get(f"rolebinding/{v.group}-deploys")
    verbs = ["get", "list", "create", "update", "patch", "delete"]
    t.equal(
        [t.may(me, verb, "deployments", namespace="default", group="apps") for verb in verbs],
        [True] * 5 + [False],
        f"what the group may do of {verbs}",
    )
    t.expect(
        not t.may(me, "create", "deployments", namespace="kube-system", group="apps"),
        "the group may change another namespace",
    )
    t.expect(
        not t.may(me, "create", "statefulsets", namespace="default", group="apps"), "the group may create other kinds"
    )
    t.expect(
        not t.may(f"user:{v.group}", "get", "deployments", namespace="default", group="apps"),
        "a user of that name may deploy",
    )
