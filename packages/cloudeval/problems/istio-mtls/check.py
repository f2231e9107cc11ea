# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    t.get("peerauthentication/default", v.ns), t.get("peerauthentication/legacy", v.ns)
    old, new = {"app": "legacy"}, {"app": "new"}
    asked = [(new, 80), (new, v.port), (old, 80), (old, v.port)]
    t.equal(
        [t.mtls(labels, v.ns, port) for labels, port in asked],
        ["STRICT", "STRICT", "STRICT", "PERMISSIVE"],
        "the modes",
    )
    t.equal(t.mtls(new, "default", 80), "PERMISSIVE", "the mode of another namespace")
