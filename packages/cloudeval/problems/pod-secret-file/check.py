# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    t.ready("signer")
    t.equal(t.out("signer", "id -u; id -g").split(), [str(v.uid)] * 2, "user and group")
    t.equal(t.out("signer", f"cat {v.path}/id.pem"), "top-secret-key", "the file")
    t.equal(t.out("signer", f"ls {v.path}"), "id.pem", "the files in the folder")
    t.equal(t.out("signer", f"stat -L -c '%a %g' {v.path}/id.pem"), f"440 {v.uid}", "mode and group")
    t.expect(t.exec("signer", f"echo x > {v.path}/new")[0], "the mount must be read-only")
