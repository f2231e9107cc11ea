# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    t.upstream(9001, "app")
    t.http(v.port, "/", status=200)
    t.http(v.port, v.path + "/x", status=403)
    t.http(v.port, v.path + "/x", status=403, headers={"x-role": "guest"})
    t.http(v.port, v.path + "/x", status=200, headers={"x-role": "root"})
    t.http(v.port, "/public" + v.path, status=200)
