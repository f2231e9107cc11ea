# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    ref = f"deployment/{v.name}"
    t.sleep(0.3)
    t._behaved()
    t.equal(len(t.pods(labels={"app": v.name})), 0, "the number of pods while paused")
    t.get(ref)["spec"]["paused"] = False
    pods = t.ready(ref)
    t.equal(len(pods), 2, "the number of pods after resuming")
    t.equal(t.http(pods[0], 8080).text, "web 2.0", "the page")
