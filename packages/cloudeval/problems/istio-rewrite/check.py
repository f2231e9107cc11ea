# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    api = t.route(v.host, v.prefix + "/x", gateway="edge")
    t.equal(
        [(d["destination"]["host"], d["destination"]["port"]["number"]) for d in api["route"]],
        [("backend", 8080)],
        "the destination of the API",
    )
    t.equal(api.get("rewrite"), {"uri": "/"}, "the rewrite")
    for path in ("/", v.prefix + "less", "/x" + v.prefix + "/"):
        rest = t.route(v.host, path, gateway="edge")
        t.equal(
            [(d["destination"]["host"], d["destination"]["port"]["number"]) for d in rest["route"]],
            [("pages", 80)],
            f"the destination of {path}",
        )
    t.expect(not t.route(v.host, "/"), "the route holds in the mesh, too")
    t.expect(not t.route("other.test", "/", gateway="edge"), "the route holds for other hosts")
