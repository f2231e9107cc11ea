# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    t.ready("site")
    t.equal(t.http("site", 8080).text, v.text, "the page")
    t.equal(t.state("site", "prepare").get("terminated", {}).get("exitCode"), 0, "the exit code of prepare")
    t.expect(t.exec("site", "echo x > /www/x", "server")[0], "/www must be read-only")
