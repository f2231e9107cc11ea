# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    t.upstream(9001, "main")
    t.upstream(9002, "beta")
    wanted = {"beta": "beta", "beta2": "main", "Beta": "main", "alpha": "main", "": "main"}
    got = {value: t.upstream_of(v.port, "/", headers={v.header: value} if value else {}) for value in wanted}
    t.equal(got, wanted, "the backends by header")
