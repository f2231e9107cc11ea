# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    t.upstream(9001, "one")
    t.upstream(9002, "two")
    hosts = {
        v.host: "one",
        f"{v.host}:{v.port}": "one",
        f"a.{v.host}": "two",
        f"a.b.{v.host}:80": "two",
        "other.test": "421",
        f"x{v.host}": "421",
    }
    t.equal({h: t.upstream_of(v.port, "/", host=h) for h in hosts}, hosts, "the backends by host")
