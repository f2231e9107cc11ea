# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    t.finished("client")
    t.equal(t.logs("client"), f"tcp://{v.host}:{v.port}", "the log")
    t.equal(t.restarts("client"), 0, "the number of restarts")
