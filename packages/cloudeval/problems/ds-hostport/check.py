# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    pods = t.ready(f"ds/{v.name}")
    t.equal(t.http("node", v.port).text, "web 1.0", f"the page on the node's port {v.port}")
    t.expect(t.address(pods[0]) != "10.88.0.1", "the pod uses the node's network")
    t.get(f"ds/{v.name}")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 0
    t.set_image(f"ds/{v.name}", "web:2.0")
    t.eventually(
        lambda: t.http("node", v.port, status=None, timeout_s=8).text == "web 2.0",
        "the update does not reach the node",
        6,
    )
