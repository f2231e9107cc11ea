# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    t.ready("aware")
    env = t.env("aware", "main")
    t.equal(
        {k: env.get(k) for k in ("POD_NAME", "POD_IP", "TEAM", "CPU_MILLIS")},
        {"POD_NAME": "aware", "POD_IP": t.address("aware"), "TEAM": v.team, "CPU_MILLIS": v.cpu[:-1]},
        "the environment",
    )
    t.equal(t.limits("aware")["cpu"], int(v.cpu[:-1]) / 1000, "the CPU limit in force")
