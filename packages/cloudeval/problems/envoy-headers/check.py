# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    app = t.upstream(9001, "app", headers={"server-version": "9", "x-kept": "1"})
    for sent in ({}, {v.name: "client", "x-secret": "1", "x-other": "2"}):
        answer = t.http(v.port, "/", status=200, headers=sent)
        seen = app.requests[-1][2]
        t.equal(
            (seen.get(v.name), seen.get("x-secret"), seen.get("x-other")),
            (v.value, None, sent.get("x-other")),
            "the headers that arrive",
        )
        t.equal(
            (answer.headers.get("server-version"), answer.headers.get("x-kept")),
            (None, "1"),
            "the headers of the answer",
        )
