# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    t.upstream(9001, "app", headers={v.header: "from-the-backend"})
    for method in ("GET", "PUT", "DELETE"):
        answer = t.http(v.port, "/", method=method, status=200)
        t.equal(answer.headers.get(v.header), method, f"the header {v.header} of {method}")
        t.equal(answer.text, f"app {method} /", "the body")
