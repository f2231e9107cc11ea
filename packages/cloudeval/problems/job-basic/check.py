# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    job = t.finished(f"job/{v.name}")
    pods = t.pods(f"job/{v.name}")
    t.equal(len(pods), 1, "the number of pods")
    t.equal(t.logs(pods[0], "task"), v.word, "the log")
    t.equal(
        (job["spec"]["backoffLimit"], job["spec"]["template"]["spec"]["restartPolicy"]),
        (0, "Never"),
        "backoffLimit and restartPolicy",
    )
