# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    t.get("networkpolicy/own", v.ns)
    a, b, far = t.pod({"app": "a"}, v.ns), t.pod({"app": "b"}, v.ns), t.pod({"app": "a"})
    t.expect(t.connects(a, b, 80) and t.connects(b, a, 9999), "pods of the namespace cannot reach each other")
    t.equal(
        [t.connects(far, a, 80), t.connects("9.9.9.9", a, 80), t.connects(a, far, 80), t.connects(a, "9.9.9.9", 443)],
        [False] * 4,
        "connections over the border",
    )
    t.equal([t.connects(a, "9.9.9.9", 53, p) for p in ("UDP", "TCP")], [True, True], "port 53")
