# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    pod = t.ready("deployment/pair")[0]
    t.eventually(lambda: t.http(pod, 8080, status=None).text == v.word, "the feeder's word is not served")
    t.sleep(0.3)
    t.equal([t.restarts(pod, "web"), t.restarts(pod, "feeder")], [0, 0], "the restarts")
    t.equal(t.out(pod, "cat /out/index.html", "feeder"), v.word, "/out/index.html")
