# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
BITS = {"CHOWN": 0, "FOWNER": 3, "NET_RAW": 13}


def check(t, v):
    t.ready("minimal")
    status = t.out("minimal", "grep -E 'CapEff|CapBnd|NoNewPrivs' /proc/1/status").split()
    t.equal(int(status[status.index("CapEff:") + 1], 16), 1 << BITS[v.cap], "the effective capabilities")
    t.equal(status[-1], "1", "no_new_privs")
