# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    t.ready("host")
    t.equal(t.out("host", f"cat /etc/{v.key}"), v.text, f"/etc/{v.key}")
    t.contains(t.out("host", "cat /etc/passwd"), "root", "/etc/passwd")
    t.expect(t.exec("host", "test -e /etc/other")[0], "the other key must not be mounted")
