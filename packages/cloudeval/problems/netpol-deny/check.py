# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    t.get("networkpolicy/closed", v.ns)
    inside, other, outside = t.pod({"app": "a"}, v.ns), t.pod({"app": "b"}, v.ns), t.pod({"app": "c"})
    t.equal(
        [t.connects(source, inside, 80) for source in (other, outside, "9.9.9.9")],
        [False] * 3,
        "the incoming connections",
    )
    t.expect(t.connects(inside, outside, 80) and t.connects(inside, "9.9.9.9", 443), "outgoing connections are blocked")
    t.expect(t.connects(outside, t.pod({"app": "d"}), 80), "another namespace is closed")
