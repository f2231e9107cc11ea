# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    pods = t.ready(f"deployment/{v.name}")
    zones = [{"c": "two"}.get(p["spec"]["nodeName"], "one") for p in pods]
    t.equal((zones.count("one"), zones.count("two")), (2, 2), "the pods in zone one and two")
    t.get("node/c")["spec"]["unschedulable"] = True
    t.scale(f"deployment/{v.name}", 6)
    t.sleep(0.6)
    placed = [p for p in t.pods(f"deployment/{v.name}") if p["spec"].get("nodeName")]
    t.equal(len(placed), 5, "the placed pods of six when zone two is closed")
