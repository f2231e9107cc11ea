# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    t.equal(t.http(v.port, "/health", status=200).text, "ok", "the body of /health")
    for path in ("/", "/a/b?c=1"):
        t.equal(
            t.http(v.port, path, host="old.test", status=v.code).headers.get("location"),
            f"https://{v.host}{path}",
            "the location",
        )
