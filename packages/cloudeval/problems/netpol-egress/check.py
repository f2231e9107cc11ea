# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    t.get("networkpolicy/exits")
    worker, base = t.pod({"app": "worker"}), v.cidr.split(".0.0/")[0]
    asked = [
        (f"{base}.1.1", v.port, "TCP"),
        ("8.8.8.8", 53, "UDP"),
        (f"{base}.9.7", v.port, "TCP"),
        (f"{base}.1.1", 80, "TCP"),
        ("8.8.8.8", v.port, "TCP"),
        ("8.8.8.8", 53, "TCP"),
        ("10.99.1.1", v.port, "TCP"),
    ]
    t.equal([t.connects(worker, *what) for what in asked], [True, True] + [False] * 5, "the outgoing connections")
    t.expect(t.connects("9.9.9.9", worker, 80), "incoming connections are blocked")
    t.expect(t.connects(t.pod({"app": "other"}), "9.9.9.9", 80), "other pods are affected")
