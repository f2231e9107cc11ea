# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    job = t.finished(f"job/{v.name}", "Failed", 5)
    pods = t.pods(f"job/{v.name}")
    t.equal(len(pods), v.limit + 1, "the number of pods")
    t.equal(job["status"]["conditions"][0].get("reason"), "BackoffLimitExceeded", "the reason")
    t.equal(
        {(t.logs(p, "try"), t.state(p)["terminated"]["exitCode"]) for p in pods}, {("trying", 3)}, "log and exit code"
    )
