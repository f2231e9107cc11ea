# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    t.equal(t.http(v.port, "/ping", status=200).text, v.text, "the body of /ping")
    t.http(v.port, "/", status=404)
    t.http(v.port, "/ping/more", status=404)
    t.equal(t.http(v.port, "/pings", status=404).text, "", "the body of another path")
