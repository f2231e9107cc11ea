# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    ref = f"cronjob/{v.name}"
    first = t.fire(ref, "2030-01-01 00:00")
    t.eventually(lambda: [p for p in t.pods(first) if p["status"]["phase"] == "Running"], "no pod runs")
    t.always(lambda: t.pods(first)[0]["status"]["phase"] in ("Pending", "Running"), "the run ends too soon", 0.4)
    second = t.fire(ref, "2030-01-01 01:00")
    t.expect(second and second != first, "the second run was not started")
    t.eventually(
        lambda: not t.find(first) and len(t.pods()) == 1 and t.pods(second), "the first run goes on beside the second"
    )
    t.equal(t.times(ref, "2030-01-01 00:10", 2), ["2030-01-01 01:00", "2030-01-01 02:00"], "the next times")
    spec = t.get(ref)["spec"]
    t.equal(
        (
            spec.get("startingDeadlineSeconds"),
            spec["jobTemplate"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"],
        ),
        (60, 0),
        "deadline and grace",
    )
