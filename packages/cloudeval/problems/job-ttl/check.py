# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    pod = t.eventually(lambda: t.pods(f"job/{v.name}"), "there is no pod")[0]
    t.equal(pod["spec"]["restartPolicy"], "Never", "the restart policy")
    t.finished(f"job/{v.name}")
    t.equal(t.state(pod, "once")["terminated"]["exitCode"], 0, "the exit code")
    t.always(lambda: t.find(f"job/{v.name}"), "the Job was removed too soon", 0.6)
    t.eventually(lambda: not t.find(f"job/{v.name}") and not t.pods(), "the Job or its pod is not removed", 3)
