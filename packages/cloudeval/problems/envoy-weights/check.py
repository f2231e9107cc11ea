# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    t.upstream(9001, "stable")
    t.upstream(9002, "canary")
    found = t.spread(v.port, count=400)
    t.expect(
        abs(found.get("canary", 0) - 4 * v.share) <= 36,
        f"canary got {found.get('canary', 0)} of 400 requests, expected about {4 * v.share}",
    )
    t.equal(sum(found.get(name, 0) for name in ("stable", "canary")), 400, "the answered requests")
