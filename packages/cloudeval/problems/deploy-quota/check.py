# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    pods = t.ready(f"deployment/{v.name}")
    t.equal(len(pods), 3, "the number of pods")
    limits = t.limits(pods[0], "web")
    t.equal((limits["memory"], limits["cpu"]), (64 * 2**20, None), "the limits for memory and CPU in force")
    t.expect(abs(limits["shares"] - int(v.cpu[:-1]) * 1.024) <= 1, f"the CPU request in force is not {v.cpu}")
