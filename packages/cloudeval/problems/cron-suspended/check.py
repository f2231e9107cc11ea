# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    ref = f"cronjob/{v.name}"
    t.expect(t.fire(ref) is None, "the suspended CronJob fires")
    t.get(ref)["spec"]["suspend"] = False
    job = t.fire(ref, "2030-01-02 06:30")
    t.finished(job)
    t.equal(t.logs(t.pods(job)[0], "task"), "paid", "the log")
    t.equal(t.get(job)["spec"]["backoffLimit"], 1, "backoffLimit")
    first = {"Mon": "2030-01-07", "Wed": "2030-01-02", "Fri": "2030-01-04"}[v.day]
    t.equal(t.times(ref, "2030-01-01 00:00"), [f"{first} 06:30"], "the next time")
    t.equal(t.get(ref)["spec"].get("timeZone"), "Europe/Berlin", "the time zone")
