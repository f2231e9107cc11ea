# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    t.finished("stubborn")
    t.equal(t.logs("stubborn"), "done", "the log of the last try")
    t.equal(t.restarts("stubborn", "app"), v.tries - 1, "the number of restarts")
