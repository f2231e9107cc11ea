# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    t.finished(f"job/{v.name}", timeout_s=6)
    pods = t.pods(f"job/{v.name}")
    t.equal(len(pods), 1, "the number of pods (it must wait instead of failing)")
    t.equal(t.logs(pods[0], "use"), "web 1.0", "the log of use")
    t.equal(t.state(pods[0], "wait")["terminated"]["exitCode"], 0, "the exit code of wait")
