# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    ref = f"cronjob/{v.name}"
    first = t.fire(ref, "2030-01-01 00:00")
    t.eventually(lambda: [p for p in t.pods(first) if p["status"]["phase"] == "Running"], "no pod runs")
    t.expect(t.fire(ref, "2030-01-01 00:30") is None, "a second run was started beside the first")
    t.finished(first, timeout_s=5)
    second = t.fire(ref, "2030-01-01 01:00")
    t.finished(second, timeout_s=5)
    t.eventually(lambda: not t.find(first), "the older finished Job is kept")
    t.equal(t.times(ref, "2030-01-01 00:00", 2), [f"2030-01-01 00:{n * v.every:02}" for n in (1, 2)], "the next times")
    t.equal(t.get(ref)["spec"]["failedJobsHistoryLimit"], 1, "failedJobsHistoryLimit")
