# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    app = t.upstream(9001, "app")
    t.equal(
        [t.http(v.port, "/", headers={"x-chaos": "on"}).status for _ in range(12)],
        [v.code] * 12,
        "the statuses with x-chaos: on",
    )
    t.equal(len(app.requests), 0, "the aborted requests that reached the backend")
    t.http(v.port, "/", status=200)
    t.http(v.port, "/", status=200, headers={"x-chaos": "off"})
