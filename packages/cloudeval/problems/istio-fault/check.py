# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    test = t.route("payments", headers={"x-test": "on"})
    fault = test.get("fault") or {}
    t.equal(
        (fault["delay"]["fixedDelay"], fault["delay"]["percentage"]["value"]), (f"{v.seconds}s", v.percent), "the delay"
    )
    t.equal((fault["abort"]["httpStatus"], fault["abort"]["percentage"]["value"]), (503, 5), "the abort")
    for headers in ({}, {"x-test": "off"}):
        t.expect(
            t.route("payments", headers=headers) and not t.route("payments", headers=headers).get("fault"),
            "other requests are hit or have no route",
        )
        t.equal(list(t.shares("payments", headers=headers)), [("payments", "")], "the destination of other requests")
    t.equal(
        list(t.shares("payments", headers={"x-test": "on"})), [("payments", "")], "the destination of test requests"
    )
