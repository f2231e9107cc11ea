# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    me = "sa:default/rotator"
    t.get("rolebinding/one-secret", v.ns)
    t.expect(t.may(me, "get", "secrets", namespace=v.ns, name=v.secret), "rotator may not read the secret")
    t.expect(not t.may(me, "get", "secrets", namespace=v.ns, name="other"), "rotator may read other secrets")
    t.expect(
        not any(t.may(me, verb, "secrets", namespace=v.ns, name=v.secret) for verb in ("list", "update", "delete")),
        "rotator may do more than get",
    )
    t.expect(
        not t.may(me, "get", "secrets", namespace="default", name=v.secret), "rotator may read in another namespace"
    )
    t.expect(
        not t.may(f"sa:{v.ns}/rotator", "get", "secrets", namespace=v.ns, name=v.secret), "another rotator may read"
    )
