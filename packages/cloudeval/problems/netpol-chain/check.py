# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    t.get("networkpolicy/db")
    db, back, front = t.pod({"app": "db"}), t.pod({"app": "backend"}), t.pod({"app": "frontend"})
    t.expect(t.connects(back, db, v.port), "the backend cannot reach the database")
    t.expect(not t.connects(back, db, v.port + 1), "the backend reaches another port")
    t.expect(not t.connects(back, db, v.port, "UDP"), "the backend reaches the port over UDP")
    t.expect(not t.connects(front, db, v.port), "the frontend reaches the database")
    t.expect(
        not t.connects(t.pod({"app": "backend"}, "kube-public"), db, v.port),
        "a backend of another namespace reaches the database",
    )
    t.expect(t.connects(front, back, 80) and t.connects(db, back, 80), "other connections are blocked")
