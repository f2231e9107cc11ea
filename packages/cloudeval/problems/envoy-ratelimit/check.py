# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    app = t.upstream(9001, "app")
    got = [t.http(v.port, "/").status for _ in range(v.tokens + 4)]
    t.equal(got, [200] * v.tokens + [429] * 4, "the statuses")
    t.equal(len(app.requests), v.tokens, "the requests that reached the backend")
    t.sleep(1.2)
    t.http(v.port, "/", status=429)
