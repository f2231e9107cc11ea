# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    t.ready("locked")
    t.equal(t.out("locked", "id -u; id -g").split(), [str(v.uid)] * 2, "user and group")
    t.out("locked", f"echo x > {v.dir}/x && cat {v.dir}/x")
    t.expect(t.exec("locked", "echo x > /tmp/x")[0], "the root file system must be read-only")
    t.contains(t.out("locked", "grep NoNewPrivs /proc/1/status"), "1", "no_new_privs")
    spec = t.get("locked")["spec"]
    secure = {**(spec.get("securityContext") or {}), **(spec["containers"][0].get("securityContext") or {})}
    t.expect(secure.get("runAsNonRoot") is True, "runAsNonRoot must be true")
