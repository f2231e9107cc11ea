# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    ref = f"sts/{v.name}"
    t.ready(ref)
    t.equal(t.http(f"{v.name}-0", 8080).text, "web 1.0", "the page")
    t.set_image(ref, "web:2.0")
    t.eventually(
        lambda: (
            (t.find(f"{v.name}-1") or {"spec": {"containers": [{}]}})["spec"]["containers"][0].get("image") == "web:2.0"
        ),
        "replica 1 is not updated",
        4,
    )
    t.sleep(0.8)
    t.equal([t.http(f"{v.name}-{n}", 8080).text for n in (0, 1)], ["web 1.0", "web 2.0"], "the pages after the update")
    t.equal(t.get(f"{v.name}-0")["spec"]["terminationGracePeriodSeconds"], 0, "the grace period")
