# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    t.ready("client")
    t.eventually(
        lambda: t.exec("client", f"timeout 2 wget -q -O- http://{v.alias}:8080")[1] == "web 1.0",
        f"the page is not reachable as {v.alias}:8080",
    )
    t.equal(
        (t.get(f"svc/{v.alias}")["spec"]["type"], t.get(f"svc/{v.alias}")["spec"].get("selector")),
        ("ExternalName", None),
        "type and selector",
    )
