# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    spec = t.get("gateway/edge")["spec"]
    t.equal(spec.get("selector"), {"istio": "ingressgateway"}, "the selector")
    servers = {s["port"]["number"]: s for s in spec["servers"]}
    t.equal(sorted(servers), [80, 443], "the ports")
    t.equal([servers[p]["port"]["protocol"] for p in (80, 443)], ["HTTP", "HTTPS"], "the protocols")
    t.equal([[h.split("/")[-1] for h in servers[p]["hosts"]] for p in (80, 443)], [[v.host]] * 2, "the hosts")
    t.equal(
        (servers[443]["tls"].get("mode"), servers[443]["tls"].get("credentialName")), ("SIMPLE", v.secret), "TLS on 443"
    )
    t.expect((servers[80].get("tls") or {}).get("httpsRedirect"), "port 80 does not redirect")
