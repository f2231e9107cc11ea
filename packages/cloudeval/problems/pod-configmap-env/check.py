# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    t.ready("reader")
    env = t.env("reader", "reader")
    t.equal(
        {k: env.get(k) for k in (v.prefix + "level", v.prefix + "region", "COLOR")},
        {v.prefix + "level": v.level, v.prefix + "region": "north", "COLOR": "blue"},
        "the environment",
    )
    t.expect("level" not in env, "the variables must not come without prefix, too")
