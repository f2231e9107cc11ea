# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    t.ready("user")
    t.out("user", "echo x > /in/file")
    t.equal(t.out("user", "cat /all/in/file"), "x", "/all/in/file")
    t.expect(t.exec("user", "echo x > /all/other")[0], "/all must be read-only")
    claim = t.get(f"pvc/{v.name}")["spec"]
    t.equal(
        (claim["accessModes"], claim["resources"]["requests"]["storage"], claim["storageClassName"]),
        (["ReadWriteOnce"], v.size, "standard"),
        "the claim",
    )
