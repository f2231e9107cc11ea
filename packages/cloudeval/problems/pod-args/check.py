# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    t.finished(v.name)
    t.equal(t.logs(v.name, "say"), f"{v.name} is {v.word}", "the log")
    t.expect(
        not t.get(v.name)["spec"]["containers"][0].get("command"),
        "the image's entrypoint must stay: command must not be set",
    )
