# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    one, two = t.upstream(9001, "one"), t.upstream(9002, "two")
    t.eventually(lambda: set(t.spread(v.port, count=8)) == {"one", "two"}, "not both endpoints are used", 4)
    t.expect(min(t.spread(v.port, count=20).values()) >= 5, "the requests are not spread over both endpoints")
    t.eventually(lambda: any(r[1] == v.path for r in one.requests), f"{v.path} was not asked")
    two.healthy = False
    t.eventually(lambda: set(t.spread(v.port, count=6)) == {"one"}, "the sick endpoint stays in use", 3)
    two.healthy = True
    t.eventually(lambda: set(t.spread(v.port, count=6)) == {"one", "two"}, "the recovered endpoint stays out", 3)
