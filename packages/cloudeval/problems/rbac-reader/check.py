# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    me = f"sa:{v.ns}/{v.account}"
    t.get(f"sa/{v.account}", v.ns), t.get(f"rolebinding/{v.account}-reads", v.ns), t.get("role/pod-reader", v.ns)
    asked = [
        ("get", "pods"),
        ("list", "pods"),
        ("watch", "pods"),
        ("get", "pods/log"),
        ("delete", "pods"),
        ("list", "pods/log"),
        ("get", "secrets"),
        ("get", "pods/exec"),
    ]
    t.equal([t.may(me, *what, namespace=v.ns) for what in asked], [True] * 4 + [False] * 4, "what the account may do")
    t.expect(not t.may(me, "get", "pods", namespace="default"), "the account may read another namespace")
    t.expect(
        not t.may(f"sa:default/{v.account}", "get", "pods", namespace=v.ns), "an account of another namespace may read"
    )
