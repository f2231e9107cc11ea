# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    t.get("networkpolicy/metrics")
    target, scraper = t.pod({"app": "x"}), {"role": "scraper"}
    sources = [t.pod(scraper, "watch"), t.pod({}, "watch"), t.pod(scraper, "play"), t.pod(scraper)]
    t.equal([t.connects(s, target, v.port) for s in sources], [True, False, False, False], "which sources get in")
    t.expect(not t.connects(sources[0], target, 80), "the scraper reaches another port")
    t.expect(t.connects(target, "8.8.8.8", 53), "outgoing connections are blocked")
