# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    ref = f"sts/{v.name}"
    t._behaved()
    seen = []

    def started():
        status = {
            p["metadata"]["name"]: any(
                c["type"] == "Ready" and c["status"] == "True" for c in p.get("status", {}).get("conditions", [])
            )
            for p in t.pods(ref)
        }
        names = sorted(status)
        seen.append(all(status[n] for n in names[:-1]))
        return len(names) == 3 and all(status.values())

    t.eventually(started, "three pods do not become ready", 8)
    t.expect(all(seen), "a pod was started before the one before it was ready")
    t.equal(t.names(t.pods(ref)), [f"{v.name}-{n}" for n in range(3)], "the names")
    t.eventually(
        lambda: t.exec(f"{v.name}-0", f"timeout 2 wget -qO- http://{v.name}-2.{v.name}:8080")[1] == "web 1.0",
        "the third pod is not reachable by its name",
    )
    t.expect(t.get(f"svc/{v.name}")["spec"].get("clusterIP") == "None", "the Service must be headless")
