# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    job = t.fire(f"cronjob/{v.name}")
    t.expect(job, "the CronJob does not fire")
    t.finished(job)
    t.equal(t.logs(t.pods(job)[0], "task"), f"{v.name} done", "the log")
    t.equal(
        t.times(f"cronjob/{v.name}", "2030-02-01 00:00", 2),
        [f"2030-{d} 0{v.hour}:{v.minute}" for d in ("02-01", "02-02")],
        "the next times",
    )
