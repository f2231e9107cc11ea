# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    t.ready("logger")
    t.logged("logger", f"^{v.word}$", "follow", 5)
    t.expect(
        any(c["name"] == "follow" for c in t.get("logger")["spec"].get("initContainers") or []),
        "follow must be a native sidecar",
    )
    t.expect(t.get("logger")["status"]["containerStatuses"][0]["state"].get("running"), "app must go on")
