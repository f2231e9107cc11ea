# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    for port in (9001, 9002, 9003):
        t.upstream(port)
    used = set()
    for user in range(24):
        found = t.spread(v.port, count=5, headers={v.header: f"user-{user}"})
        t.equal(len(found), 1, f"the number of endpoints that user {user} reaches")
        used |= set(found)
    t.equal(sorted(used), ["9001", "9002", "9003"], "the endpoints that 24 users reach")
