# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    first = t.upstream(9001, "first")
    t.upstream(v.reserve, "reserve")
    t.eventually(lambda: t.spread(v.port, count=8) == {"first": 8}, "the first choice is not used alone", 4)
    first.healthy = False
    t.eventually(lambda: t.spread(v.port, count=8) == {"reserve": 8}, "the reserve does not step in", 3)
    first.healthy = True
    t.eventually(lambda: t.spread(v.port, count=8) == {"first": 8}, "the first choice is not used again", 3)
