# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    t.ready("boot", 8)
    t.equal(t.restarts("boot"), 0, "restarts while starting")
    t.expect(t.exec("boot", f"test -e {v.file}")[0] == 0, "the pod is ready before it has started")
    t.out("boot", f"rm {v.file}")
    t.eventually(lambda: t.restarts("boot") == 1, "the container is not restarted after its file is gone", 4)
