# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    t.get(f"vs/{v.host}"), t.get(f"dr/{v.host}")
    t.equal(t.shares(v.host), {(v.host, "version=v1"): 0.8, (v.host, "version=v2"): 0.2}, "the shares")
