# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    t.finished(f"job/{v.name}", timeout_s=5)
    pods = t.pods(f"job/{v.name}")
    t.equal(len(pods), 1, "the number of pods")
    t.equal(t.restarts(pods[0], "step"), 1, "the number of restarts")
