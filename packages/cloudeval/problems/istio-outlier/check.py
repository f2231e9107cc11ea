# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    policy = t.traffic(v.host)
    t.equal(policy.get("loadBalancer"), {"simple": "LEAST_REQUEST"}, "the load balancer")
    pool = policy["connectionPool"]
    t.equal((pool["tcp"]["maxConnections"], pool["http"]["http1MaxPendingRequests"]), (100, 10), "the connection pool")
    out = policy["outlierDetection"]
    t.equal(
        (out.get("consecutive5xxErrors"), out["interval"], out["baseEjectionTime"], out["maxEjectionPercent"]),
        (v.errors, "10s", "30s", 50),
        "the outlier detection",
    )
