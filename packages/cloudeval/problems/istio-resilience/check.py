# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def seconds(text):
    return float(text[:-2]) / 1000 if text.endswith("ms") else float(text[:-1])


def check(t, v):
    route = t.route(v.host)
    t.equal(list(t.shares(v.host)), [(v.host, "")], "the destination")
    t.equal(seconds(route["timeout"]), v.timeout, "the timeout")
    retries = route["retries"]
    t.equal((retries["attempts"], seconds(retries["perTryTimeout"])), (v.tries, 0.5), "attempts and their timeout")
    t.equal({x.strip() for x in retries["retryOn"].split(",")}, {"5xx", "connect-failure"}, "retryOn")
