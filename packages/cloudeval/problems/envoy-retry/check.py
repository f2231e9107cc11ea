# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    app = t.upstream(9001, "app")
    app.fail_next = v.tries
    t.http(v.port, "/", status=200)
    t.equal(len(app.requests), v.tries + 1, "the requests that reached the backend")
    app.fail_next = v.tries + 1
    t.http(v.port, "/", status=503)
    t.equal(len(app.requests), 2 * v.tries + 2, "the requests after too many failures")
    t.http(v.port, "/status/404", status=404)
    t.equal(len(app.requests), 2 * v.tries + 3, "the requests after a 404")
