# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    t.upstream(9001, "app")
    t.equal(t.http(v.port, v.path + "//a///b", status=200).text, f"app GET {v.path}/a/b", "double slashes")
    t.http(v.port, v.path + "/../secret", status=404)
    t.equal(t.http(v.port, f"/x/..{v.path}/./c", status=200).text, f"app GET {v.path}/c", "dots")
    t.http(v.port, "/", status=404)
