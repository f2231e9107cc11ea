# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    pod = t.eventually(lambda: t.pods(f"job/{v.name}"), "there is no pod")[0]
    t.logged(pod, "^begun$", "long", 3)
    t.equal(pod["spec"]["terminationGracePeriodSeconds"], 0, "the grace period")
    job = t.finished(f"job/{v.name}", "Failed", 4)
    t.equal(job["status"]["conditions"][0].get("reason"), "DeadlineExceeded", "the reason")
    t.eventually(lambda: not t.pods(f"job/{v.name}"), "the pod goes on")
