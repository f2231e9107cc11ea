# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    t.logged("limited", "^working$", "app", 3)
    t.finished("limited", "Failed", 5)
    pod = t.get("limited")
    t.equal(pod["status"].get("reason"), "DeadlineExceeded", "the reason of the failure")
    t.equal(pod["spec"]["terminationGracePeriodSeconds"], 0, "the grace period")
    t.equal(pod["spec"]["restartPolicy"], "Never", "the restart policy")
    t.equal(t.restarts("limited"), 0, "the number of restarts")
