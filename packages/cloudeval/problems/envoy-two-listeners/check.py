# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    t.upstream(9001, "app")
    t.equal([t.http(p, "/whoami", status=200).text for p in (v.inside, v.outside)], ["inside", "outside"], "/whoami")
    t.equal(t.http(v.inside, "/x", method="POST", status=200).text, "app POST /x", "POST inside")
    t.equal(t.http(v.outside, "/x", status=200).text, "app GET /x", "GET outside")
    t.http(v.outside, "/x", method="POST", status=405)
    t.http(v.outside, "/x", method="HEAD", status=405)
