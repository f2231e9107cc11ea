# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    t.http("slow", 8080, v.path, status=404)
    t.expect(t.get("slow")["status"]["conditions"][3]["status"] == "False", "the pod is ready before the page exists")
    t.ready("slow", 6)
    t.equal(t.http("slow", 8080, v.path).text, "ok", "the page")
    t.out("slow", f"rm /w{v.path}")
    t.eventually(
        lambda: t.get("slow")["status"]["conditions"][3]["status"] == "False",
        "the pod stays ready though the page is gone",
        5,
    )
    t.equal(t.restarts("slow"), 0, "the number of restarts")
