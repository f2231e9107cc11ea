# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    t.get("resourceflavor/pool")
    spec = t.get("clusterqueue/prod")["spec"]
    t.equal(
        (spec.get("cohort"), spec.get("queueingStrategy"), spec.get("namespaceSelector")),
        ("company", "StrictFIFO", {}),
        "cohort, strategy and namespaces",
    )
    preemption = spec.get("preemption") or {}
    t.equal(
        (preemption.get("reclaimWithinCohort"), preemption.get("withinClusterQueue")),
        ("Any", "LowerPriority"),
        "the preemption",
    )
    flavor = spec["resourceGroups"][0]["flavors"][0]
    resource = flavor["resources"][0]
    t.equal(
        (flavor["name"], resource["name"], int(resource["nominalQuota"]), int(resource.get("borrowingLimit", -1))),
        ("pool", "nvidia.com/gpu", v.own, v.extra),
        "the quota",
    )
