# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    pod = t.ready("broken", 6)
    t.equal(t.env("broken").get("MODE"), "quiet", "MODE")
    t.equal(t.http("broken", v.port).text, "web 1.0", f"the page on port {v.port}")
    t.equal(pod["metadata"]["labels"], {"app": "broken"}, "the labels")
    t.out("broken", "mv /www/index.html /www/gone.html")
    t.eventually(
        lambda: t.get("broken")["status"]["conditions"][3]["status"] == "False",
        "the readiness probe was removed or weakened",
        6,
    )
