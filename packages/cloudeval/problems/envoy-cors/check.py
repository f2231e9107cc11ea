# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    api = t.upstream(9001, "api")
    ask = {"Access-Control-Request-Method": "PUT"}
    answer = t.http(v.port, "/x", method="OPTIONS", headers={"Origin": v.origin, **ask}, status=200)
    t.equal(len(api.requests), 0, "preflights that reached the backend")
    t.equal(
        [answer.headers.get(f"access-control-allow-{k}") for k in ("origin", "methods", "headers")],
        [v.origin, "GET,PUT", "content-type"],
        "the preflight's answer",
    )
    t.equal(
        t.http(v.port, "/x", headers={"Origin": v.origin}).headers.get("access-control-allow-origin"),
        v.origin,
        "the allowed origin",
    )
    t.equal(
        t.http(v.port, "/x", headers={"Origin": v.origin + ".evil"}).headers.get("access-control-allow-origin"),
        None,
        "a foreign origin's header",
    )
