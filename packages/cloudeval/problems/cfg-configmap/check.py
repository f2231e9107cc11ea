# cloudeval problem set, Apache-2.0. Canary 6f1c0a5e-cloudeval-2b94-4d7e-problems-must-not-be-trained-on.
def check(t, v):
    t.ready("user")
    t.logged("user", r"^\[")
    t.equal(t.logs("user"), f"cache = on\nworkers = 4\n[{v.level}] [{v.size}]", "what the pod reads")
    t.expect(t.get("cm/app").get("immutable") is True, "the ConfigMap must be immutable")
