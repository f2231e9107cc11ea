# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    t.upstream(9001, "app")
    t.http(v.port, "/slow/100", status=200)
    t.http(v.port, "/slow/700", status=504)
    t.http(v.port, "/batch/slow/700", status=200)
    t.equal([(r["timeout"]) for r in _routes(t) if r["cluster"] == "app"][0], "0s", "the timeout below /batch/")


def _routes(t):
    from cloudeval.reading import values

    config = values(open("/run/cloudeval/envoy/envoy.yaml").read())[0]
    hcm = config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    return [r["route"] for r in hcm["route_config"]["virtual_hosts"][0]["routes"]]
