# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    me = f"cluster.local/ns/default/sa/{v.account}"
    asked = [
        (me, "GET", v.path),
        (me, "GET", v.path + "/x"),
        (me, "POST", v.path),
        (me, "GET", "/admin"),
        ("cluster.local/ns/default/sa/other", "GET", v.path),
        ("", "GET", v.path),
    ]
    got = [t.authorized({"app": "api"}, principal=p, method=m, path=path) for p, m, path in asked]
    t.equal(got, [True, True, False, False, False, False], "which requests are admitted")
    t.expect(t.authorized({"app": "web"}, principal="", method="POST", path="/"), "other workloads are closed")
