# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    pods = t.ready(f"deployment/{v.name}", 8)
    t.equal(len(pods), 2, "the number of pods")
    t.expect(all(t.http(p, 8085).text == "web 2.0" for p in pods), "the pods do not serve version 2.0 on port 8085")
    t.out(pods[0], "rm /www/index.html")
    t.eventually(
        lambda: t.get(f"deployment/{v.name}")["status"]["readyReplicas"] == 1,
        "the readiness probe was removed or weakened",
        6,
    )
