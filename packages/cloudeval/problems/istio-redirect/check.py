# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    robots = t.route(v.old, "/robots.txt", gateway="edge")
    t.equal(
        (robots["directResponse"]["status"], robots["directResponse"]["body"]),
        (200, {"string": "none"}),
        "the answer to /robots.txt",
    )
    for path in ("/", "/robots.txt/x", "/a/b"):
        redirect = t.route(v.old, path, gateway="edge").get("redirect") or {}
        t.equal(
            (redirect.get("authority"), redirect.get("redirectCode", 301), redirect.get("uri")),
            ("new.test", v.code, None),
            f"the redirect of {path}",
        )
    t.expect(not t.route("other.test", "/", gateway="edge"), "other hosts are redirected")
