# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    t.upstream(9001, "backend")
    t.upstream(9002, "site")
    t.equal(t.http(v.port, v.path + "/x?y=1", status=200).text, "backend GET /x?y=1", "the request below the prefix")
    t.equal(t.http(v.port, "/index.html", status=200).text, "site GET /index.html", "another request")
    t.equal(
        t.http(v.port, v.path + "less", status=200).text,
        f"site GET {v.path}less",
        "a path that only looks like the prefix",
    )
