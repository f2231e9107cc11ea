# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    t.ready("fragile")
    t.sleep(1.2)
    t.equal(t.restarts("fragile"), 0, "restarts of a healthy container")
    t.out("fragile", f"rm {v.file}")
    t.eventually(lambda: t.restarts("fragile") == 1, "the container is not restarted after its file is gone", 4)
    t.ready("fragile", 4)
    t.out("fragile", f"test -e {v.file}")
