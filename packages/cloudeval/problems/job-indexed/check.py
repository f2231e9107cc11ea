# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    t.finished(f"job/{v.name}")
    pods = t.pods(f"job/{v.name}")
    t.equal(sorted(t.logs(p, "part") for p in pods), [f"part {n}" for n in range(v.count)], "the logs")
    t.equal(t.get(f"job/{v.name}")["spec"]["parallelism"], v.count, "the parallelism")
